"""The costs of rows: plans of one problem, given by candidate columns or by positions in a table of layer costs.

Few plans are priced sooner on NumPy than anything is compiled.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from dsx.arrays import PlanInts
from dsx.config.cluster_file import Cluster
from dsx.cost.context import Assumptions, StepChoices, StepCosts, of_plans
from dsx.cost.layer import BY_MODE, PASSES, LayerCosts, PassCosts
from dsx.cost.step import Workload
from dsx.plans.choices import FULL_CODE, KEY_COLUMNS, NONE_CODE, STEP_COLUMNS, VALUES
from dsx.plans.enumerate import Arrays
from dsx.plans.experts import REPLICA_AXES
from dsx.plans.placement import choice_shares, even_shares, replica_of, units
from dsx.plans.violations import FieldCondition
from dsx.pricing.keys import KeyCosts, PointCosts, price_keys
from dsx.pricing.problem import Plans, Problem, none_priced, price
from dsx.records import Array, ArrayLike, Float, Int, Over, Shaped, leaves, tree_map

Values = TypeVar("Values")
_AT_ONCE = 8192  # rows: their arrays fit into the cache of a core
# The value of `recompute` that rows are priced with: each has the layer costs of its own value under this one.
_OWN = FULL_CODE


PlanCosts = Over[StepCosts, "... plans"]


class Rows(NamedTuple):
    """Candidates to price, each at one hardware point."""

    points: PlanInts
    positions: PlanInts  # in the key table
    choices: dict[str, PlanInts]  # by column

    def take(self, where: Shaped[np.ndarray, "chosen"] | slice) -> "Rows":
        """Return some of the rows."""
        choices = {name: column[where] for name, column in self.choices.items()}
        return Rows(self.points[where], self.positions[where], choices)


KeptRows = Over[Rows, "... kept"]


def step_choices(
    columns: Mapping[str, Values], as_array: Callable[[Values], Array], tiers: Sequence[str] = ()
) -> StepChoices:
    """Return the choices of integer columns as a record; `as_array` turns each column into floats.

    `tiers` names the tiers between fast domain and outermost tier, which have columns too.
    """
    pp_outer, dp_outer = (tuple(as_array(columns[f"{axis}_{tier}"]) for tier in tiers) for axis in ("pp", "dp"))
    of_step = {name: as_array(columns[name]) for name in STEP_COLUMNS}
    return StepChoices(**of_step, pp_outer=pp_outer, dp_outer=dp_outer)


def rows_of_plans(problem: Problem, columns: Arrays) -> tuple[KeyCosts, Rows]:
    """Return the layer costs of plans, given by all candidate columns, and their rows at the first point."""
    keys, positions = np.unique(np.stack([columns[name] for name in KEY_COLUMNS]), axis=1, return_inverse=True)
    uneven = not np.all(even_shares(columns, (*REPLICA_AXES, "pp", "dp")))
    table = price_keys(problem, dict(zip(KEY_COLUMNS, keys, strict=True)), uneven)
    return table, Rows(np.zeros_like(positions), positions, on_tiers(problem, columns))


def on_tiers(problem: Problem, columns: Arrays) -> Arrays:
    """Return the columns of plans with the shares of stages and replicas on the tiers beyond the fast domain."""
    network = problem.cluster.network
    return on_units(columns, {tier.name: unit for tier, unit in zip(network.middle, units(network), strict=True)})


def on_units(columns: Arrays, units: Mapping[str, int | PlanInts]) -> Arrays:
    """Return columns as `on_tiers` does; `units` has the fast domains in a unit of each tier."""
    replica = replica_of(columns)
    for tier, unit in units.items():
        shares = choice_shares(columns, replica, unit)
        columns = columns | {f"{axis}_{tier}": share for axis, share in shares.items()}
    return columns


def price_plans(problem: Problem, columns: Arrays) -> PlanCosts:
    """Price plans, given by all candidate columns, at the first hardware point; NumPy float64 arrays."""
    return price_rows(problem, *rows_of_plans(problem, columns))


def price_rows(problem: Problem, table: KeyCosts, rows: Rows) -> PlanCosts:
    """Price rows in float64 from a table of layer costs."""
    results: list[StepCosts] = []
    for start in range(0, len(rows.positions), _AT_ONCE):
        results.append(price(*plans_of(problem, table, rows.take(slice(start, start + _AT_ONCE)))))
    return tree_map(lambda *leaves: np.concatenate(leaves), *results) if results else none_priced()


def plans_of(problem: Problem, table: KeyCosts, rows: Rows, dtype: type = np.float64) -> tuple[Plans, Workload]:
    """Return rows as plans, and the workload to price them with.

    The workload has one value of `recompute`, under which each row has the layer costs of its own. So what is traced or
    computed for rows does not grow with the values that are searched.
    """
    code = rows.choices["recompute"]
    conditions = problem.assumptions.conditions
    kinds = [_under_own_value(costs, rows, code, conditions, dtype) for costs in table]
    columns = rows.choices | {"recompute": np.full_like(code, _OWN)}
    tiers = [tier.name for tier in problem.cluster.network.middle]
    choices = step_choices(columns, lambda column: column.astype(dtype), tiers)
    hardware, assumptions = machines(problem, rows.points, dtype)
    workload = problem.searching({"recompute": [VALUES[_OWN]]}).workload
    return Plans(kinds, choices, hardware, assumptions), workload


def _under_own_value(
    costs: PointCosts, rows: Rows, code: PlanInts, conditions: Sequence[FieldCondition], dtype: type
) -> Over[LayerCosts, "... plans"]:
    """Return rows of layer costs in two modes: without recomputation, and under the value of each row.

    Rows have the passes of the effects that they have.
    """

    def taken(leaf: ArrayLike) -> np.ndarray:
        leaf = np.asarray(leaf)
        of_rows = leaf[0].take(rows.positions, -1) if len(leaf) == 1 else leaf[rows.points, ..., rows.positions].T
        return of_rows.astype(dtype, copy=False)

    row_of = np.zeros(len(VALUES), dtype=np.int64)
    for row, codes in enumerate(costs.modes):
        row_of[[*codes]] = row
    first, second = row_of[NONE_CODE], row_of[code]

    def in_two_modes(leaf: ArrayLike) -> np.ndarray:
        leaf = np.asarray(leaf)
        if len(leaf) == 1:
            return np.stack([leaf[0, first].take(rows.positions), leaf[0][second, rows.positions]], dtype=dtype)
        return np.stack([leaf[rows.points, row, rows.positions] for row in (first, second)], dtype=dtype)

    separate = (*BY_MODE, "without")
    fields = {name: tree_map(taken, getattr(costs, name)) for name in leaves(LayerCosts) if name not in separate}
    fields |= {name: in_two_modes(getattr(costs, name)) for name in BY_MODE}
    fields["without"] = tuple(
        PassCosts(**{name: (in_two_modes if name in BY_MODE else taken)(getattr(passes, name)) for name in PASSES})
        for passes in costs.without
    )
    if costs.contended_s:
        forward_s, *backward_s = fields["contended_s"]
        fields["contended_s"] = (forward_s, backward_s[first], np.stack(backward_s)[second, np.arange(len(code))])
    in_modes = LayerCosts(**fields, modes=((NONE_CODE,), (_OWN,)), lacked=costs.lacked)
    return in_modes.of_effects(of_plans(costs.lacked, conditions, rows.choices))


def machines(problem: Problem, points: PlanInts, dtype: type = np.float64) -> tuple[Cluster, Assumptions]:
    """Return the cluster and the assumptions, leaves [plans], of rows at hardware points."""

    def taken(leaf: ArrayLike) -> np.ndarray:
        leaf = np.asarray(leaf, dtype)
        # One number for all rows, which `np.broadcast_to` makes too, in the time of thirty of these.
        return np.ndarray(points.shape, dtype, leaf, strides=(0,)) if len(leaf) == 1 else leaf[points]

    return tree_map(taken, (problem.hardware, problem.assumptions))


def take_rows(
    leaf: Float[Array, "points *modes keys"], points: Int[Array, "plans"], positions: Int[Array, "plans"]
) -> Float[Array, "*modes plans"]:
    """Return rows of a leaf of layer costs."""
    return leaf[points, positions] if leaf.ndim == 2 else leaf[points, :, positions].T


MANY = 1 << 13  # plans for which code is compiled
