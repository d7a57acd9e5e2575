"""Memory of a stage's GPU.

A stage has n_k layers of kind k, each with W_k bytes of weights and A_k bytes of saved activations, and f_k
microbatches in flight. Its memory is the weights, sum n_k W_k; the gradients, the same scaled to their element size;
the optimizer state; the activations, sum f_k n_k A_k; and the largest transient of one layer. The head has run its
backward, and freed what it saved, before another layer does. ZeRO divides over the ranks that hold the same parameters:
the optimizer state from stage 1 on, gradients from stage 2 on, weights in stage 3 (Rajbhandari et al., 2020; Narayanan
et al., SC21; arXiv 2410.00273, section 4). A layer's gradients are whole until they are scattered, and weights are
gathered of two layers at a time, the one that runs and the next one (Zhao et al., FSDP, 2023, section 3.3). Offloaded
tensors (dsx.cost.offload) do not count. The assumption set states what a framework adds: `overhead`, and
`fragmentation` as a fraction of the activations.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from dsx import arrays as xp
from dsx.config.assumption_set import MUON
from dsx.cost.context import Assumptions, StageChoices, StepChoices, pick
from dsx.cost.groups import Group
from dsx.cost.layer import LayerCosts
from dsx.cost.offload import OPTIMIZER, always_split, offloaded
from dsx.cost.pipeline import weight_versions
from dsx.cost.shapes import PerGroup, PerPlan
from dsx.cost.stages import Layers, Stack, Stage, over_layers
from dsx.notation.model import State, divides
from dsx.plans.codes import SearchedCodes
from dsx.records import Array
from dsx.schedules.schedules import SCHEDULES


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


class Divided(NamedTuple):
    """What ZeRO divides and a layer has whole while it runs, from stage 2 on; bytes per kind."""

    weights: Sequence[PerPlan]  # that plans gather with every microbatch
    gradients: Sequence[PerPlan]  # that they scatter with every microbatch: what a layer needs more than without


class Transients(NamedTuple):
    """The most that the layers of a stage need beside what they hold all the time, bytes."""

    working: PerPlan  # activations, and gradients of weights before they are scattered
    gathered: PerPlan  # weights


def stage_memory(
    kinds: Sequence[LayerCosts],
    held_bytes: Sequence[PerGroup],
    shards: Sequence[Sequence[Group]],
    stash_bytes: PerPlan,
    transients: Transients | None,
    stage: Stage,
    choices: StepChoices,
    searched: SearchedCodes,
    assumptions: Assumptions,
) -> Memory:
    """Return the memory of a stage's GPU.

    Per kind and weight group, `held_bytes` are the weights that the stage holds for a layer (`held`), and `shards` has
    the ranks that divide them. Without `transients` these do not count. `stash_bytes` are the saved activations of all
    microbatches in flight that are on the GPU.
    """
    per_weight_byte = 1.0 / assumptions.weight_bytes
    weights, sharded = stage_weights(held_bytes, shards, stage)
    nothing = xp.zeros_like(stash_bytes)

    def of_stage(state: State) -> PerPlan:
        parts = {stage: sharded if divides(stage, state) else weights for stage in searched.zero_stage}
        return pick(searched.zero_stage, choices.zero_stage, parts)

    states: tuple[State, ...] = ("weight", "gradient", "optimizer")
    held = {state: of_stage(state) for state in states}
    state = held["optimizer"] * (assumptions.optimizer_bytes_per_parameter * per_weight_byte)
    if assumptions.optimizer == MUON:
        more = (assumptions.muon_bytes_per_parameter - assumptions.optimizer_bytes_per_parameter) * per_weight_byte
        state = state + updated_matrices(kinds, shards, stage, choices, searched) * more
    optimizer = offloaded(OPTIMIZER, choices, searched, lambda: nothing, state)
    versions = weight_versions(choices, searched)
    of_weights = held["weight"] if versions is None else held["weight"] * versions
    activations = stash_bytes
    if transients is not None:
        activations, of_weights = activations + transients.working, of_weights + transients.gathered
    return Memory(
        weight_bytes=of_weights,
        gradient_bytes=held["gradient"] * (assumptions.gradient_bytes * per_weight_byte),
        optimizer_bytes=optimizer,
        activation_bytes=activations,
        overhead_bytes=assumptions.overhead + assumptions.fragmentation * activations,
    )


def held(costs: LayerCosts, choices: StepChoices, searched: SearchedCodes, stack: Stack) -> PerGroup:
    """Return, per weight group, the weights of a layer that a stage holds for it.

    A single stage has both layers of a tied weight, and holds the weight for the first of them alone (Megatron Core,
    LanguageModule.shared_embedding_or_output_weight). So does the stage with the first and the last chunk of a schedule
    that does not hold chunks in rounds.
    """
    if not (costs.tied_bytes and stack.first):
        return costs.weight_bytes
    (tied,) = costs.tied_bytes
    one, none = xp.ones_like(choices.pp), xp.zeros_like(choices.pp)
    of_code = {code: none if SCHEDULES[code].holds.in_rounds else one for code in searched.schedule}
    together = xp.where(choices.pp > 1.0, pick(searched.schedule, choices.schedule, of_code), one)
    return xp.stack([whole - together * shared for whole, shared in zip(costs.weight_bytes, tied, strict=True)])


def divided_layers(
    kinds: Sequence[LayerCosts],
    shards: Sequence[Sequence[Group]],
    scattered_bytes: Sequence[PerPlan],
    working_bytes: Sequence[PerPlan],
    not_body: Collection[int],
    choices: StepChoices,
    searched: SearchedCodes,
    assumptions: Assumptions,
) -> Divided | None:
    """Return what ZeRO divides and layers have whole; None if no plan of the search scatters with every microbatch.

    Per kind, `scattered_bytes` is the transient of a layer if gradients of all weights are scattered, and
    `working_bytes` that without any. `not_body` has the kinds of embedding and head, with one layer each on a stage.
    Where two passes run side by side, only one of them is in such a layer; the other one is in another layer. A pass
    for the gradients of weights alone gathers nothing: they take the place of the two layers gathered otherwise.
    """
    if not any(divides(stage, "gradient") for stage in searched.zero_stage):
        return None
    per_weight_byte = assumptions.gradient_bytes / assumptions.weight_bytes
    weights: list[PerPlan] = []
    gradients: list[PerPlan] = []
    apart = always_split(choices, searched)
    by_kind = zip(kinds, shards, scattered_bytes, working_bytes, strict=True)
    for kind, (costs, of_kind, scattered, working) in enumerate(by_kind):
        shared = xp.zeros_like(costs.boundary_bytes)
        for whole, members in zip(costs.weight_bytes, of_kind, strict=True):
            shared = shared + xp.where(members.per_gpu < 1.0, whole, xp.zeros_like(whole))
        weights.append(_of_plans("weight", shared, choices, searched))
        more = xp.minimum(scattered - working, per_weight_byte * shared)
        if apart is not None and kind not in not_body:
            left = xp.maximum(more - 2.0 * weights[kind], xp.zeros_like(shared))
            more = xp.where(apart, left, more)
        gradients.append(_of_plans("gradient", more, choices, searched))
    sides = _passes_at_once(choices, searched)
    if sides is None:
        return Divided(weights, gradients)

    def beside(kind: int) -> PerPlan:
        if kind not in not_body:
            return weights[kind]
        return functools.reduce(xp.maximum, [own for other, own in enumerate(weights) if other != kind])

    return Divided([own + (sides - 1.0) * beside(kind) for kind, own in enumerate(weights)], gradients)


def _passes_at_once(choices: StepChoices, searched: SearchedCodes) -> PerPlan | None:
    """Return how many passes a stage runs side by side; None if no schedule of the search has more than one."""
    if not any(SCHEDULES[code].overlap for code in searched.schedule):
        return None
    one = xp.ones_like(choices.pp)
    of_code = {code: (2.0 if SCHEDULES[code].overlap else 1.0) * one for code in searched.schedule}
    return xp.where(choices.pp > 1.0, pick(searched.schedule, choices.schedule, of_code), one)


def _of_plans(state: State, divided: PerPlan, choices: StepChoices, searched: SearchedCodes) -> PerPlan:
    """Return what is whole of a state that ZeRO divides; 0 for plans that do not divide it."""
    dividing = [stage for stage in searched.zero_stage if divides(stage, state)]
    if len(dividing) == len(searched.zero_stage):
        return divided
    nothing = xp.zeros_like(divided)
    return xp.where(choices.zero_stage >= min(dividing), divided, nothing) if dividing else nothing


def per_activation_byte(assumptions: Assumptions) -> PerPlan:
    """Return the bytes of memory that a byte of activations takes, with what is lost to fragmentation."""
    return 1.0 + assumptions.fragmentation


def largest_transients(
    layers: Layers, working_bytes: Sequence[PerPlan], divided: Divided | None, not_body: Collection[int]
) -> Transients:
    """Return the largest transients of a stage; per kind, `working_bytes` has the activations that a layer needs.

    A layer of the body runs before and after any other: it is the next one whose weights are gathered. `not_body` has
    the other kinds. What is gathered is that of the layer with most, and the rest what the largest sum leaves.
    """
    present = {kind: xp.minimum(count, xp.ones_like(count)) for kind, count in layers.items()}

    def largest(of_kinds: Mapping[int, PerPlan]) -> PerPlan:
        return functools.reduce(xp.maximum, [present[kind] * value for kind, value in of_kinds.items()])

    if divided is None:
        working = largest({kind: working_bytes[kind] for kind in layers})
        return Transients(working, xp.zeros_like(working))
    gathered = largest({kind: divided.weights[kind] for kind in layers})
    beside = largest({kind: divided.weights[kind] for kind in layers if kind not in not_body})
    each = {kind: working_bytes[kind] + divided.gradients[kind] + divided.weights[kind] for kind in layers}
    return Transients(largest(each) - gathered, gathered + beside)


def after_head(
    working_bytes: Sequence[PerPlan], layers: Layers, stash_bytes: Sequence[PerPlan], stack: Stack, done: PerPlan
) -> Sequence[PerPlan]:
    """Return, per kind, the transient of a layer without what the head saved, where its backward is `done` before: 1.

    The head has freed its stash of the microbatch, which counts as held.
    """
    if not stack.last:
        return working_bytes
    freed = done * over_layers({kind: layers[kind] for kind in stack.last}, stash_bytes)
    return [own if kind in stack.last else own - freed for kind, own in enumerate(working_bytes)]


def heads_done(microbatches: PerPlan, choices: StepChoices | StageChoices, searched: SearchedCodes) -> PerPlan:
    """Return whether the head has freed a microbatch before another layer runs its backward: 1.0, else 0.0.

    It has if any of the `microbatches` are in flight, but under schedules of which other passes run beside.
    """
    some = xp.minimum(microbatches, xp.ones_like(microbatches)) * xp.ones_like(choices.pp)
    other = [code for code in searched.schedule if SCHEDULES[code].overlap]
    if not other:
        return some
    of_code = {code: (0.0 if code in other else 1.0) * some for code in searched.schedule}
    return xp.where(choices.pp > 1.0, pick(searched.schedule, choices.schedule, of_code), some)


def updated_matrices(
    kinds: Sequence[LayerCosts],
    shards: Sequence[Sequence[Group]],
    stage: Stage,
    choices: StepChoices,
    searched: SearchedCodes,
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
