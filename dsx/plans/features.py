"""The features of a plan: what is more to set up and to run than plain data parallelism, and what each costs.

data/features/costs.yaml has the costs, in points. A choice with another value than its default is a feature if it has a
cost there. So is a group that does not lie in one fast domain, a cut into stages of unequal numbers of layers, and a
placement off the rank order: launchers number ranks one axis after the other, so an axis shares a fast domain only
where the groups of all axes inside it do wholly. What a plan uses follows from its shard key and from its other
choices, so costs are added up for the two apart and put together.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from pydantic import NonNegativeInt, TypeAdapter

from dsx.arrays import ChunkLayers, PlanBools
from dsx.config.documents import load_document
from dsx.config.schema import Spec
from dsx.config.search_path import packaged_data
from dsx.plans.choices import BY_NAME, CHOICES, CODES, Choice
from dsx.plans.experts import REPLICA_AXES, Columns, Truth, Whole
from dsx.plans.layer_layout import LAYOUT
from dsx.plans.placement import ORDERS, axes_in
from dsx.plans.plan import Plan
from dsx.records import Int, Shaped

PLACEMENT = "placement"  # the feature of a placement off the rank order
UNEVEN = "uneven stages"
_OTHER = "other"  # values that a line of the file does not name
_ENDS = 2  # embedding and head, which may be a layer more than the other stages have

_READ = [choice.name for choice in CHOICES if choice.level != "job" and choice.name != "strategy"]
# The columns that features follow from, beside the layers of the stages; shares last.
READ = tuple(sorted(_READ, key=lambda name: name.endswith("_nvs")))


class FeatureCost(Spec):
    """What a feature costs, in points."""

    cost: NonNegativeInt | dict[str, NonNegativeInt]  # of any value but the default, or of each
    across_domains: NonNegativeInt = 0  # more, where a group does not lie in one fast domain
    source: str

    def of(self, choice: Choice, value: int | str) -> int:
        """Return the cost of a value of a choice."""
        if value == choice.default:
            return 0
        return self.cost if isinstance(self.cost, int) else self.cost.get(str(value), self.cost.get(_OTHER, 0))


@cache
def feature_costs() -> dict[str, FeatureCost]:
    """Return the costs by choice, `placement` and `stage_layers`; a validation error for a faulty file."""
    data = load_document(packaged_data() / "features" / "costs.yaml").data
    return TypeAdapter(dict[str, FeatureCost]).validate_python(data)


class Features(NamedTuple):
    """The features of shard keys, or of the other choices."""

    cost: Whole  # of choices with another value than their default
    off: Truth  # whether the placement of these axes is off the rank order
    inside: Truth  # whether the groups of all these axes are within a fast domain
    shared: Truth  # whether an axis shares a fast domain

    def take(self, rows: Shaped[np.ndarray, "chosen"]) -> "Features":
        """Return the features at some positions."""
        return Features(*(np.asarray(column)[rows] for column in self))


def of_keys(keys: Columns) -> Features:
    """Return the features of shard keys from their columns, names as codes."""
    return _features(keys, _costly(of_key=True), REPLICA_AXES)


def of_choices(choices: Columns, uneven: Truth = False) -> Features:
    """Return the features of the choices beside the shard key from their columns, names as codes.

    `uneven` says which have stages of unequal numbers of layers.
    """
    # The axes of a replica come first in every order.
    by_order = [_features(choices, _costly(of_key=False), axes_in(order)[len(REPLICA_AXES) :]) for order in ORDERS]
    several = Features(*(np.choose(choices["order"], columns) for columns in zip(*by_order, strict=True)))
    return several._replace(cost=several.cost + np.asarray(uneven) * _only(LAYOUT))


def total_cost(key: Features, choices: Features) -> Int[np.ndarray, "*#plans"]:
    """Return the cost of plans, from the features of their keys and of their other choices."""
    off = key.off | choices.off | (choices.shared & np.logical_not(key.inside))
    return key.cost + choices.cost + off * _only(PLACEMENT)


def features_of(plan: Plan) -> dict[str, int]:
    """Return what each feature of a plan costs: choices, groups across domains, stages, placement."""
    codes = {name: BY_NAME[name].code(plan[name]) if name in CODES else int(plan[name]) for name in READ}
    costs: dict[str, int] = {}
    for choice, cost in _costly(of_key=True) + _costly(of_key=False):
        costs[choice.name] = cost.of(choice, plan[choice.name])
        if cost.across_domains and codes[f"{choice.name}_nvs"] < codes[choice.name]:
            costs[f"{choice.name} across domains"] = cost.across_domains
    uneven = is_uneven(plan.layers)
    costs[UNEVEN] = uneven * _only(LAYOUT)
    costs[PLACEMENT] = int(total_cost(of_keys(codes), of_choices(codes, uneven))) - sum(costs.values())
    return {name: points for name, points in costs.items() if points}


def is_uneven(sizes: Sequence[int]) -> bool:
    """Return whether the chunks of a layout differ by more than embedding and head; not if there are none."""
    if not sizes:
        return False
    least = min(sizes)
    return any(size != least for size in sizes[1:-1]) or max(sizes[0], sizes[-1]) > least + 1


def uneven_of(layers: ChunkLayers) -> PlanBools:
    """Return which cuts of a search `is_uneven` calls so."""
    is_inner = np.zeros(layers.shape, dtype=bool)
    is_inner[:, 1:-1] = layers[:, 2:] > 0
    least = np.min(layers, axis=1, where=layers > 0, initial=np.iinfo(layers.dtype).max, keepdims=True)
    return (layers - least > np.where(is_inner, 0, 1)).any(axis=1)


def must_be_uneven(pp: Whole, vpp: Whole, num_layers: int) -> Truth:
    """Return which pipelines have no cut of a chain, embedding and head included, that `is_uneven` calls even."""
    return num_layers % (pp * vpp) > _ENDS


def least_costs(choice: Choice, codes: Sequence[int]) -> tuple[int, float]:
    """Return the least that some values of a choice cost, and the least of those that are not its default.

    The values are codes; none: every value. The second is infinite if there is no such value.
    """
    cost = feature_costs().get(choice.name)
    values = [choice.name_of(code) for code in (codes or choice.codes or (choice.least, choice.least + 1))]
    costs = {value: cost.of(choice, value) if cost else 0 for value in values}
    return min(costs.values()), min((costs[value] for value in values if value != choice.default), default=np.inf)


def _only(name: str) -> int:
    """Return the cost of a feature that is no choice; 0 without a line."""
    cost = feature_costs().get(name)
    return cost.cost if cost is not None and isinstance(cost.cost, int) else 0


@cache
def _costly(of_key: bool) -> tuple[tuple[Choice, FeatureCost], ...]:
    costs = feature_costs()
    return tuple(
        (choice, costs[choice.name]) for choice in CHOICES if choice.name in costs and (choice.level == "key") == of_key
    )


def _features(columns: Columns, costly: Sequence[tuple[Choice, FeatureCost]], axes: Sequence[str]) -> Features:
    """Return the features among some choices, and of the placement of axes, the fastest-changing one first."""
    total: Whole = 0
    off: Truth = False
    inside: Truth = True
    shared: Truth = False
    for choice, cost in costly:
        column = columns[choice.name]
        if isinstance(cost.cost, int):
            total = total + (column != choice.default_code) * cost.cost
        else:
            total = total + _points_by_code(choice)[column]
        if cost.across_domains:
            total = total + (columns[f"{choice.name}_nvs"] < column) * cost.across_domains
    for axis in axes:
        shares = columns[f"{axis}_nvs"] > 1
        off = off | (shares & np.logical_not(inside))
        inside = inside & (columns[f"{axis}_nvs"] == columns[axis])
        shared = shared | shares
    return Features(total, off, inside, shared)


@cache
def _points_by_code(choice: Choice) -> Int[np.ndarray, "codes"]:
    cost = feature_costs()[choice.name]
    points = np.zeros(max(choice.codes) + 1, dtype=np.int64)
    points[list(choice.codes)] = [cost.of(choice, choice.name_of(code)) for code in choice.codes]
    return points
