"""The costs of a batch of plans, each with its layer costs and its choices.

Every given plan is priced here: an evaluated plan, a measured run, the winners of a search, a row with its own layer
layout. Only the hot loop of a search, which needs no more than the smallest of millions, has a kernel of its own
(`dsx.search.blockwise.minima`); a test holds both to the same costs. A batch is padded to one of a few fixed lengths by
repeating its last plan, so that all callers share the compiled code. The padding is cut off again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices
from dsx.cost.columns import StepCosts
from dsx.cost.layer import LayerCosts
from dsx.cost.step import Workload, step_costs
from dsx.hardware.cluster import Cluster

_LENGTHS = (1, 64, 1024, 8192)
LONGEST = _LENGTHS[-1]  # plans of one batch


def padded_length(count: int) -> int:
    """Return the smallest fixed length of at least `count` rows, or the longest one."""
    return next((length for length in _LENGTHS if count <= length), LONGEST)


def pad(column: np.ndarray, length: int) -> np.ndarray:
    """Return an array [..., N] padded to `length` with its last values."""
    return np.pad(column, [(0, 0)] * (column.ndim - 1) + [(0, length - column.shape[-1])], mode="edge")


class Plans(NamedTuple):
    """N plans. Leaves end in [N], or are scalars that all plans share."""

    kinds: Sequence[LayerCosts]
    choices: StepChoices
    cluster: Cluster
    assumptions: Assumptions


def costs(plans: Plans, workload: Workload, boundaries: Any = None) -> StepCosts:
    """Return the costs of N plans inside a compiled function.

    Cuts are even unless `boundaries` [L + 1, N] give them.
    """

    def costs_of(plans: Plans, boundaries: Any = None) -> StepCosts:
        return step_costs(plans.kinds, plans.choices, workload, plans.cluster, plans.assumptions, boundaries)

    return costs_of(plans) if boundaries is None else jax.vmap(costs_of, in_axes=-1)(plans, boundaries)


_costs = jax.jit(costs)


def price(plans: Plans, workload: Workload, boundaries: Any = None, float64: bool = True) -> StepCosts:
    """Return the costs of N plans, at most `LONGEST`, as NumPy [N] arrays in float64 or float32.

    Arguments are those of `costs`, as NumPy arrays.
    """
    count = plans.choices.pp.shape[-1]
    length = padded_length(count)
    dtype = np.float64 if float64 else np.float32

    def padded(leaf: Any) -> Any:
        leaf = np.asarray(leaf)
        return jnp.asarray((pad(leaf, length) if leaf.ndim else leaf).astype(dtype))

    with jax.enable_x64(float64):
        priced = _costs(*jax.tree.map(padded, (plans, workload, boundaries)))
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], priced)


def none_priced(float64: bool = True) -> StepCosts:
    """Return the costs of no plan."""
    nothing = np.zeros(0, np.float64 if float64 else np.float32)
    return StepCosts(**dict.fromkeys(StepCosts.__dataclass_fields__, nothing))
