"""Titles: what a picture shows, of which job, and over what each of its points is the best.

A setting (cluster, GPUs, batch, a what-if column) that has one value in the rows is part of the job. One that has
several, and is no axis of the picture, is among those over which a point is the best.
"""

from collections.abc import Collection, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from dsx.results.plot.axes import name_text, named, value_texts
from dsx.results.plot.layout import Layout
from dsx.results.plot.selection import settings
from dsx.results.stated_sweep import StatedCluster
from dsx.space.limits import DEGREES
from dsx.spec.run_columns import OF_TOKENS
from dsx.units import counted, format_total

if TYPE_CHECKING:
    import pandas as pd

_FONT, _SMALL_FONT = 9.5, 8.0  # points
_LETTER = 0.52  # the mean width of a letter, in heights of the font
_LINE = 1.3  # the height of a line, likewise
_GAP = 5.0  # points between the axis and the lowest line


def label_picture(layout: Layout, shows: str, lines: Sequence[str], above: float = 0.0) -> None:
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
        ax.annotate("\n".join(small), gid="job", **place, xytext=(0.0, above + _GAP), **style)
    pad = above + _GAP + _LINE * _SMALL_FONT * len(small) + 4.0 * bool(small)
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
