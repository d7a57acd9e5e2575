"""What a picture says: names and units of columns, values as text, the job of the rows and over what a point is best.

An axis of numbers has one unit, which its label names ("HBM capacity [GB]"). If each value has its own tick, as in a
heat map, the ticks name the units ("80 GB", "1.1 TB/s"). A setting (cluster, GPUs, batch, a what-if column) that has
one value in the rows is part of the job. One that has several, and is no axis, is among those over which a point is
the best. Every renderer takes its words from here.
"""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from dsx.config.what_if import varied_field
from dsx.errors import SpecError
from dsx.pictures.chosen_rows import Numbers, Value, settings
from dsx.plans.rules import DEGREES
from dsx.results.frames import Frame
from dsx.results.manifest import StatedCluster
from dsx.results.set_columns import COLUMNS, NEEDS
from dsx.text import DataFrame, printable
from dsx.units import counted, format_quantity, format_total

NOTHING = "no feasible candidate"  # the title of an empty picture

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


def unit_of(df: DataFrame, column: str) -> str:
    """Return the SI unit of a column, "" if it has none; of a merged frame without `attrs` as dsx knows it."""
    units = {stored.name: stored.unit for stored in COLUMNS} | df.attrs.get("units", {})
    if column not in units and "." in column:
        with suppress(SpecError):
            return varied_field(column).unit
    return units.get(column, "")


def words(column: str, unit: str = "") -> str:
    """Return a column's name as text, with its quantity instead of its unit: "step time", "HBM capacity"."""
    if column in _RATES:
        return _RATES[column]
    name = column.split(".", 1)[-1]
    if (axis := name.removesuffix("_nvs")) != name:
        return f"{words(axis)} in an {_WORDS['nvs']}"
    without_unit = name.removesuffix("_per_s" if unit == "1/s" else f"_{unit.lower()}") if unit else name
    text = " ".join(_WORDS.get(word, word) for word in re.split(r"[._]", without_unit))
    quantity = _QUANTITIES.get(unit, "")
    return text if without_unit == name or text.endswith(quantity) else f"{text} {quantity}"


def named(df: DataFrame, column: str) -> str:
    """Return the name of a column of a frame as text, as on its axis but without a unit."""
    return words(column, unit_of(df, column))


class AxisUnit(NamedTuple):
    """The unit of an axis that shows a column: its size in SI units, and the label that names it."""

    column: str
    size: float
    label: str

    def place(self, rows: DataFrame) -> Numbers:
        """Return where rows are on the axis, [n]."""
        return rows[self.column].to_numpy() / self.size


def axis_unit(df: DataFrame, column: str, values: Numbers) -> AxisUnit:
    """Return the largest unit that the smallest value reaches: of interest are the few fast or small rows."""
    unit = unit_of(df, column)
    text = words(column, unit)
    if column in _RATES or unit not in _SCALES:
        return AxisUnit(column, 1.0, f"{text} [{unit}]" if unit and column not in _RATES else text)
    size, name = _unit_step(unit, values)
    return AxisUnit(column, size, f"{text} [{name}]")


def _unit_step(unit: str, values: Numbers) -> tuple[float, str]:
    positive = values[np.isfinite(values) & (values > 0)]
    smallest = float(positive.min()) if len(positive) else 1.0
    return max((step for step in _SCALES[unit] if step[0] <= smallest), default=_SCALES[unit][0])


def name_text(name: str) -> str:
    """Return a name, possibly of several lines, as a picture shows it: matplotlib reads no formula in it."""
    return printable(name, keep="\n").replace("$", r"\$")


def value_texts(df: DataFrame, column: str, values: Sequence[Value]) -> list[str]:
    """Return values of a column as text, each with its unit: "80 GB", "1.1 TB/s", "4096", "8"."""
    unit = unit_of(df, column)
    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) < len(values):
        return [name_text(str(value)) for value in values]
    texts: list[str] = []
    for number in numbers:  # without trailing zeros, and with the sign for micro
        figure, _, name = format_quantity(number, unit).partition(" ")
        if "." in figure and "e" not in figure:
            figure = figure.rstrip("0").rstrip(".")
        texts.append(f"{figure} {'µs' if name == 'us' else name}".rstrip())
    if len(set(texts)) < len(set(values)):
        # With three digits some values would look equal.
        size, name = _unit_step(unit, np.asarray(numbers, np.float64)) if unit in _SCALES else (1.0, unit)
        texts = [f"{number / size:.10g} {name}".rstrip() for number in numbers]
    return texts


def quantity_texts(df: DataFrame, column: str, values: Numbers) -> list[str]:
    """Return values of a column with three digits, in the unit of their common axis: "265 s", "3.23 s"."""
    unit = unit_of(df, column)
    size, name = 1.0, _RATES.get(column, unit)
    if unit in _SCALES and column not in _RATES:
        size, name = _unit_step(unit, values)
    return [f"{three_digits(value / size)} {name}".rstrip() for value in values]


def three_digits(value: float) -> str:
    """Return "1.23", "45.6", "789", "12345"."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def job_text(df: DataFrame, axes: Collection[str] = ()) -> str:
    """Return the job of the rows without the settings that are `axes`: "gpt3-1t, 8,192 GPUs of b200-nvs8, ...".

    The tokens of the training are part of it if an axis depends on them; so is what the sweep left of its plans: the
    one strategy that it names, and the degrees that it fixes.
    """
    spec = df.attrs.get("spec", {})
    resolved = spec.get("resolved", {})
    job = {name: df[name].iloc[0] for name in _common_settings(df) if name not in axes}
    gpus = counted(int(job["num_gpus"]), "GPU") if "num_gpus" in job else ""
    labels = {file["name"]: StatedCluster.model_validate(file).label for file in resolved.get("clusters", ())}
    cluster = name_text(labels.get(job["cluster"], str(job["cluster"]))) if "cluster" in job else ""
    batch = counted(int(job["global_batch_size"]), "sequence") if "global_batch_size" in job else ""
    batch += f" of {counted(int(job['sequence_length']), 'token')}" if batch and "sequence_length" in job else ""
    tokens = spec.get("train_tokens")
    of_tokens = any("train_tokens" in NEEDS.get(axis, ()) for axis in axes)
    training = f"{format_total(tokens)} tokens in all" if tokens and of_tokens else ""
    hardware = [f"{named(df, name)} {value_texts(df, name, [value])[0]}" for name, value in job.items() if "." in name]
    strategies = spec.get("strategy") or []
    fixed = {name: values for name, values in (spec.get("fix") or {}).items() if name in DEGREES and name not in axes}
    single = len(strategies) == 1 and "strategy" not in axes
    restrictions = [f"strategy {name_text(str(strategies[0]))}"] if single else []
    restrictions += [f"{name}={values[0]}" for name, values in fixed.items() if len(values) == 1]
    only = f"only {' '.join(restrictions)}" if restrictions else ""
    machine = " of ".join(filter(None, (gpus, cluster)))
    model = name_text(resolved.get("model", {}).get("name", ""))
    return ", ".join(filter(None, (model, machine, batch, training, *hardware, only)))


def best_over(df: DataFrame, point: str, axes: Collection[str], best: str = "best") -> str:
    """Return over what a point with one value of `axes` is the best: "each point: the best feasible plan, and ..."."""
    common = _common_settings(df)
    varied = [name for name in settings(df.columns) if name not in (*common, *axes)]
    of_point = [name for name in axes if name in df.columns]
    points: Frame = df[of_point + varied].drop_duplicates()
    number = len(points[of_point].drop_duplicates())
    # What has one value at each point varies with it, and not beside it.
    several = [name for name in varied if len(points[[*of_point, name]].drop_duplicates()) > number]
    beside = f", and over {', '.join(named(df, name) for name in several)}" if several else ""
    return f"each {point}: the {best} feasible plan{beside}"


def _common_settings(df: DataFrame) -> list[str]:
    """Return the settings that have one value in all rows."""
    return [name for name in settings(df.columns) if len(df) and (df[name].array == df[name].iloc[0]).all()]
