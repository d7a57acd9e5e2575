"""Axes of pictures: names, units, scales, marks, titles, sizes, and the files that pictures are written to.

Marks that distinguish categories without colour: shape, lightness and size of markers, and dashes of lines.

Axes: the name of a column in words, the unit that suits its values, and their scales and ticks.

An axis of numbers has one unit, which its label names ("HBM capacity [GB]"). If each value has its own tick, as in a
heat map, the ticks name the units ("80 GB", "1.1 TB/s").

Layout: axes of a size that suits the data, and labels that do not overlap.

matplotlib shrinks axes until all labels and legends fit on the figure. Here a new figure grows instead, so that long
names do not take room from the data.

Titles: what a picture shows, of which job, and over what each of its points is the best.

A setting (cluster, GPUs, batch, a what-if column) that has one value in the rows is part of the job. One that has
several, and is no axis of the picture, is among those over which a point is the best.

Write pictures to files: the suffix decides the format, and a file is either complete or absent.

A PNG has a palette of 256 colours: charts look the same and take at most half the bytes.
"""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.config.documents import shown
from dsx.config.sweep_file import OF_TOKENS
from dsx.config.what_if import varied_field
from dsx.errors import InputError, SpecError, StoreError, did_you_mean, file_path, wrong
from dsx.files import OpenFolder
from dsx.pictures.chosen_rows import settings
from dsx.plans.rules import DEGREES
from dsx.results.manifest import StatedCluster
from dsx.results.schema import COLUMNS
from dsx.text import printable
from dsx.units import counted, format_quantity, format_total

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text


# With more categories a reader cannot find one.
MAX_CATEGORIES = 40

_MARKERS = "osD^vPX*<>ph"
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def marks(count: int, largest: float = 10.0) -> list[dict[str, Any]]:
    """Return the markers of `count` categories, as keywords of matplotlib's `plot`.

    Their sizes decrease from `largest` points to half of it: strategies often agree on a plan, and a marker must not
    hide the one below it.
    """
    import matplotlib as mpl

    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.9, count))
    sizes = np.linspace(largest, largest / 2, count) if count != 1 else [0.65 * largest]
    edge = {"markeredgecolor": "black", "markeredgewidth": 0.6}
    return [
        {"marker": _MARKERS[i % len(_MARKERS)], "color": tuple(colour), "markersize": float(size)} | edge
        for i, (colour, size) in enumerate(zip(colours, sizes, strict=True))
    ]


def dashes(count: int) -> list[Any]:
    """Return the line styles of `count` categories; combined with the markers they repeat after 60."""
    return [_DASHES[i % len(_DASHES)] for i in range(count)]


Numbers = NDArray[Any]

# On a linear axis a wider range would hide the small values.
LINEAR_RANGE = 30.0

# The title of an empty picture.
NOTHING = "no feasible candidate"

_SI = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
_SCALES = {
    "s": ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days")),
    "days": ((1.0, "days"),),
    "bytes": ((1.0, "bytes"), *((size, f"{prefix}B") for size, prefix in _SI[1:])),
    "bytes/s": tuple((size, f"{prefix}B/s") for size, prefix in _SI),
    "flop/s": tuple((size, f"{prefix}FLOP/s") for size, prefix in _SI),
    "h": ((1.0, "h"), (1e3, "thousand h"), (1e6, "million h")),
    "USD": ((1.0, "USD"), (1e3, "thousand USD"), (1e6, "million USD")),
    "kWh": ((1.0, "kWh"), (1e3, "MWh"), (1e6, "GWh")),
    "1/s": ((1.0, "1/s"), (1e3, "thousand/s"), (1e6, "million/s")),
}
# The quantity of a column whose name ends in its unit.
_QUANTITIES = {"s": "time", "bytes": "memory", "days": "time"}
_WORDS = {"hbm": "HBM", "nvs": "NVLink domain", "net": "network", "mfu": "MFU", "comm": "communication"}
_WORDS |= {"num": "number of", "gpu": "GPU", "gpus": "GPUs", "flops": "FLOP/s"}
_WORDS |= {axis: axis.upper() for axis in ("tp", "tp2", "cp", "ep", "pp", "dp", "vpp")}
# Rates whose name is their unit.
_RATES = {"tokens_per_s_per_gpu": "tokens/s/GPU"}


def unit_of(df: "pd.DataFrame", column: str) -> str:
    """Return the SI unit of a column, "" if it has none.

    A frame that is merged from several has no `attrs`; the columns of dsx are known without.
    """
    units = {known.name: known.unit for known in COLUMNS} | df.attrs.get("units", {})
    if column not in units and "." in column:
        with suppress(SpecError):
            return varied_field(column).unit
    return units.get(column, "")


def words(column: str, unit: str = "") -> str:
    """Return a column's name as text, with its quantity instead of its unit.

    `step_time_s` is "step time", `peak_bytes` "peak memory", `device.hbm_capacity` "HBM capacity", `tp_nvs` "TP in an
    NVLink domain".
    """
    if column in _RATES:
        return _RATES[column]
    name = column.split(".", 1)[-1]
    if (axis := name.removesuffix("_nvs")) != name:
        return f"{words(axis)} in an {_WORDS['nvs']}"
    without_unit = name.removesuffix("_per_s" if unit == "1/s" else f"_{unit.lower()}") if unit else name
    text = " ".join(_WORDS.get(word, word) for word in re.split(r"[._]", without_unit))
    quantity = _QUANTITIES.get(unit, "")
    return text if without_unit == name or text.endswith(quantity) else f"{text} {quantity}"


def named(df: "pd.DataFrame", column: str) -> str:
    """Return the name of a column of a frame as text, as on its axis but without a unit."""
    return words(column, unit_of(df, column))


def scale_of(df: "pd.DataFrame", column: str, values: Numbers) -> tuple[float, str]:
    """Return the unit that suits `values` of a column, as its size in SI units, and a label that names it.

    It is the largest unit that the smallest value reaches, since the rows of interest are the few fast or small ones.
    """
    unit = unit_of(df, column)
    text = words(column, unit)
    if column in _RATES:
        return 1.0, text
    if unit not in _SCALES:
        return 1.0, f"{text} [{unit}]" if unit else text
    size, name = _step(unit, values)
    return size, f"{text} [{name}]"


def _step(unit: str, values: Numbers) -> tuple[float, str]:
    positive = values[np.isfinite(values) & (values > 0)]
    smallest = float(positive.min()) if len(positive) else 1.0
    return max((step for step in _SCALES[unit] if step[0] <= smallest), default=_SCALES[unit][0])


def label_axis(axis: "Axis", df: "pd.DataFrame", column: str, values: Numbers) -> float:
    """Label an axis for `values` of a column; return the size in SI units of its unit."""
    size, text = scale_of(df, column, values)
    axis.set_label_text(text)
    return size


def value_texts(df: "pd.DataFrame", column: str, values: Sequence[Any]) -> list[str]:
    """Return values of a column as text, each with its unit: "80 GB", "1.1 TB/s", "4096", "8"."""
    unit = unit_of(df, column)
    if any(isinstance(value, str) for value in values):
        return [name_text(str(value)) for value in values]
    texts = [_in_print(format_quantity(value, unit)) for value in values]
    if len(set(texts)) < len(set(values)):
        # With three digits some values would look equal.
        size, name = _step(unit, np.asarray(values, np.float64)) if unit in _SCALES else (1.0, unit)
        texts = [f"{value / size:.10g} {name}".rstrip() for value in values]
    return texts


def name_text(name: str) -> str:
    """Return a name, possibly of several lines, as a picture shows it: matplotlib reads no formula in it."""
    return printable(name, keep="\n").replace("$", r"\$")


def quantity_texts(df: "pd.DataFrame", column: str) -> list[str]:
    """Return the values of a column with three digits, in the unit of their common axis: "265 s", "3.23 s"."""
    values = df[column].to_numpy(np.float64)
    size, name = _unit_for(df, column, values)
    return [f"{three_digits(value / size)} {name}".rstrip() for value in values]


def quantity_text(df: "pd.DataFrame", column: str, value: float) -> str:
    """Return one value of a column with three digits and its unit: "7.35 days"."""
    size, name = _unit_for(df, column, np.array([value]))
    return f"{three_digits(value / size)} {name}".rstrip()


def _unit_for(df: "pd.DataFrame", column: str, values: Numbers) -> tuple[float, str]:
    unit = unit_of(df, column)
    return _step(unit, values) if unit in _SCALES and column not in _RATES else (1.0, _RATES.get(column, unit))


def three_digits(value: float) -> str:
    """Return "1.23", "45.6", "789", "12345"."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def _in_print(text: str) -> str:
    """Return a quantity without trailing zeros, and with the sign for micro."""
    number, _, unit = text.partition(" ")
    if "." in number and "e" not in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number} {'µs' if unit == 'us' else unit}".rstrip()


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
    for most, steps in ((1.3, (1, 1.5, 2, 3, 5, 7)), (3.0, (1, 2, 5)), (4.0, (1, 3)), (np.inf, (1,))):
        if decades < most:
            axis.set_major_locator(LogLocator(subs=steps))
            break
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
        """Return the layout of a given axis, which keeps its size, or of a new axis of this size in inches.

        Raises InputError if the axis was removed from its figure.
        """
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
        """Set `texts` as the tick labels at `places`, ascending; return whether they were rotated.

        If labels would overlap they are rotated, if `turn` allows it, and labels that still overlap are left out.
        """
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
    """Write above the upper axis what a picture shows, and below it in small print the `lines`, wrapped.

    `above` are points between the axis and the lowest line that a legend takes.
    """
    ax = layout.axes[0]
    width = layout.room(ax)[0]
    small = [part for line in lines if line for part in wrap(line, max(int(width / (_LETTER * _SMALL_FONT)), 12))]
    place: dict[str, Any] = {
        "xy": (0.0, 1.0),
        "xycoords": "axes fraction",
        "textcoords": "offset points",
        "va": "bottom",
    }
    style: dict[str, Any] = {"fontsize": _SMALL_FONT, "color": "0.25", "linespacing": _LINE, "annotation_clip": False}
    if small:
        ax.annotate("\n".join(small), gid="job", **place, xytext=(0.0, above + _TITLE_GAP), **style)
    pad = above + _TITLE_GAP + _LINE * _SMALL_FONT * len(small) + 4.0 * bool(small)
    headline = "\n".join(wrap(shows, max(int(width / (_LETTER * _FONT)), 12)))
    ax.set_title(headline, loc="left", fontsize=_FONT, pad=pad)


def job_text(df: "pd.DataFrame", axes: Collection[str] = ()) -> str:
    """Return the job of the rows without the settings that are `axes`: "gpt3-1t, 8,192 GPUs of b200-nvs8, ...".

    The tokens of the training are part of it if an axis depends on them.
    """
    resolved = df.attrs.get("spec", {}).get("resolved", {})
    model = resolved.get("model", {}).get("name", "")
    one = {name: df[name].iloc[0] for name in _settled(df) if name not in axes}
    gpus = counted(int(one["num_gpus"]), "GPU") if "num_gpus" in one else ""
    labels = {stated["name"]: StatedCluster.model_validate(stated).label for stated in resolved.get("clusters", ())}
    cluster = name_text(labels.get(one["cluster"], str(one["cluster"]))) if "cluster" in one else ""
    batch = counted(int(one["global_batch_size"]), "sequence") if "global_batch_size" in one else ""
    batch += f" of {counted(int(one['sequence_length']), 'token')}" if batch and "sequence_length" in one else ""
    tokens = df.attrs.get("spec", {}).get("train_tokens")
    whole = f"{format_total(tokens)} tokens in all" if tokens and {*OF_TOKENS} & {*axes} else ""
    hardware = [f"{named(df, name)} {value_texts(df, name, [value])[0]}" for name, value in one.items() if "." in name]
    machine = " of ".join(text for text in (gpus, cluster) if text)
    return ", ".join(text for text in (name_text(model), machine, batch, whole, *hardware, _only(df, axes)) if text)


def _only(df: "pd.DataFrame", axes: Collection[str]) -> str:
    """Return what the sweep left of its plans: the one strategy that it names, and the degrees that it fixes."""
    spec = df.attrs.get("spec", {})
    strategies = spec.get("strategy") or []
    stated = [f"strategy {name_text(str(strategies[0]))}"] if len(strategies) == 1 and "strategy" not in axes else []
    fixed = {name: values for name, values in (spec.get("fix") or {}).items() if name in DEGREES and name not in axes}
    stated += [f"{name}={values[0]}" for name, values in fixed.items() if len(values) == 1]
    return f"only {' '.join(stated)}" if stated else ""


def best_over(df: "pd.DataFrame", point: str, axes: Collection[str], best: str = "best") -> str:
    """Return over what each point is the best: "each point: the best feasible plan, and over HBM bandwidth".

    `axes` are the columns of which each point has one value.
    """
    others = [name for name in settings(df.columns) if name not in (*_settled(df), *axes)]
    own = [name for name in axes if name in df.columns]
    points: Any = df[own + others].drop_duplicates()
    # What has one value at each point varies with it, and not beside it.
    several = [
        name for name in others if len(points[[*own, name]].drop_duplicates()) > len(points[own].drop_duplicates())
    ]
    beside = f", and over {', '.join(named(df, name) for name in several)}" if several else ""
    return f"each {point}: the {best} feasible plan{beside}"


def _settled(df: "pd.DataFrame") -> list[str]:
    """Return the settings that have one value in all rows."""
    return [name for name in settings(df.columns) if len(df) and (df[name].array == df[name].iloc[0]).all()]


DOTS_PER_INCH = 200
# A palette is invisible if at most this share of the pixels (those at the edges of letters) differ by more than this
# much of 255 in red, green or blue.
_FEW_PIXELS, _UNSEEN = 1e-3, 16


def image_format(path: str | Path) -> str:
    """Return the image format of the suffix of `path` ("png").

    Raises InputError for a suffix that matplotlib cannot write, StoreError for a path without a folder, or that is one.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    path = file_path("path", path)
    formats = FigureCanvasBase.get_supported_filetypes()
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in formats:
        known = [f".{name}" for name in sorted(formats)]
        what = f"unknown image suffix {path.suffix!r}{did_you_mean(f'.{suffix}', known)}"
        raise InputError(f"{path}: {what} (known: {', '.join(known)})")
    if not path.absolute().parent.is_dir():
        raise StoreError(f"{path}: {shown(path.parent)} is no folder; make it, or choose another file")
    if path.is_dir():
        raise StoreError(f"{path}: is a folder; name a file in it")
    return suffix


def save(ax: "Axes", path: str | Path) -> None:
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
                    partial.write_bytes(_png(figure))
                else:
                    figure.savefig(partial, format=suffix, dpi=DOTS_PER_INCH)
                folder.rename(name, folder, path.name)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose another path") from error


def _png(figure: "Figure") -> bytes:
    # matplotlib requires Pillow and writes images with it.
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS_PER_INCH, pil_kwargs={"compress_level": 1})
    image = Image.open(drawn).convert("RGBA")
    if np.asarray(image)[..., 3].min() == 255:
        image = image.convert("RGB")
        few = image.quantize(256, kmeans=1, dither=Image.Dither.NONE)
        differs = np.abs(np.asarray(image, np.int16) - np.asarray(few.convert("RGB"))).max(axis=2)
        if (differs > _UNSEEN).mean() <= _FEW_PIXELS:
            image = few
    written = BytesIO()
    image.save(written, format="png", optimize=True, dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
    return written.getvalue()
