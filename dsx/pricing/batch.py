"""The costs of a batch of plans, each with its layer costs and its choices.

Every given plan is priced here: an evaluated plan, a measured run, the winners of a search, a row with its own layer
layout. Only the hot loop of a search, which needs no more than the smallest of millions, has a kernel of its own
(`dsx.search.blockwise.minima`); a test holds both to the same costs. A batch is priced on NumPy, since nothing is
compiled then: thousands of plans take milliseconds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices
from dsx.cost.columns import StepCosts
from dsx.cost.layer import LayerCosts
from dsx.cost.stage_costs import StageCosts
from dsx.cost.step import Workload, step_costs
from dsx.hardware.cluster import Cluster


def pad(column: np.ndarray, length: int) -> np.ndarray:
    """Return an array [..., N] padded to `length` with its last values."""
    if column.shape[-1] == length:
        return column
    return np.pad(column, [(0, 0)] * (column.ndim - 1) + [(0, length - column.shape[-1])], mode="edge")


class Plans(NamedTuple):
    """N plans. Leaves end in [N], or are scalars that all plans share."""

    kinds: Sequence[LayerCosts]
    choices: StepChoices
    cluster: Cluster
    assumptions: Assumptions


def stage_costs(plans: Plans, workload: Workload) -> StageCosts:
    """Return the costs of any stage of [N] plans."""
    return StageCosts(plans.kinds, plans.choices, workload.stack, workload.searched, plans.cluster, plans.assumptions)


def costs(plans: Plans, workload: Workload, boundaries: Any = None, replayed: bool = False) -> StepCosts:
    """Return the costs of [N] plans. Cuts are even unless `boundaries` [R, S + 1, N] give them.

    `replayed` is as of `dsx.cost.step.step_costs`.
    """
    return step_costs(plans.kinds, plans.choices, workload, plans.cluster, plans.assumptions, boundaries, replayed)


def price(plans: Plans, workload: Workload, boundaries: Any = None, float64: bool = True) -> StepCosts:
    """Return the costs of N plans as NumPy [N] arrays in float64 or float32; arguments are those of `costs`."""
    dtype = np.float64 if float64 else np.float32
    given = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), (plans, workload, boundaries))
    return costs(*given, replayed=boundaries is not None)


def none_priced(float64: bool = True) -> StepCosts:
    """Return the costs of no plan."""
    nothing = np.zeros(0, np.float64 if float64 else np.float32)
    return StepCosts(**dict.fromkeys(StepCosts.__dataclass_fields__, nothing))
