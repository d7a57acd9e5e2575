"""The choices that combine layer costs into a step.

Where a search knows only one value of a column (`dsx.space.codes.Open`), the formulas of the others are not
even compiled.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from dsx.records import make_record
from dsx.space.choices import STEP_COLUMNS

if TYPE_CHECKING:

    class StepChoices:
        """The choices of N plans, one for each of `STEP_COLUMNS`: [N] floats, shaped to broadcast with the layer costs.

        Names are codes. `pp_wider` and `dp_wider` are tuples: stages and replicas in a unit of each tier between the
        fast domain and the outermost one.
        """

        def __init__(self, **columns: Any) -> None: ...
        def __getattr__(self, column: str) -> Any: ...

else:
    _wider = [(name, dataclasses.field(default=())) for name in ("pp_wider", "dp_wider")]
    StepChoices = make_record(
        "StepChoices", __name__, [*((name, dataclasses.field()) for name in STEP_COLUMNS), *_wider]
    )


def pick(values: tuple[int, ...], column: Any, options: Sequence[Any] | Mapping[int, Any]) -> Any:
    """Return `options[column]`, where `column` is known to be one of `values`."""
    first, *others = values
    chosen = options[first]
    for value in others:
        chosen = jnp.where(column == value, options[value], chosen)
    return chosen
