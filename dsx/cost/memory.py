"""Memory of a stage's GPU.

A stage has n_k layers of kind k, each with W_k bytes of weights and A_k bytes of saved activations, and f_k
microbatches in flight. Its memory is the weights, sum n_k W_k; the gradients, the same scaled to their element size;
the optimizer state; the activations, sum f_k n_k A_k; and the largest transient of one layer. ZeRO divides over the
ranks that hold the same parameters: the optimizer state from stage 1 on, gradients from stage 2 on, weights in stage 3,
which gathers the weights of two layers at a time (Rajbhandari et al., 2020; Narayanan et al., SC21; arXiv 2410.00273,
section 4). Offloaded tensors (dsx.cost.offload) do not count. The assumption set states what a framework adds:
`overhead`, and `fragmentation` as a fraction of the activations.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from dsx.cost import xp
from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices, pick
from dsx.cost.groups import Group
from dsx.cost.layer import LayerCosts
from dsx.cost.offload import OPTIMIZER, offloaded
from dsx.cost.pipeline import weight_versions
from dsx.cost.shapes import PerPlan
from dsx.cost.stages import Layers, Stage
from dsx.graph.step import State, divides
from dsx.records import Array
from dsx.space.codes import Searched
from dsx.spec.assumptions import MUON


class Memory(NamedTuple):
    """The memory parts of a stage, in bytes."""

    weight_bytes: PerPlan
    gradient_bytes: PerPlan
    optimizer_bytes: PerPlan
    activation_bytes: PerPlan
    overhead_bytes: PerPlan

    @property
    def peak_bytes(self) -> PerPlan:
        """All parts together."""
        return sum(self[1:], self[0])


def stage_memory(
    kinds: Sequence[LayerCosts],
    shards: Sequence[Sequence[Group]],
    stash_bytes: PerPlan,
    working_bytes: Sequence[PerPlan] | None,
    stage: Stage,
    choices: StepChoices,
    searched: Searched,
    assumptions: Assumptions,
) -> Memory:
    """Return the memory of a stage's GPU.

    `shards` has, per kind, the shard group of each weight group; `working_bytes`, per kind, the transient of a layer,
    or None to leave out all transients.
    `stash_bytes` are the saved activations of all microbatches in flight that are on the GPU.
    """
    per_weight_byte = 1.0 / assumptions.weight_bytes
    weights, sharded = stage_weights([costs.weight_bytes for costs in kinds], shards, stage)
    nothing = xp.zeros_like(stash_bytes)
    working, gathered = nothing, nothing
    if working_bytes is not None:
        working, gathered = largest_transients(stage.layers, working_bytes, _gathered_bytes(kinds, shards))
    divided: dict[State, PerPlan] = {"weight": sharded + gathered, "gradient": sharded, "optimizer": sharded}

    def of_stage(state: State) -> PerPlan:
        parts = {stage: divided[state] if divides(stage, state) else weights for stage in searched.zero_stage}
        return pick(searched.zero_stage, choices.zero_stage, parts)

    held = {state: of_stage(state) for state in divided}
    state = held["optimizer"] * (assumptions.optimizer_bytes_per_parameter * per_weight_byte)
    if assumptions.optimizer == MUON:
        more = (assumptions.muon_bytes_per_parameter - assumptions.optimizer_bytes_per_parameter) * per_weight_byte
        state = state + updated_matrices(kinds, shards, stage, choices, searched) * more
    optimizer = offloaded(OPTIMIZER, choices, searched, lambda: nothing, state)
    activations = stash_bytes + working
    versions = weight_versions(choices, searched)
    return Memory(
        weight_bytes=held["weight"] if versions is None else held["weight"] * versions,
        gradient_bytes=held["gradient"] * (assumptions.gradient_bytes * per_weight_byte),
        optimizer_bytes=optimizer,
        activation_bytes=activations,
        overhead_bytes=assumptions.overhead + assumptions.fragmentation * activations,
    )


def _gathered_bytes(kinds: Sequence[LayerCosts], shards: Sequence[Sequence[Group]]) -> list[PerPlan]:
    """Return, per kind, the weights that are gathered for a layer."""
    found: list[PerPlan] = []
    for costs, of_kind in zip(kinds, shards, strict=True):
        gathered = xp.zeros_like(costs.boundary_bytes)
        for whole, members in zip(costs.weight_bytes, of_kind, strict=True):
            gathered = gathered + xp.where(members.per_gpu < 1.0, whole, xp.zeros_like(whole))
        found.append(gathered)
    return found


def per_activation_byte(assumptions: Assumptions) -> PerPlan:
    """Return the bytes of memory that a byte of activations takes, with what is lost to fragmentation."""
    return 1.0 + assumptions.fragmentation


def largest_transients(
    layers: Layers, working_bytes: Sequence[PerPlan], gathered_bytes: Sequence[PerPlan]
) -> tuple[PerPlan, PerPlan]:
    """Return the largest transient of a layer of a stage, and the most weights that it gathers, of two layers.

    Per kind, `working_bytes` has the transient of a layer, and `gathered_bytes` the weights gathered for one.
    """
    present = {kind: xp.minimum(count, xp.ones_like(count)) for kind, count in layers.items()}
    working = [here * working_bytes[kind] for kind, here in present.items()]
    gathered = [xp.minimum(count, 2.0 * present[kind]) * gathered_bytes[kind] for kind, count in layers.items()]
    return functools.reduce(xp.maximum, working), functools.reduce(xp.maximum, gathered)


def updated_matrices(
    kinds: Sequence[LayerCosts],
    shards: Sequence[Sequence[Group]],
    stage: Stage,
    choices: StepChoices,
    searched: Searched,
) -> PerPlan:
    """Return the bytes of the weights that a rank updates with Muon: its shard of the matrices from ZeRO stage 1 on."""
    whole, sharded = stage_weights([costs.matrix_bytes[0] for costs in kinds], shards, stage)
    parts = {stage: sharded if divides(stage, "optimizer") else whole for stage in searched.zero_stage}
    return pick(searched.zero_stage, choices.zero_stage, parts)


def stage_weights(
    of_kinds: Sequence[Array], shards: Sequence[Sequence[Group]], stage: Stage
) -> tuple[PerPlan, PerPlan]:
    """Return the bytes of a stage's weights, and of one rank's shard of them.

    `of_kinds` has, per kind and weight group, the bytes of a layer.

    Weights that the same ranks hold are added up before they are divided, so that a search computes one sum over keys
    and choices instead of one for each kind of layer.
    """
    ranks: dict[int, Group] = {}
    parts: dict[int, list[PerPlan]] = {}
    for kind, layers in stage.layers.items():
        for index, members in enumerate(shards[kind]):
            ranks[id(members)] = members
            parts.setdefault(id(members), []).append(layers * of_kinds[kind][index])
    totals = {group: functools.reduce(xp.add, terms) for group, terms in parts.items()}
    weights = functools.reduce(xp.add, totals.values())
    sharded = functools.reduce(xp.add, [whole * ranks[group].per_gpu for group, whole in totals.items()])
    return weights, sharded


def worst(memories: Sequence[Memory]) -> Memory:
    """Return the memory of the stage with the highest peak, for each plan."""

    def larger(one: Memory, other: Memory) -> Memory:
        is_other = other.peak_bytes > one.peak_bytes
        return Memory(*(xp.where(is_other, b, a) for a, b in zip(one, other, strict=True)))

    return functools.reduce(larger, memories)
