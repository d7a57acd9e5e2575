"""The costs of rows: plans of one problem, compiled in tiles of few sizes.

The costs of rows: plans of one problem, given by candidate columns or by positions in a table of layer costs.

Compiled code for many plans, in tiles of few sizes, so that it is compiled once for each.

Few plans are priced sooner on NumPy than anything is compiled.

The prices of many rows with given cuts, and the least memory of any cut, compiled.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dsx.cost.context import Assumptions, StepChoices, StepCosts, of_plans
from dsx.cost.cut_bounds import CutBounds
from dsx.cost.layer import BY_MODE, PASSES, LayerCosts, PassCosts
from dsx.cost.step import Workload
from dsx.hardware.cluster import Cluster
from dsx.plans.choices import FULL_CODE, KEY_COLUMNS, NONE_CODE, STEP_COLUMNS, VALUES
from dsx.plans.enumerate import Arrays
from dsx.plans.placement import choice_shares, replica_of, units
from dsx.plans.violations import FieldCondition
from dsx.pricing.keys import KeyCosts, price_keys
from dsx.pricing.problem import Plans, Problem, costs, none_priced, pad, price, stage_costs
from dsx.records import leaves

_AT_ONCE = 8192  # rows: their arrays fit into the cache of a core


# The value of `recompute` that rows are priced with: each has the layer costs of its own value under this one.
_OWN = FULL_CODE


class Rows(NamedTuple):
    """N candidates to price, each at one hardware point."""

    points: np.ndarray  # [N] hardware points
    positions: np.ndarray  # [N] positions in the key table
    choices: Arrays  # {column: [N]}

    def take(self, where: np.ndarray | slice) -> "Rows":
        """Return some of the rows."""
        choices = {name: column[where] for name, column in self.choices.items()}
        return Rows(self.points[where], self.positions[where], choices)


def step_choices(columns: Mapping[str, Any], as_array: Callable[[Any], Any], tiers: Sequence[str] = ()) -> StepChoices:
    """Return the choices of integer columns as a record; `as_array` turns each column into floats.

    `tiers` names the tiers between fast domain and outermost tier, which have columns too.
    """
    outer = {f"{axis}_outer": tuple(as_array(columns[f"{axis}_{tier}"]) for tier in tiers) for axis in ("pp", "dp")}
    return StepChoices(**{name: as_array(columns[name]) for name in STEP_COLUMNS}, **outer)


def rows_of_plans(problem: Problem, columns: Arrays) -> tuple[KeyCosts, Rows]:
    """Return the layer costs of [N] plans, given by all candidate columns, and their rows at the first point."""
    keys, positions = np.unique(np.stack([columns[name] for name in KEY_COLUMNS]), axis=1, return_inverse=True)
    table = price_keys(problem, dict(zip(KEY_COLUMNS, keys, strict=True)))
    return table, Rows(np.zeros_like(positions), positions, on_tiers(problem, columns))


def on_tiers(problem: Problem, columns: Arrays) -> Arrays:
    """Return the columns of [N] plans with the shares of stages and replicas on the tiers beyond the fast domain."""
    network = problem.cluster.network
    return on_units(columns, {tier.name: unit for tier, unit in zip(network.middle, units(network), strict=True)})


def on_units(columns: Arrays, units: Mapping[str, Any]) -> Arrays:
    """Return columns as `on_tiers` does; `units` has the fast domains in a unit of each tier, as a number or [N]."""
    replica = replica_of(columns)
    for tier, unit in units.items():
        shares = choice_shares(columns, replica, unit)
        columns = columns | {f"{axis}_{tier}": share for axis, share in shares.items()}
    return columns


def price_plans(problem: Problem, columns: Arrays) -> StepCosts:
    """Price [N] plans, given by all candidate columns, at the first hardware point; NumPy float64 [N] arrays."""
    return price_rows(problem, *rows_of_plans(problem, columns))


def price_rows(problem: Problem, table: KeyCosts, rows: Rows) -> StepCosts:
    """Price [N] rows in float64 from a table of [H, U] layer costs."""
    results: list[StepCosts] = []
    for start in range(0, len(rows.positions), _AT_ONCE):
        results.append(price(*plans_of(problem, table, rows.take(slice(start, start + _AT_ONCE)))))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results) if results else none_priced()


def plans_of(problem: Problem, table: KeyCosts, rows: Rows, dtype: type = np.float64) -> tuple[Plans, Workload]:
    """Return [N] rows as plans, and the workload to price them with.

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
    costs: LayerCosts, rows: Rows, code: np.ndarray, conditions: Sequence[FieldCondition], dtype: type
) -> LayerCosts:
    """Return [N] rows of [H, U] layer costs in two modes: without recomputation, and under the value of each row.

    Rows have the passes of the effects that they have.
    """

    def taken(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        found = leaf[0].take(rows.positions, -1) if len(leaf) == 1 else leaf[rows.points, ..., rows.positions].T
        return found.astype(dtype, copy=False)

    row_of = np.zeros(len(VALUES), dtype=np.int64)
    for row, codes in enumerate(costs.modes):
        row_of[[*codes]] = row
    none, own = row_of[NONE_CODE], row_of[code]

    def in_two_modes(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        if len(leaf) == 1:
            return np.stack([leaf[0, none].take(rows.positions), leaf[0][own, rows.positions]], dtype=dtype)
        return np.stack([leaf[rows.points, row, rows.positions] for row in (none, own)], dtype=dtype)

    separate = (*BY_MODE, "without")
    fields = {name: jax.tree.map(taken, getattr(costs, name)) for name in leaves(LayerCosts) if name not in separate}
    fields |= {name: in_two_modes(getattr(costs, name)) for name in BY_MODE}
    fields["without"] = tuple(
        PassCosts(**{name: (in_two_modes if name in BY_MODE else taken)(getattr(passes, name)) for name in PASSES})
        for passes in costs.without
    )
    if costs.contended_s:
        forward_s, *backward_s = fields["contended_s"]
        fields["contended_s"] = (forward_s, backward_s[none], np.stack(backward_s)[own, np.arange(len(own))])
    found = LayerCosts(**fields, modes=((NONE_CODE,), (_OWN,)), lacked=costs.lacked)
    return found.of_effects(of_plans(costs.lacked, conditions, rows.choices))


def machines(problem: Problem, points: np.ndarray, dtype: type = np.float64) -> tuple[Cluster, Assumptions]:
    """Return the cluster and the assumptions of [N] rows at the given hardware points."""

    def taken(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf, dtype)
        return np.broadcast_to(leaf, points.shape) if len(leaf) == 1 else leaf[points]

    return jax.tree.map(taken, (problem.hardware, problem.assumptions))


def take_rows(leaf: Any, points: Any, positions: Any) -> Any:
    """Return [N] or [J, N] rows of a leaf of layer costs, [H, U] or [H, J, U]."""
    return leaf[points, positions] if leaf.ndim == 2 else leaf[points, :, positions].T


MANY = 1 << 13  # plans for which code is compiled
TILE = 1 << 11  # plans side by side: their numbers fit into the cache of a core
# Registers of 512 bits where the processor has them; XLA's default is 256.
COMPILER = {"xla_cpu_prefer_vector_width": 512}


@contextlib.contextmanager
def compiled_in(float64: bool) -> Iterator[None]:
    """Compile and run in float64 or float32. Stages are a leading axis, which what all of them share does not have."""
    with jax.enable_x64(float64), jax.numpy_rank_promotion("allow"):
        yield


def padded(plans: Any, here: slice, size: int) -> Any:
    """Return some of [N] plans as a tile."""
    return jax.tree.map(lambda leaf: pad(leaf[..., here], size), plans)


def joined(tiles: Sequence[Any], count: int) -> Any:
    """Return what was found for [N] plans, from tiles of which the last one may be padded; as NumPy arrays."""
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis=-1)[..., :count], *tiles)


def row_tiles(
    problem: Problem, table: KeyCosts, rows: Rows, dtype: type = np.float64
) -> Iterator[tuple[np.ndarray, Plans, Workload]]:
    """Yield the rows of each tile, of which the last one may be repeated, as plans with the workload."""
    count = len(rows.positions)
    for start in range(0, count, TILE):
        tile = pad(np.arange(start, min(start + TILE, count)), TILE)
        plans, workload = plans_of(problem, table, rows.take(tile), dtype)
        yield tile, plans, jax.tree.map(lambda leaf: np.asarray(leaf, dtype), workload)


_FEW_STAGES = 16  # of a tile, or as many as the chain has layers: cuts into fewer are padded with empty ones


def price_tiles(problem: Problem, table: KeyCosts, rows: Rows, cuts: np.ndarray, dtype: type) -> StepCosts:
    """Price [N] rows with one chunk per stage, with the given cuts [N, L + 1]."""
    order, most, float64 = np.argsort(rows.choices["pp"], kind="stable"), cuts.shape[1] - 1, dtype is np.float64
    tiles = [none_priced(float64)]
    for tile, plans, workload in row_tiles(problem, table, rows.take(order), dtype):
        deepest = _FEW_STAGES if plans.choices.pp[-1] <= _FEW_STAGES < most else most
        boundaries = cuts[order[tile], : deepest + 1].T[None].astype(dtype)
        with compiled_in(float64):
            tiles.append(_priced(plans, workload, boundaries))
    back = np.argsort(order, kind="stable")
    return jax.tree.map(lambda column: column[back], joined(tiles, len(order)))


def least_bytes_of_tiles(problem: Problem, table: KeyCosts, rows: Rows) -> np.ndarray:
    """Return [N] what the fullest GPU needs at least, bytes; `dsx.cost.cut_bounds` says why."""
    tiles: list[Any] = []
    for _, plans, workload in row_tiles(problem, table, rows):
        with compiled_in(True):
            tiles.append(_least_bytes(plans, workload))
    return joined(tiles, len(rows.positions))


@functools.partial(jax.jit, compiler_options=COMPILER)
def _priced(plans: Plans, workload: Workload, boundaries: Any) -> StepCosts:
    return costs(plans, workload, boundaries)


@functools.partial(jax.jit, compiler_options=COMPILER)
def _least_bytes(plans: Plans, workload: Workload) -> Any:
    return CutBounds(stage_costs(plans, workload)).peak_bytes
