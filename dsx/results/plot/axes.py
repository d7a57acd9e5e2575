"""Axes: the name of a column in words, the unit that suits its values, and their scales and ticks.

An axis of numbers has one unit, which its label names ("HBM capacity [GB]"). If each value has its own tick, as in a
heat map, the ticks name the units ("80 GB", "1.1 TB/s").
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.errors import SpecError
from dsx.printable import printable
from dsx.results.schema import COLUMNS
from dsx.spec.what_if import field
from dsx.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axis import Axis

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
            return field(column).unit
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
