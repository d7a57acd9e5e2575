"""Pictures as files: the suffix decides the format, and a file is whole or absent."""

from pathlib import Path
from typing import TYPE_CHECKING

from dsx.errors import InputError, StoreError, did_you_mean
from dsx.results.plot.layout import figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOTS_PER_INCH = 200


def image_format(path: str | Path) -> str:
    """Return the image format that the suffix of `path` stands for ("png").

    Raises InputError for a suffix that matplotlib cannot write.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    path = Path(path)
    formats = FigureCanvasBase.get_supported_filetypes()
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in formats:
        known = [f".{name}" for name in sorted(formats)]
        what = f"unknown image suffix {path.suffix!r}{did_you_mean(f'.{suffix}', known)}"
        raise InputError(f"{path}: {what} (known: {', '.join(known)})")
    return suffix


def save(ax: "Axes", path: str | Path) -> None:
    """Write the figure of `ax`; the suffix of `path` decides the format.

    Raises InputError for a suffix that matplotlib cannot write, StoreError for an unwritable path.
    """
    path = Path(path)
    figure = figure_of(ax)
    suffix = image_format(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        figure.savefig(partial, format=suffix, dpi=DOTS_PER_INCH)
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose another path") from error
    finally:
        if partial.is_file():
            partial.unlink()
