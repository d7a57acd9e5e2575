"""The costs of plans of one problem, given by the columns of a candidate or by a position in a table of layer costs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices
from dsx.cost.columns import StepCosts
from dsx.hardware.cluster import Cluster
from dsx.pricing.batch import LONGEST, Plans, none_priced, price
from dsx.pricing.layers import Kinds, price_keys
from dsx.pricing.problem import Problem
from dsx.space.choices import KEY_COLUMNS, STEP_COLUMNS
from dsx.space.enumerate import Arrays
from dsx.space.tiers import choice_shares, stride_of_replicas, units


def step_choices(columns: Mapping[str, Any], as_array: Callable[[Any], Any], tiers: Sequence[str] = ()) -> StepChoices:
    """Return the choices record of integer columns, each turned into floats by `as_array`.

    `tiers` are the names of those between the fast domain and the outermost one, for which there are columns too.
    """
    wider = {f"{axis}_wider": tuple(as_array(columns[f"{axis}_{tier}"]) for tier in tiers) for axis in ("pp", "dp")}
    return StepChoices(**{name: as_array(columns[name]) for name in STEP_COLUMNS}, **wider)


def table_of_plans(problem: Problem, columns: Arrays) -> tuple[Kinds, np.ndarray, np.ndarray]:
    """Return the layer costs of [N] plans given by all columns of a candidate, their first point, and positions."""
    keys, positions = np.unique(np.stack([columns[name] for name in KEY_COLUMNS]), axis=1, return_inverse=True)
    table = price_keys(problem, dict(zip(KEY_COLUMNS, keys, strict=True)))
    return table, np.zeros_like(positions), positions


def on_tiers(problem: Problem, columns: Arrays) -> Arrays:
    """Return the columns of [N] plans with the shares of their stages and replicas on the tiers between the ends."""
    network = problem.cluster.network
    return on_units(columns, {tier.name: unit for tier, unit in zip(network.middle, units(network), strict=True)})


def on_units(columns: Arrays, units: Mapping[str, Any]) -> Arrays:
    """Return `on_tiers` where the tiers, by name, have units of so many fast domains, a number or [N]."""
    stride = stride_of_replicas(columns)
    for tier, unit in units.items():
        shares = choice_shares(columns, stride, unit)
        columns = columns | {f"{axis}_{tier}": share for axis, share in shares.items()}
    return columns


def price_plans(problem: Problem, columns: Arrays) -> StepCosts:
    """Price [N] plans given by all columns of a candidate, at the first hardware point; NumPy float64 [N] arrays."""
    return price_rows(problem, *table_of_plans(problem, columns), on_tiers(problem, columns))


def price_rows(problem: Problem, table: Kinds, points: np.ndarray, positions: np.ndarray, choices: Arrays) -> StepCosts:
    """Price [N] rows in float64: `points` and `positions` in a table of [H, U] costs, and the choices of each row."""
    results: list[StepCosts] = []
    tiers = [tier.name for tier in problem.cluster.network.middle]
    for start in range(0, len(positions), LONGEST):
        at = slice(start, start + LONGEST)
        here = machines(problem, points[at])
        layers = jax.tree.map(lambda leaf, a=at: rows_of(np.asarray(leaf), points[a], positions[a]), table)
        plans = Plans(layers, step_choices(choices, lambda c, a=at: c[a], tiers), *here)
        results.append(price(plans, problem.workload))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results) if results else none_priced()


def machines(problem: Problem, points: np.ndarray) -> tuple[Cluster, Assumptions]:
    """Return the machine and the assumptions of [N] rows, which are at these hardware points."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[points], (problem.hardware, problem.assumptions))


def rows_of(leaf: Any, points: Any, positions: Any) -> Any:
    """Return [N] rows, or [J, N], of a leaf of layer costs, [H, U] or [H, J, U]."""
    return leaf[points, positions] if leaf.ndim == 2 else leaf[points, :, positions].T
