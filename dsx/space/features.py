"""The features of a plan: what is more to set up and to run than plain data parallelism.

A choice with another value than its default is a feature if its record says so (`dsx.space.choices`), and a placement
off the rank order is one: launchers number ranks one axis after the other, so an axis shares a fast domain only where
the groups of all axes inside it do wholly. What a plan uses follows from its shard key and from its other choices, so
features are counted for the two apart and put together.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsx.space.choices import BY_NAME, CHOICES, CODES, Choice
from dsx.space.expert_nesting import REPLICA_AXES
from dsx.space.limits import PLACED
from dsx.space.tiers import ORDERS, axes_in

PLACEMENT = "placement"  # the feature of a placement off the rank order

# Of a key and of the other choices. They have no name in common, since a column has one level.
_OF_KEYS = tuple(one for one in CHOICES if one.feature and one.level == "key")
_OF_CHOICES = tuple(one for one in CHOICES if one.feature and one.level != "key")
# The columns that features follow from.
READ = (*dict.fromkeys([*(one.name for one in CHOICES if one.feature), *PLACED]), *(f"{axis}_nvs" for axis in PLACED))


class Features(NamedTuple):
    """The features of shard keys, or of the other choices: numbers and booleans, or arrays [N]."""

    count: Any  # choices with another value than their default
    off: Any  # whether the placement of these axes is off the rank order
    whole: Any  # whether the groups of all these axes are within a fast domain
    shared: Any  # whether an axis shares a fast domain

    def take(self, rows: Any) -> "Features":
        """Return the features at some positions."""
        return Features(*(column[rows] for column in self))


def of_keys(keys: Mapping[str, Any]) -> Features:
    """Return the features of shard keys from their columns, names as codes."""
    return _features(keys, _OF_KEYS, REPLICA_AXES)


def of_choices(choices: Mapping[str, Any]) -> Features:
    """Return the features of the choices beside the shard key from their columns, names as codes."""
    # The axes of a replica come first in every order.
    found = [_features(choices, _OF_CHOICES, axes_in(order)[len(REPLICA_AXES) :]) for order in ORDERS]
    return Features(*(np.choose(choices["order"], column) for column in zip(*found, strict=True)))


def num_features(key: Features, others: Features) -> Any:
    """Return the number of features of plans, from those of their keys and of their other choices."""
    off = key.off | others.off | (others.shared & np.logical_not(key.whole))
    return key.count + others.count + off * 1


def features_of(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the features that a plan, or its row, uses: columns, and `placement` off the rank order."""
    named = tuple(one.name for one in CHOICES if one.feature and plan[one.name] != one.default)
    codes = {name: BY_NAME[name].code(plan[name]) if name in CODES else int(plan[name]) for name in READ}
    return (*named, *([PLACEMENT] if num_features(of_keys(codes), of_choices(codes)) > len(named) else []))


def _features(columns: Mapping[str, Any], choices: Sequence[Choice], axes: Sequence[str]) -> Features:
    """Return the features among some choices, and of the placement of axes, the fastest-changing one first."""
    count: Any = sum((columns[one.name] != one.default_code) * 1 for one in choices)
    off: Any = np.False_
    whole: Any = np.True_
    shared: Any = np.False_
    for axis in axes:
        shares = columns[f"{axis}_nvs"] > 1
        off = off | (shares & np.logical_not(whole))
        whole = whole & (columns[f"{axis}_nvs"] == columns[axis])
        shared = shared | shares
    return Features(count, off, whole, shared)
