"""What plans are compared with, and how the shares of a fast domain multiply."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.space.choices import MODEL_AXES
from dsx.space.codes import EVEN, OPTIMAL
from dsx.space.experts import REPLICA_AXES

Columns = Mapping[str, Any]

# The axes that make up the GPUs and are placed on fast domains, in the order of the columns; ep nests in them.
PLACED = (*REPLICA_AXES, "pp", "dp")
DEGREES = (*MODEL_AXES, "pp", "dp")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a plan is rejected."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rules compare a plan with."""

    num_layers: int
    nvs_size: int
    expert_axes: tuple[str, ...] = ()  # that divide experts beside ep, under the strategy of the plan
    partition: str = EVEN
    num_ends: int = 0  # layers before and behind those of `num_layers`, which are stages of their own if a cut says so

    @property
    def most_stages(self) -> int:
        """Stages of the deepest pipeline."""
        return self.num_layers + (self.num_ends if self.partition == OPTIMAL else 0)


def fill(num_gpus: Any, nvs_size: int) -> Any:
    """Return how many GPUs of a fast domain a job uses: the largest divisor of `num_gpus` that fits.

    Any divisor of the GPU count is a product of shares that divide their degrees, so this is the largest
    product of an assignment that does not exceed the domain.
    """
    divisors = np.arange(1, min(nvs_size, int(np.max(num_gpus))) + 1)
    fits = np.asarray(num_gpus)[..., None] % divisors == 0
    return np.max(np.where(fits, divisors, 0), axis=-1)


def placed(table: Columns, axes: tuple[str, ...] = PLACED) -> Any:
    """Return how many GPUs of a fast domain the shares of `axes` take together."""
    product: Any = 1
    for axis in axes:
        product = product * table[f"{axis}_nvs"]
    return product
