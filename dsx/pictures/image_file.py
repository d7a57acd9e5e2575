"""Pictures as files: the suffix decides the format, and a file is either complete or absent.

A PNG has a palette of 256 colours: charts look the same and take at most half the bytes.
"""

from io import BytesIO
from pathlib import Path

import numpy as np

from dsx.config.search_path import shown
from dsx.errors import InputError, StoreError, did_you_mean, file_path
from dsx.files import OpenFolder
from dsx.pictures.axes import Axes, figure_of

DOTS_PER_INCH = 200
# A palette is invisible if at most this share of the pixels (those at the edges of letters) differ by more than this
# much of 255 in red, green or blue.
_FEW_PIXELS, _UNSEEN = 1e-3, 16


def image_format(path: str | Path) -> str:
    """Return the format of the suffix ("png"); InputError if it is unknown, StoreError if no file can be there."""
    from matplotlib.backend_bases import FigureCanvasBase

    path = file_path("path", path)
    formats = FigureCanvasBase.get_supported_filetypes()
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in formats:
        suffixes = [f".{name}" for name in sorted(formats)]
        what = f"unknown image suffix {path.suffix!r}{did_you_mean(f'.{suffix}', suffixes)}"
        raise InputError(f"{path}: {what} (known: {', '.join(suffixes)})")
    if not path.absolute().parent.is_dir():
        raise StoreError(f"{path}: {shown(path.parent)} is no folder; make it, or choose another file")
    if path.is_dir():
        raise StoreError(f"{path}: is a folder; name a file in it")
    return suffix


def save(ax: Axes, path: str | Path) -> None:
    """Write the figure of `ax`; the suffix of `path` decides the format.

    A PNG gets a palette, unless that would be visible, as in a photograph, or the figure is transparent.

    Raises InputError for a suffix that matplotlib cannot write, StoreError for an unwritable path.
    """
    path = file_path("path", path)
    figure = figure_of(ax)
    suffix = image_format(path)
    try:
        with OpenFolder(path.parent) as folder:
            folder.remove_left()
            # matplotlib can write some formats only to a named file.
            with folder.temporary_name() as name:
                partial = path.with_name(name)
                if suffix == "png":
                    # matplotlib requires Pillow and writes images with it.
                    from PIL import Image

                    drawn = BytesIO()
                    figure.savefig(drawn, format="png", dpi=DOTS_PER_INCH, pil_kwargs={"compress_level": 1})
                    image = Image.open(drawn).convert("RGBA")
                    if np.asarray(image)[..., 3].min() == 255:
                        image = image.convert("RGB")
                        reduced = image.quantize(256, kmeans=1, dither=Image.Dither.NONE)
                        differs = np.abs(np.asarray(image, np.int16) - np.asarray(reduced.convert("RGB"))).max(axis=2)
                        image = reduced if (differs > _UNSEEN).mean() <= _FEW_PIXELS else image
                    image.save(partial, format="png", optimize=True, dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
                else:
                    figure.savefig(partial, format=suffix, dpi=DOTS_PER_INCH)
                folder.rename(name, folder, path.name)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose another path") from error
