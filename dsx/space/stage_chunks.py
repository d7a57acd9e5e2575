"""Which chunks of the layers each stage of a pipeline holds, as data.

A chain has the chunks of a model, first to last, each on a stage. A microbatch goes through one chain. The first chunk
of stage i is chunk i. Where stages hold their chunks in rounds, stage i of p has the chunks i, p + i, 2p + i, ...
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StageChunks:
    """The chunks of the stages of a pipeline; functions of numbers or arrays."""

    chains: Callable[[int, int], list[list[int]]]  # (p, chunks per stage) -> the stage of each chunk of each chain
    count: Callable[[Any, Any], Any]  # (p, chunks per stage) -> chunks of a chain
    last: Callable[[Any, Any, Any], Any]  # (stage, p, chunks per stage) -> the last chunk of a stage
    stage_of: Callable[[Any, Any, Any], Any]  # (chunk, p, xp) -> stage
    num_chains: int = 1  # with two, a stage holds a chunk of each, and each has half of the microbatches

    def two_chunks(self, num_stages: Any, xp: Any) -> Any:
        """Return 1.0 where a stage that does not hold chunks in rounds has two, else 0.0: two chains of one stage."""
        one = xp.ones_like(num_stages)
        return xp.where(num_stages > self.num_chains - 1.0, one, 0.0 * one)

    @property
    def in_rounds(self) -> bool:
        """Whether stage i holds chunks i, p + i, ..."""
        return self is IN_ROUNDS


IN_ROUNDS = StageChunks(
    chains=lambda num_stages, num_chunks: [[*range(num_stages)] * num_chunks],
    count=lambda num_stages, num_chunks: num_stages * num_chunks,
    last=lambda stage, num_stages, num_chunks: (num_chunks - 1) * num_stages + stage,
    stage_of=lambda chunk, num_stages, xp: chunk - num_stages * xp.floor(chunk / num_stages),
)

# Two chains in opposite directions: stages i and p - 1 - i hold the same two chunks, i and p - 1 - i.
MIRRORED = StageChunks(
    chains=lambda num_stages, _: [[*range(num_stages)], [*range(num_stages)][::-1]],
    count=lambda num_stages, _: num_stages,
    last=lambda stage, num_stages, _: num_stages - 1 - stage,
    stage_of=lambda chunk, num_stages, xp: xp.minimum(chunk, num_stages - 1 - chunk),
    num_chains=2,
)

# A chain that turns back on the last stage, in the shape of a V: stage i holds chunks i and 2p - 1 - i.
FOLDED = StageChunks(
    chains=lambda num_stages, _: [[*range(num_stages), *range(num_stages)[::-1]]],
    count=lambda num_stages, _: 2 * num_stages,
    last=lambda stage, num_stages, _: 2 * num_stages - 1 - stage,
    stage_of=lambda chunk, num_stages, xp: xp.minimum(chunk, 2 * num_stages - 1 - chunk),
)


def of_pipeline(holds: StageChunks, num_stages: int) -> StageChunks:
    """Return which chunks the stages of a pipeline hold, from those of its schedule: one stage has one chain."""
    return holds if num_stages > 1 else IN_ROUNDS
