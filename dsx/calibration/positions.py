"""Fields by their positions between their bounds, in [0, 1]; on a log scale if the bounds are positive."""

from collections.abc import Mapping, Sequence

import numpy as np

from dsx.spec.between import Bounds

Values = Mapping[str, float]  # of fields, in SI units


def position_of(values: Values, names: Sequence[str], between: Mapping[str, Bounds]) -> np.ndarray:
    """Return the [P] positions of values between their bounds, in [0, 1]."""
    found = []
    for name in names:
        low, high, value = between[name].low, between[name].high, values[name]
        share = np.log(value / low) / np.log(high / low) if low > 0 else (value - low) / (high - low)
        found.append(min(max(share, 0.0), 1.0))
    return np.array(found, dtype=np.float64)


def at(position: np.ndarray, names: Sequence[str], between: Mapping[str, Bounds]) -> dict[str, float]:
    """Return the values at [P] positions between their bounds."""
    found: dict[str, float] = {}
    for name, share in zip(names, position, strict=True):
        low, high = between[name].low, between[name].high
        value = low * (high / low) ** share if low > 0 else low + share * (high - low)
        found[name] = float(min(max(value, low), high))
    return found


def slope(position: np.ndarray, names: Sequence[str], between: Mapping[str, Bounds]) -> np.ndarray:
    """Return the derivatives of values with respect to their [P] positions."""
    values = at(position, names, between)
    return np.array(
        [
            values[name] * np.log(between[name].high / between[name].low)
            if between[name].low > 0
            else between[name].high - between[name].low
            for name in names
        ]
    )
