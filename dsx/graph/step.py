"""What a step runs outside of the layers' passes, as data: collectives of weights and gradients, and what is divided.

Ranks that hold the same parameters reduce their gradients. ZeRO divides state among them: the optimizer's from stage 1
on, gradients from stage 2 on, weights in stage 3 (Rajbhandari et al., 2020, section 7). Each layer has these
collectives of its own, one for each of its weight groups (`dsx.cost.layer.WeightGroup`); experts are a group whose
ranks ep divides. The cost model prices these records, and a trace has a node for each.

With replicas of shards, the gradients of a shard are all-reduced among its replicas once a step, during the last
microbatch (Zhang et al., MiCS, 2022, section 3.4). Gradients of parameters that are replicated over a tensor parallel
axis are all-reduced over it after the last backward. So is the gradient of a tied weight, between the first and the
last stage (Narayanan et al., SC21; Megatron-LM, `finalize_model_grads`).
"""

from dataclasses import dataclass
from typing import Literal

from dsx.graph.match import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from dsx.graph.nodes import BACKWARD, FORWARD

State = Literal["optimizer", "gradient", "weight"]

# The first ZeRO stage that divides a state.
_DIVIDED_FROM: dict[State, int] = {"optimizer": 1, "gradient": 2, "weight": 3}
NUM_STAGES = 4
MICROBATCH = "microbatch"  # of `StepCollective.every`


@dataclass(frozen=True, slots=True)
class StepCollective:
    """A collective of the weights of a layer, or of their gradients."""

    kind: str
    of: Literal["weights", "gradients"]
    ranks: Literal["shards", "replicas", "tensor", "ends"]  # of a shard; that hold the same shard; of a tp axis; stages
    direction: int  # of the pass that it accompanies
    every: Literal["microbatch", "step"]  # a step: the first forward, or the last backward


def divides(zero_stage: int, state: State) -> bool:
    """Return whether a ZeRO stage divides a state among the ranks that hold the same parameters."""
    return zero_stage >= _DIVIDED_FROM[state]


def _of_stage(stage: int) -> tuple[StepCollective, ...]:
    every = "microbatch" if divides(stage, "gradient") else "step"
    if not divides(stage, "optimizer"):
        return (StepCollective(ALL_REDUCE, "gradients", "shards", BACKWARD, "step"),)
    reduced = StepCollective(REDUCE_SCATTER, "gradients", "shards", BACKWARD, every)
    if not divides(stage, "weight"):
        return StepCollective(ALL_GATHER, "weights", "shards", FORWARD, "step"), reduced
    gathered = [StepCollective(ALL_GATHER, "weights", "shards", way, "microbatch") for way in (FORWARD, BACKWARD)]
    return *gathered, reduced


# By ZeRO stage, over the ranks that hold the same parameters.
OF_STAGE: tuple[tuple[StepCollective, ...], ...] = tuple(map(_of_stage, range(NUM_STAGES)))
OF_REPLICAS = StepCollective(ALL_REDUCE, "gradients", "replicas", BACKWARD, "step")
OF_REPLICATED = StepCollective(ALL_REDUCE, "gradients", "tensor", BACKWARD, "step")
OF_TIED = StepCollective(ALL_REDUCE, "gradients", "ends", BACKWARD, "step")


def accompanying(zero_stage: int, direction: int) -> tuple[StepCollective, ...]:
    """Return the collectives of a ZeRO stage that accompany the passes of a direction."""
    return tuple(one for one in OF_STAGE[zero_stage] if one.direction == direction)


def in_every_pass(zero_stage: int, direction: int) -> bool:
    """Return whether every pass of a direction has collectives of its weights, and not one of the step alone."""
    return any(one.every == MICROBATCH for one in accompanying(zero_stage, direction))
