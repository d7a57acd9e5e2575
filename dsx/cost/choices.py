"""The choices that combine layer costs into a step.

Where a search knows only one value of a column (`dsx.space.codes.Open`), the formulas of the others are not
even compiled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from dsx.records import record


@record
class StepChoices:
    """The choices of N plans; [N] floats each, shaped to broadcast with the layer costs."""

    num_gpus: Any
    global_batch_size: Any
    pp: Any
    dp: Any
    num_microbatches: Any
    pp_nvs: Any
    dp_nvs: Any
    vpp: Any
    zero_stage: Any
    recompute: Any  # a code
    schedule: Any  # a code
    zero_replicas: Any
    stored_layers: Any
    offload: Any  # a code
    pp_wider: Any = ()  # a tuple: stages in a unit of each tier between the fast domain and the outermost one
    dp_wider: Any = ()  # a tuple: replicas there


def pick(values: tuple[int, ...], column: Any, options: Sequence[Any] | Mapping[int, Any]) -> Any:
    """Return `options[column]`, where `column` is known to be one of `values`."""
    first, *others = values
    chosen = options[first]
    for value in others:
        chosen = jnp.where(column == value, options[value], chosen)
    return chosen
