"""Quantities for people: from a string with a unit to an SI float, and back.

Users write every quantity with its unit; the rest of dsx has plain floats in bytes, bytes/s, FLOP/s, seconds, watts or
dollars a second.
A bare number is an error: "900" for a bandwidth could be wrong by a factor of 1e9 or of 8, and no later check could
find it. Prefixes are decimal (GB = 1e9 bytes) or binary (GiB = 2**30); a small b is a bit, which only rates may use.

Not modelled: arithmetic with units.
"""

import decimal
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Literal, get_args

from dsx.errors import SpecError, UnitError, did_you_mean
from dsx.text import whole_number_text

Dimension = Literal["bytes", "bytes/s", "flop/s", "s", "W", "USD/s"]

# The strings that are numbers, here and in YAML.
INTEGER = r"[-+]?[0-9]+(?:_[0-9]+)*"
# A string matches in one way only; ambiguous patterns would take quadratic time for long strings.
REAL = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"

_QUANTITY = re.compile(rf"({REAL})\s*(.*)", re.DOTALL)

_DECIMAL = {prefix: Decimal(1000) ** i for i, prefix in enumerate(["", "k", "M", "G", "T", "P", "E"])}
_BINARY = {prefix: Decimal(1024) ** i for i, prefix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)}
_MICRO = dict.fromkeys(("us", "\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s"), "1e-6")
_DAY = dict.fromkeys(("d", "day", "days"), "86400")
_TIME = {"s": "1", "ms": "1e-3", **_MICRO, "ns": "1e-9", "min": "60", "h": "3600", **_DAY}
_FLOPS = ("FLOP/s", "FLOPs/s", "FLOPS", "flop/s")

# The factor to SI is a Decimal, so that "2.5 us" is the float nearest to 2.5e-6, without a rounding error.
_UNITS: dict[str, dict[str, Decimal]] = {
    "bytes": {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()},
    "bytes/s": {f"{p}B/s": f for p, f in (_DECIMAL | _BINARY).items()}
    | {f"{p}{bit}": f / 8 for p, f in _DECIMAL.items() for bit in ("b/s", "bit/s", "bps")},
    "flop/s": {f"{p}{name}": f for p, f in _DECIMAL.items() for name in _FLOPS},
    "s": {unit: Decimal(factor) for unit, factor in _TIME.items()},
    "W": {"W": Decimal(1), "kW": Decimal(1000)},
    "USD/s": {f"USD/{unit}": 1 / Decimal(_TIME[unit]) for unit in ("h", "s", "d")},
}
# Units in messages. Times are of kernels and of failures, so no single unit fits any of them.
_EXAMPLES = {"bytes": ["GB"], "bytes/s": ["GB/s"], "flop/s": ["TFLOP/s"], "s": ["us", "s", "h"], "W": ["W"]}
_EXAMPLES |= {"USD/s": ["USD/h"]}
_EXAMPLE_NUMBER = {"USD/s": "2.5"}

# Units of results, smallest first.
_SHOWN: dict[str, list[str]] = {
    "bytes": [f"{p}B" for p in _DECIMAL],
    "bytes/s": [f"{p}B/s" for p in _DECIMAL],
    "flop/s": [f"{p}FLOP/s" for p in _DECIMAL],
    "s": ["ns", "us", "ms", "s"],
    "W": ["W", "kW"],
    "USD/s": ["USD/h"],
}


def parse_quantity(text: object, dimension: Dimension) -> float:
    """Return `text`, such as "900 GB/s", in the SI unit that `dimension` names.

    Raises UnitError for a bare number, an unknown unit, and a unit of another dimension.
    """
    example = f"a quantity in {dimension}, such as {_examples(dimension, _EXAMPLE_NUMBER.get(dimension, '80'))}"
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UnitError(f"{text!r} is not {example}")
    written = whole_number_text(text) if isinstance(text, int) else str(text)
    match = _QUANTITY.fullmatch(written.strip())
    if match is None:
        raise UnitError(f"{written!r} does not start with a number: expected {example}")
    number, unit = match[1], match[2]
    if not unit:
        raise UnitError(f"{text!r} has no unit: write for example {_with_unit(number, dimension)}")
    if (factor := _UNITS[dimension].get(unit)) is None:
        raise UnitError(f"{text!r}: {_wrong_unit(number, unit, dimension)}")
    try:
        value = float(Decimal(number) * factor)
    except decimal.DecimalException:
        value = math.inf
    if not math.isfinite(value):
        raise UnitError(f"{text!r} is too large for {example}")
    return value


def stated_quantity(text: str) -> tuple[float, Dimension] | None:
    """Return a quantity with a space before its unit ("1d" is a strategy), and its dimension; else None."""
    for dimension in get_args(Dimension) if " " in text else ():
        with suppress(UnitError):
            return parse_quantity(text, dimension), dimension
    return None


WHOLE_NUMBER = "a whole number, as in 512"  # what may be wanted of a number
SHARE = "a share from 0 to 1, as 0.1 for 10 %"

_THOUSANDS = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")  # with commas between them


def parse_number(text: object, expected: str = "a finite number") -> int | float:
    """Return `text` as a number: "1e12", "4_096", " 0.8"; an int or float is returned as it is.

    Raises SpecError, which says what is `expected`, for anything else, infinities and NaN included. The caller checks
    numbers for what is wanted of them.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if isinstance(text, float) and math.isfinite(text):
        return text
    if isinstance(text, str):
        stripped = text.strip()
        # int() raises ValueError for thousands of digits.
        if re.fullmatch(INTEGER, stripped) and len(stripped) < 100:
            return int(stripped)
        if re.fullmatch(REAL, stripped) and math.isfinite(float(stripped)):
            return float(stripped)
        if len(stripped) < 100 and _THOUSANDS.fullmatch(stripped):
            raise SpecError(f"{text!r} is not {expected}: leave out the comma, as in {stripped.replace(',', '')}")
    raise SpecError(f"{text!r} is not {expected}")


_MULTIPLES = {"k": Decimal(10**3), "M": Decimal(10**6), "B": Decimal(10**9), "T": Decimal(10**12)}


_MOST_BITS = 1023  # of a whole number that a float holds


def parse_total(text: object) -> int | float:
    """Return a large number without a unit, as people write tokens and money: "15T", "1.5 B", "600k", "5e6".

    The suffixes are k or K, M, B and T, for 10^3, 10^6, 10^9 and 10^12. Raises SpecError for anything else.
    """
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or not match[2] or match[2].startswith(","):
        number = parse_number(text, "a number, as in 5e6 or 15T")
        if isinstance(number, int) and number.bit_length() > _MOST_BITS:
            raise SpecError(f"{whole_number_text(number)} is not a number that counts anything")
        return number
    factor = _MULTIPLES.get("k" if match[2] == "K" else match[2])
    if factor is None:
        near = next((name for name in _MULTIPLES if name.lower() == match[2].lower()), match[2])
        hint = did_you_mean(near, _MULTIPLES)
        raise SpecError(f"{text!r}: unknown suffix {match[2]!r}{hint} (known: k, M, B and T, as in 15T for 15e12)")
    value = float(Decimal(match[1]) * factor)
    if not math.isfinite(value):
        raise SpecError(f"{text!r} is not a finite number")
    return int(value) if value.is_integer() and value < 2**53 else value


def format_total(value: float) -> str:
    """Return a large number that somebody stated, with up to three digits and a suffix: "15 T", "2.5 M", "512"."""
    factor, suffix = scale_of_total(value)
    return f"{value / factor:.3g}{suffix}"


def scale_of_total(value: float) -> tuple[float, str]:
    """Return the multiple that suits a large number, and the text of its suffix: (1e12, " T"), (1.0, "")."""
    scales = ((float(size), f" {name}") for name, size in reversed(_MULTIPLES.items()))
    return next((scale for scale in scales if value >= 0.9995 * scale[0]), (1.0, ""))


LARGEST_COUNT = 2**31 - 1  # result columns hold 32-bit integers


def parse_count(text: object) -> int:
    """Return a whole number from 1 to `LARGEST_COUNT`, "1e3" but not "1.5"; SpecError for anything else.

    Nor is "8k", which some mean as 8000 and some as 8192.
    """
    either = _with_either_suffix(text) if isinstance(text, str) else ()
    if either and either[0] > LARGEST_COUNT:
        raise SpecError(f"{text!r} is not a whole number from 1 to {LARGEST_COUNT}")
    if isinstance(text, str) and (numbers := written_out(text)):
        raise SpecError(f"{text!r} is not {WHOLE_NUMBER}: write {numbers}")
    number = parse_number(text, WHOLE_NUMBER)
    if number != int(number):
        raise SpecError(f"{number!r} is not a whole number")
    if not 1 <= number <= LARGEST_COUNT:
        raise SpecError(f"{whole_number_text(int(number))} is not a whole number from 1 to {LARGEST_COUNT}")
    return int(number)


def written_out(text: str) -> str:
    """Return the whole numbers that a count with a suffix may mean, "8000 or 8192" for "8k"; empty for other texts."""
    either = _with_either_suffix(text)
    are_counts = either and all(1 <= number == int(number) for number in either)
    return f"{either[0]:.0f} or {either[1]:.0f}" if are_counts else ""


def _with_either_suffix(text: str) -> tuple[Decimal, ...]:
    """Return a number whose suffix may be a power of 1000 or of 1024, both ways; nothing for other texts."""
    match = re.fullmatch(r"\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*([kKMBT])\s*", text)
    if match is None:
        return ()
    power = "kMBT".index(match[2].replace("K", "k")) + 1
    return tuple(Decimal(match[1]) * base**power for base in (1000, 1024))


def parse_share(value: object) -> float:
    """Return a share, a number from 0 to 1; raises SpecError for anything else."""
    number = parse_number(value, SHARE)
    if not 0 <= number <= 1:
        raise SpecError(f"{number:g} is not {SHARE}")
    return number


def counted(number: float, noun: str) -> str:
    """Return "1 plan", "2,027 plans", "0.5 days"."""
    return f"{number:{',' if isinstance(number, int) else ',g'}} {noun}{'' if number == 1 else 's'}"


def listed(numbers: Sequence[int], noun: str) -> str:
    """Return "1 GPU", "8, 1,024 GPUs"."""
    return f"{', '.join(f'{number:,}' for number in numbers)} {noun}{'' if list(numbers) == [1] else 's'}"


def format_quantity(value: float, unit: str) -> str:
    """Return `value`, in the SI `unit`, for people: three digits and a suitable prefix ("65.7 GB", "3.00 s").

    For a unit without prefixes ("days", "1/s"), large numbers have all their digits. A whole number without a unit
    (unit "") has all its digits, as in plans.
    """
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if not unit:
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.3g}"
    if unit not in _SHOWN:
        return f"{value:,.0f} {unit}" if 999.5 <= abs(value) < 1e15 else f"{_digits(value)} {unit}"
    number, name = _scaled(value, unit)
    in_bytes = unit == "bytes" and name == "B" and number.is_integer()  # 8 B, not 8.00 B
    return f"{number:.0f} {name}" if in_bytes else f"{_digits(number)} {name}"


def exact_quantity(value: float, unit: str) -> str:
    """Return `value`, in the SI `unit`, with all its digits, so that it reads back exactly: "1.555 TB/s", "2.5 USD/h".

    It is in the SI unit where no digits of a fitting one give the same float.
    """
    value = float(value)
    if unit not in _SHOWN:
        return f"{value:.15g}"
    fitting = [name for name in _SHOWN[unit] if abs(value) >= float(_UNITS[unit][name])]
    name = fitting[-1] if fitting else _SHOWN[unit][0]
    factor = _UNITS[unit][name]
    for digits in (15, 16, 17):
        number = f"{float(Decimal(repr(value)) / factor):.{digits}g}"
        if float(Decimal(number) * factor) == value:
            return f"{number} {name}"
    return f"{value!r} {next(si for si, of_si in _UNITS[unit].items() if of_si == 1)}"


def _scaled(value: float, unit: str) -> tuple[float, str]:
    """Return `value`, rounded to three digits, in a suitable unit, and the name of that unit."""
    rounded = float(f"{value:.3g}")
    names = _SHOWN[unit]
    fitting = [name for name in names if abs(rounded) >= float(_UNITS[unit][name])]
    smallest = names[-1] if unit == "s" and value == 0 else names[0]
    name = fitting[-1] if fitting else smallest
    # Rounded once, in the unit that is shown: an hour is no power of ten.
    return float(f"{Decimal(value) / _UNITS[unit][name]:.3g}"), name


def _digits(value: float) -> str:
    """Return three digits, trailing zeros included: "3.00", "64.0", "141"."""
    if value == 0 or abs(value) >= 99.95:
        return f"{value:.0f}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:#.3g}"


def _examples(dimension: Dimension, number: str = "") -> str:
    """Return the example units of a dimension, each after a number if one is given: "'80 us', '80 s' or '80 h'"."""
    *first, last = [f"'{number} {unit}'" if number else f"'{unit}'" for unit in _EXAMPLES[dimension]]
    return f"{', '.join(first)} or {last}" if first else last


def _with_unit(number: str, dimension: Dimension) -> str:
    # A very large or small bare number is probably in SI, except a long time; any other in the unit of data sheets.
    value = float(number)
    if value == 0 or 0.01 <= abs(value) < (math.inf if dimension == "s" else 1e5):
        return _examples(dimension, number)
    if not math.isfinite(value):
        return _examples(dimension, "80")
    scaled, name = _scaled(value, dimension)
    return f"'{scaled:.15g} {name}'"


def _wrong_unit(number: str, unit: str, dimension: Dimension) -> str:
    other = next((name for name, units in _UNITS.items() if unit in units), None)
    if other is not None:
        return f"{unit!r} is a unit of {other}; expected a unit of {dimension}, such as {_examples(dimension)}"
    units, unknown = _UNITS[dimension], f"unknown unit {unit!r} for {dimension}"
    # "GBps" are bytes, although "Gbps" is nearer than "GB/s".
    slashed = re.sub(r"ps\Z", "/s", unit, flags=re.IGNORECASE)
    in_other_case = [name for name in units if name.lower() == unit.lower()]
    if near := next((name for name in (slashed, *in_other_case) if name in units), None):
        bits = [name for name in in_other_case if "B" in near and "b" in name]
        return f"{unknown}; did you mean {near!r}?{f' ({bits[0]!r} are bits)' if bits else ''}"
    if dimension != "USD/s":
        return f"{unknown}{did_you_mean(unit, units)}"
    if unit.lower() in ("usd", "$"):
        return f"{unknown}; write '{number} USD/h', the price of one GPU an hour"
    what = "a price is" if unit.lower().startswith(("usd", "$")) else "prices are in USD,"
    return f"{unknown}; {what} of one GPU an hour, as in '2.5 USD/h'"
