"""Figures of matplotlib: they grow with their labels, and have ticks, marks, titles; and pictures as files.

matplotlib shrinks axes until all labels and legends fit on the figure. Here a new figure grows instead, so that long
names do not take room from the data. Marks distinguish categories without colour: shape, lightness and size of markers,
and dashes of lines.

A file is either complete or absent, and its suffix decides its format. A PNG has a palette of 256 colours: charts look
the same and take at most half the bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.config.search_path import shown
from dsx.errors import InputError, StoreError, did_you_mean, file_path, wrong
from dsx.files import OpenFolder
from dsx.pictures.shown_rows import Numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.typing import LineStyleType
else:
    Axes = object  # matplotlib is loaded where a picture is drawn


MAX_CATEGORIES = 40  # with more of them a reader cannot find one
LINEAR_RANGE = 30.0  # on a linear axis a wider range would hide the small values
Style = dict[str, Any]  # keywords of functions of matplotlib
# A legend right of the axes, and one above them at the left.
BESIDE: Style = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "frameon": False, "fontsize": "small"}
ABOVE = BESIDE | {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "borderpad": 0.2}
LEGEND_LINE = 15.0  # points: the height of a line of a legend above the axes

_MARKERS = "osD^vPX*<>ph"
_DASHES: tuple["LineStyleType", ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def marks(count: int, largest: float = 10.0) -> list[Style]:
    """Return markers as keywords of `plot`, each smaller than the last: none hides an earlier one at the same point."""
    import matplotlib as mpl

    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.9, count))
    sizes = np.linspace(largest, largest / 2, count) if count != 1 else [0.65 * largest]
    edge = {"markeredgecolor": "black", "markeredgewidth": 0.6}
    return [
        {"marker": _MARKERS[i % len(_MARKERS)], "color": tuple(colour), "markersize": float(size)} | edge
        for i, (colour, size) in enumerate(zip(colours, sizes, strict=True))
    ]


def dashes(count: int) -> list["LineStyleType"]:
    """Return the line styles of `count` categories; combined with the markers they repeat after 60."""
    return [_DASHES[i % len(_DASHES)] for i in range(count)]


def finite(values: Numbers) -> Numbers:
    """Return the finite ones of `values`."""
    return values[np.isfinite(values)]


def is_wide(values: Numbers, linear_range: float = LINEAR_RANGE) -> bool:
    """Return whether the range of positive values needs a logarithmic axis."""
    numbers = finite(values)
    return len(numbers) > 0 and numbers.min() > 0 and numbers.max() > linear_range * numbers.min()


def log_ticks(axis: "Axis", values: Numbers) -> None:
    """Set as many labels on a logarithmic axis as it has room for."""
    from matplotlib.ticker import LogLocator, NullFormatter

    numbers = finite(values)
    decades = np.log10(numbers.max() / numbers.min())
    ranges = ((1.3, (1, 1.5, 2, 3, 5, 7)), (3.0, (1, 2, 5)), (4.0, (1, 3)), (np.inf, (1,)))
    axis.set_major_locator(LogLocator(subs=next(steps for most, steps in ranges if decades < most)))
    axis.set_minor_formatter(NullFormatter())


def plain_numbers(axis: "Axis") -> None:
    """Write the numbers of an axis in full, not as powers and without a common factor."""
    from matplotlib.ticker import FuncFormatter, ScalarFormatter

    if axis.get_scale() == "log":
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    else:
        formatter = ScalarFormatter(useOffset=False)
        formatter.set_scientific(False)
        axis.set_major_formatter(formatter)


_LABEL_GAP = 3.0  # points between labels


def figure_of(ax: "Axes") -> "Figure":
    """Return the figure of an axis; InputError if the axis was removed from its figure, or is none."""
    from matplotlib.axes import Axes as AnyAxes

    if not isinstance(ax, AnyAxes):
        raise wrong("ax", ax, "an axis of matplotlib is wanted, as the functions of dsx.plot return it")
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("this axis is not on a figure, so nothing can be drawn or saved")
    return figure


def text_sizes(texts: Sequence["Text"]) -> list[tuple[float, float]]:
    """Return the width and height of each text in points, with its rotation."""
    from matplotlib.backends.backend_agg import RendererAgg

    # Without this a text makes a renderer as large as its figure.
    renderer = RendererAgg(1, 1, 72)
    boxes = [text.get_window_extent(renderer, dpi=72) for text in texts]
    return [(box.width, box.height) for box in boxes]


@dataclass(frozen=True)
class FigureLayout:
    """Axes of a figure, one below the other, and their sizes; `size` is None if their sizes must not change."""

    axes: "list[Axes]"
    size: tuple[float, tuple[float, ...]] | None  # their width, and the height of each, in inches

    @classmethod
    def of(cls, ax: "Axes | None", width: float, height: float) -> "FigureLayout":
        """Return the layout of an axis, which keeps its size, or of a new one of this size in inches."""
        if ax is None:
            return cls.new(width, height)
        figure_of(ax)
        return cls([ax], None)

    @classmethod
    def new(cls, width: float, *heights: float) -> "FigureLayout":
        """Return axes on a new figure, with a common x axis; `settle` gives them these sizes, in inches."""
        from matplotlib.figure import Figure

        # Plenty of room for labels and legends at first: matplotlib does not lay out a figure that is too small.
        figure = Figure(figsize=(width + 20.0, sum(heights) + 20.0), layout="constrained")
        axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
        return cls(list(axes[:, 0]), (width, heights))

    def room(self, ax: "Axes") -> tuple[float, float]:
        """Return the final width and height of an axis, in points."""
        if self.size is not None:
            return 72 * self.size[0], 72 * self.size[1][self.axes.index(ax)]
        figure = figure_of(ax)
        figure.draw_without_rendering()
        box = ax.get_window_extent()
        return 72 * box.width / figure.dpi, 72 * box.height / figure.dpi

    def settle(self) -> None:
        """Give a new figure the size that its axes need, with all their labels and legends."""
        if self.size is None:
            return
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        figure = figure_of(self.axes[0])
        engine = ConstrainedLayoutEngine()
        # Twice, because the new size of the axes may change their ticks.
        for _ in range(2):
            engine.execute(figure)
            boxes = [ax.get_window_extent() for ax in self.axes]
            width = figure.get_figwidth() - boxes[0].width / figure.dpi + self.size[0]
            height = figure.get_figheight() - sum(box.height for box in boxes) / figure.dpi + sum(self.size[1])
            figure.set_size_inches(width, height)

    def without_overlap(self, axis: "Axis", places: Sequence[float], labels: Sequence["Text"]) -> set[int]:
        """Return which of the labels at `places` can stay without touching an earlier one that stays."""
        ax = next(ax for ax in self.axes if axis in (ax.xaxis, ax.yaxis))
        along = 0 if axis is ax.xaxis else 1
        # The position on the axis, from 0 to 1, does not depend on the size of the axis.
        points = ax.transData.transform([(place, place)[:: 1 - 2 * along] for place in places])
        shares = ax.transAxes.inverted().transform(points)[:, along] if len(points) else np.array([])
        stay: set[int] = set()
        end = -np.inf
        for i, (middle, size) in enumerate(zip(shares * self.room(ax)[along], text_sizes(labels), strict=True)):
            if middle - size[along] / 2 >= end:
                stay.add(i)
                end = middle + size[along] / 2 + _LABEL_GAP
        return stay

    def fit_ticks(self, axis: "Axis", places: Sequence[float], texts: Sequence[str], turn: bool = True) -> bool:
        """Set tick labels at ascending places, rotated if they overlap and may `turn`; return whether they were."""
        axis.set_ticks(list(places), labels=list(texts))
        fitting = self.without_overlap(axis, places, axis.get_ticklabels())
        turned = turn and len(fitting) < len(texts)
        if turned:
            axis.set_tick_params(labelrotation=90)
            fitting = self.without_overlap(axis, places, axis.get_ticklabels())
        axis.set_ticklabels([text if i in fitting else "" for i, text in enumerate(texts)])
        return turned


_FONT, _SMALL_FONT = 9.5, 8.0  # points
_LETTER = 0.52  # the mean width of a letter, in heights of the font
_LINE = 1.3  # the height of a line, likewise
_TITLE_GAP = 5.0  # points between the axis and the lowest line


def label_picture(layout: FigureLayout, shows: str, lines: Sequence[str], above: float = 0.0) -> None:
    """Write what a picture shows above it, then `lines` in small print, `above` points over the upper axis."""
    ax = layout.axes[0]
    width = layout.room(ax)[0]
    small = [part for line in lines if line for part in wrap(line, max(int(width / (_LETTER * _SMALL_FONT)), 12))]
    place: Style = {"xy": (0.0, 1.0), "xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
    style: Style = {"fontsize": _SMALL_FONT, "color": "0.25", "linespacing": _LINE, "annotation_clip": False}
    if small:
        ax.annotate("\n".join(small), gid="job", **place, xytext=(0.0, above + _TITLE_GAP), **style)
    pad = above + _TITLE_GAP + _LINE * _SMALL_FONT * len(small) + 4.0 * bool(small)
    headline = "\n".join(wrap(shows, max(int(width / (_LETTER * _FONT)), 12)))
    ax.set_title(headline, loc="left", fontsize=_FONT, pad=pad)


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
