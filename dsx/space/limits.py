"""The limits that rules compare a plan with, and the GPUs of a fast domain that its shares fill."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.space.choices import MODEL_AXES
from dsx.space.divisors import all_divisors, divisors
from dsx.space.expert_nesting import REPLICA_AXES
from dsx.space.layer_layout import Chain

# How a pipeline cuts the layers into stages. A search has one; it is no column of a plan.
PARTITIONS = EVEN, OPTIMAL = ("even", "optimal")
GIVEN = "given"  # of a plan that states its layer layout; no search has it

Columns = Mapping[str, Any]

# The axes whose degrees multiply to the GPUs and that are placed on fast domains, in the order of the columns. ep nests
# in them.
PLACED = (*REPLICA_AXES, "pp", "dp")
DEGREES = (*MODEL_AXES, "pp", "dp")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a plan is rejected."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that rules compare a plan with."""

    num_layers: int
    nvs_size: int
    expert_axes: tuple[str, ...] = ()  # other axes that shard experts, besides ep, under the strategy of the plan
    partition: str = EVEN
    # Embedding and head, which any cut but an even one may place on stages of their own.
    num_first_layers: int = 0
    num_last_layers: int = 0
    num_predictions: int = 0  # layers of multi-token prediction, part of the head
    counts_ends: bool = False  # whether an even cut may count embedding and head as a layer each
    uneven: bool = True  # whether groups may lie unevenly on fast domains, and plans leave GPUs of them free
    node_size: int = 1  # GPUs of a node, of which plans need the fewest, and fill all but the last; 1: any plan does
    in_rank_order: bool = False  # whether domains have consecutive ranks alone

    @property
    def chain(self) -> Chain:
        """The layers that a layout divides."""
        return Chain(self.num_first_layers, self.num_layers, self.num_last_layers, self.num_predictions)

    @property
    def even_layers(self) -> tuple[int, ...]:
        """The numbers of layers that the chunks of an even cut may divide (`dsx.cost.stages`)."""
        return (self.num_layers, self.num_layers + 2) if self.counts_ends else (self.num_layers,)

    def divides(self, chunks: Any) -> Any:
        """Return whether there is an even cut into so many chunks."""
        found: Any = False
        for layers in self.even_layers:
            found = found | (layers % chunks == 0)
        return found

    def fills(self, stages: Any) -> Any:
        """Return whether an even cut has a layer for each of so many stages, which need not divide the layers."""
        layers = self.even_layers[-1]
        return (stages - 1) * -(-layers // stages) < layers

    @property
    def layers_text(self) -> str:
        """The layers that an even cut divides, in words."""
        counted = f", nor {self.num_layers + 2} with embedding and head" if self.counts_ends else ""
        return f"{self.num_layers} layer{'' if self.num_layers == 1 else 's'}{counted}"

    @property
    def max_stages(self) -> int:
        """Stages of the deepest pipeline: every layer that its cut counts is a stage."""
        return self.even_layers[-1] if self.partition == EVEN else self.chain.num_layers

    @property
    def stage_counts(self) -> np.ndarray:
        """The numbers of stages that the layers may be cut into."""
        return all_divisors(self.even_layers) if self.partition == EVEN else np.arange(1, self.max_stages + 1)

    @property
    def tried_layers(self) -> Sequence[int]:
        """The numbers of layers whose divisors a search tries as chunks per stage."""
        return self.even_layers if self.partition == EVEN else range(self.num_layers, self.chain.num_layers + 1)


def fill(num_gpus: Any, nvs_size: int) -> Any:
    """Return how many GPUs of a fast domain a job uses: the largest divisor of `num_gpus` that is at most its size.

    Every divisor of the GPU count is a product of shares that divide their degrees. So this is the largest product of
    shares that does not exceed the domain.
    """
    divisors = np.arange(1, min(nvs_size, int(np.max(num_gpus))) + 1)
    fits = np.asarray(num_gpus)[..., None] % divisors == 0
    return np.max(np.where(fits, divisors, 0), axis=-1)


@functools.lru_cache(maxsize=4096)
def fills(num_gpus: int, limits: Limits) -> tuple[int, ...]:
    """Return the GPUs of a fast domain that a job may use where shares divide their degrees, most first.

    They divide `num_gpus`, and no multiple that fits does. Without `uneven` there is only the largest one.
    """
    fits = all_divisors([num_gpus])[::-1]
    fits = fits[fits <= limits.nvs_size]
    if not limits.uneven:
        return (int(fits[0]),)
    return tuple(int(one) for one in fits if not any(more > one and more % one == 0 for more in fits.tolist()))


@functools.lru_cache(maxsize=4096)
def may_lie_unevenly(num_gpus: int, limits: Limits) -> bool:
    """Return whether consecutive ranks of some plan lie on fast domains as no divisors of its degrees do.

    They do not in one domain, nor where of any two degrees, and a domain, one divides the other.
    """
    degrees = divisors(num_gpus)
    chained = not (degrees[1:] % degrees[:-1]).any() and limits.nvs_size in degrees
    return limits.uneven and num_gpus > limits.nvs_size and not chained


def placed(table: Columns, axes: tuple[str, ...] = PLACED) -> Any:
    """Return the product of the shares of `axes`: the GPUs of a fast domain that they take."""
    product: Any = 1
    for axis in axes:
        product = product * table[f"{axis}_nvs"]
    return product
