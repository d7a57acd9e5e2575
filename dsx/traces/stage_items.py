"""The program of a stage: its passes and transfers in the one order that all stages follow, and what they refer to.

An item is a pass or a pair of passes with the gathers of weights for the next one, a transfer between stages, or the
end of the step. Passes of one kind are alike for most microbatches, so items share descriptions of their nodes
(`PassNodes`), and differ in microbatches and in the items that they refer to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dsx.notation.graph import BACKWARD, FORWARD
from dsx.notation.model import accompanying, divides
from dsx.notation.sharded_layer import ALL_GATHER
from dsx.plans.pass_times import PassRun, StageTransfer, global_order
from dsx.schedules.order import Pair, Pass, passes_of
from dsx.traces.codec import COMM_RECV, COMM_SEND
from dsx.traces.pass_nodes import PassBuilder
from dsx.traces.traced_plan import (
    MICROBATCH,
    PURPOSES,
    BasePass,
    NodeCommunication,
    PassKey,
    PassNodes,
    Tensors,
    TracedPlan,
    TraceNode,
)
from dsx.traces.weight_nodes import EndBuilder

Place = tuple[int, int]  # of a block: its item, and its position there


class Block(NamedTuple):
    """The nodes of one pass in an item."""

    key: object  # of its `PassNodes`
    microbatch: int
    previous: int  # the microbatch before
    bases: Mapping[BasePass, Place]  # what its nodes refer to


@dataclass(frozen=True, slots=True)
class Item:
    """Blocks of nodes that run in one go: a pass or two, and gathers for the next ones."""

    blocks: tuple[Block, ...]
    tag: int = 0
    num_passes: int = 1  # the first of the blocks


@dataclass(frozen=True)
class StageItems:
    """The items of a stage in order, and the nodes of their blocks by key."""

    items: list[Item] = field(default_factory=list)
    nodes: dict[object, PassNodes] = field(default_factory=dict)
    digits: int = 1  # of a microbatch

    def pass_at(self, place: Place) -> PassNodes:
        """Return the nodes of a block."""
        item, block = place
        return self.nodes[self.items[item].blocks[block].key]


def whole_order(plan: TracedPlan) -> tuple[PassRun | StageTransfer, ...]:
    """Return all passes of all stages and all transfers in one order; only forwards of a plan without a backward.

    A chunk sends no gradient back if no weight before it is trained.
    """
    columns = plan.columns
    passed = [plan.passes_gradient(chunk) for chunk in range(len(plan.stages))]
    order = [
        entry
        for entry in global_order(plan.schedule, columns["pp"], columns["num_microbatches"], columns["vpp"])
        if isinstance(entry, PassRun) or entry.done.kind == "forward" or passed[entry.done.chunk]
    ]
    if not plan.forward_only:
        return tuple(order)
    forward_order: list[PassRun | StageTransfer] = []
    for entry in order:
        passes = passes_of(entry.item) if isinstance(entry, PassRun) else (entry.done,)
        if forwards := [done for done in passes if done.kind == "forward"]:
            forward_order.append(PassRun(entry.stage, forwards[0]) if isinstance(entry, PassRun) else entry)
    return tuple(forward_order)


class StageBuilder:
    """Builds the program of a stage; in a ring every other rank `receives_first`."""

    def __init__(self, plan: TracedPlan, stage: int, receives_first: bool = False) -> None:
        self.plan, self.stage, self.receives_first = plan, stage, receives_first
        self.per_chain = max(plan.columns["num_microbatches"] // plan.holds.num_chains, 1)  # microbatches
        self.program = StageItems(digits=len(str(max(self.per_chain - 1, 1))))
        self.length = len(plan.chunks)
        self.at: dict[tuple[object, ...], Place] = {}  # (what, chunk, microbatch) -> block
        self.done: dict[tuple[str, int], list[int]] = {}  # microbatches so far, by purpose and chunk

    def build(self, order: Sequence[PassRun | StageTransfer]) -> StageItems:
        """Return the program, in an order of `whole_order`."""
        runs = [entry for entry in order if isinstance(entry, PassRun) and entry.stage == self.stage]
        following = iter([*(run.item for run in runs[1:]), None])
        self._gather_once(runs)
        for entry in order:
            if isinstance(entry, StageTransfer):
                if self.stage in (entry.source, entry.target):
                    self._transfer(entry)
            elif entry.stage == self.stage:
                if entry is runs[0] and (gathers := self._gathers(entry.item)):
                    self.program.items.append(Item(gathers))
                self._run(entry.item, next(following))
        if not self.plan.forward_only:
            chunks, last = (
                [chunk for chunk, stage in enumerate(self.plan.stages) if stage == self.stage],
                self.per_chain - 1,
            )
            bases: dict[BasePass, Place] = {
                ("last", purpose, chunk): self.at[f"pass {purpose}", chunk, last]
                for chunk in chunks
                for purpose in PURPOSES["backward"]
            }
            key = PassKey("end", 0, (), True)
            builder = EndBuilder(self.plan, key, self.program.digits, self._sources(bases))
            builder.end(sorted({at for chunk in chunks for at in self.plan.layers_of(chunk)}, reverse=True))
            if builder.built.nodes:
                self.program.nodes[key] = builder.built
                self.program.items.append(Item((Block(key, last, last, bases),)))
        # Tags of the sends within passes stand behind those between stages.
        most = max(nodes.num_tags for nodes in self.program.nodes.values())
        first = 2 * (self.per_chain + 1) * len(self.plan.stages)
        items = [
            item if item.tag else replace(item, tag=first + number * most)
            for number, item in enumerate(self.program.items)
        ]
        return replace(self.program, items=items)

    def _sources(self, bases: Mapping[BasePass, Place]) -> dict[str, BasePass]:
        """Return the tensors that other passes write."""
        return {name: base for base, place in bases.items() for name in self.program.pass_at(place).writers}

    def _key(self, done: Pass, paired: bool) -> PassKey:
        """Return the kind of a pass, which runs next."""
        counts = {purpose: len(self.done.get((purpose, done.chunk), ())) for purpose in PURPOSES[done.kind]}
        first = tuple(purpose for purpose, count in counts.items() if count == 0)
        last = done.kind != "forward" and {*counts.values()} == {self.per_chain - 1}
        return PassKey(done.kind, done.chunk, first, last, paired, self.receives_first)

    def _run(self, item: Pass | Pair, following: Pass | Pair | None) -> None:
        """Add a pass or a pair, with the gathers for the `following` one."""
        blocks: list[Block] = []
        number = len(self.program.items)
        for place, done in enumerate(passes_of(item)):
            names = ("forward", "gradient", "receive forward", "receive gradient", "gather forward", "gather gradient")
            chunks = (done.chunk - 1, done.chunk, done.chunk + 1)
            places = {(what, chunk): self.at.get((what, chunk, done.microbatch)) for what in names for chunk in chunks}
            bases: dict[BasePass, Place] = {base: at for base, at in places.items() if at is not None}
            key, chunk = self._key(done, isinstance(item, Pair)), done.chunk
            if key not in self.program.nodes:
                builder = PassBuilder(self.plan, key, self.program.digits, self._sources(bases))
                if done.kind == "forward":
                    builder.forward(self._begins(chunk))
                else:
                    builder.backward(self._gradients(chunk), self._begins(chunk))
                self.program.nodes[key] = builder.built
            # A whole backward never runs while weights of an earlier one are owed, so both its purposes follow one.
            earlier = self.done.get((PURPOSES[done.kind][0], chunk), [0])
            for purpose in PURPOSES[done.kind]:
                if (purpose, chunk) in self.done:
                    bases["previous", purpose, chunk] = self.at[f"pass {purpose}", chunk, self.done[purpose, chunk][-1]]
            blocks.append(Block(key, done.microbatch, earlier[-1], bases))
            if done.kind != "weights":
                what = "forward" if done.kind == "forward" else "gradient"
                self.at[what, chunk, done.microbatch] = (number, place)
            for purpose in PURPOSES[done.kind]:
                self.done.setdefault((purpose, chunk), []).append(done.microbatch)
                self.at[f"pass {purpose}", chunk, done.microbatch] = (number, place)
        gathers = self._gathers(following, len(blocks)) if following else ()
        self.program.items.append(Item((*blocks, *gathers), num_passes=len(blocks)))

    def _name(self, text: str) -> str:
        return f"m{MICROBATCH * self.program.digits}.{text}"

    def _begins(self, chunk: int) -> Tensors:
        """Return what the forward of a chunk reads."""
        if chunk % self.length == 0:
            return []
        if self.plan.stages[chunk - 1] == self.stage:
            return self._results(chunk - 1)
        return [(self._name(f"chunk {chunk} input"), self._boundary(chunk))]

    def _results(self, chunk: int) -> Tensors:
        """Return what the forward of a chunk makes."""
        positions = self.plan.layers_of(chunk)
        if not positions:
            return self._begins(chunk)
        results = self.plan.nodes(positions[-1]).outputs
        return [(self._name(f"L{positions[-1]:03d}.{result.name}"), result.bytes) for result in results]

    def _gradients(self, chunk: int) -> Tensors:
        """Return what the backward of a chunk begins with."""
        if chunk % self.length == self.length - 1 or not self.plan.passes_gradient(chunk + 1):
            return []
        if self.plan.stages[chunk + 1] == self.stage:
            return self._input_gradients(chunk + 1)
        return [(self._name(f"chunk {chunk} gradient"), self._boundary(chunk + 1))]

    def _input_gradients(self, chunk: int) -> Tensors:
        """Return what the backward of a chunk makes; a layer may pass on a part of the gradient that it begins with."""
        gradients = self._gradients(chunk)
        for position in reversed(self.plan.layers_of(chunk)):
            nodes = self.plan.nodes(position)
            passed = {nodes.output_gradient: gradients}
            gradients = [
                tensor
                for name in nodes.input_gradients
                for tensor in passed.get(name, [(self._name(f"L{position:03d}.{name}"), nodes.boundary_bytes)])
            ]
        return gradients

    def _boundary(self, chunk: int) -> int:
        """Return the bytes between a chunk and the one before it."""
        first = chunk - chunk % self.length
        later = [at for other in range(chunk, first + self.length) for at in self.plan.layers_of(other)]
        earlier = [at for other in range(first, chunk) for at in self.plan.layers_of(other)]
        return self.plan.nodes((later[:1] or earlier[-1:])[0]).boundary_bytes

    def _transfer(self, entry: StageTransfer) -> None:
        """Add the send or the receive of a transfer."""
        chunk, microbatch = entry.done.chunk, entry.done.microbatch
        forward, sends = entry.done.kind == "forward", entry.source == self.stage
        what, target = ("forward", chunk + 1) if forward else ("gradient", chunk - 1)
        tag = 1 + 2 * (microbatch * len(self.plan.stages) + chunk) + (0 if forward else 1)
        verb = "send" if sends else "receive"
        bases: dict[BasePass, Place] = {}
        if sends:
            tensors = self._results(chunk) if forward else self._input_gradients(chunk)
            places = {base: self.at.get((*base, microbatch)) for base in ((what, chunk), (f"receive {what}", chunk))}
            bases = {base: place for base, place in places.items() if place is not None}
        else:
            tensors = self._begins(target) if forward else self._gradients(target)
            self.at[f"receive {what}", target, microbatch] = (len(self.program.items), 0)
        key = (verb, what, chunk)
        if key not in self.program.nodes:
            peer = ("stage", self.plan.stages[target if sends else chunk])
            sent = NodeCommunication(self._boundary(max(chunk, target)), peer=peer)
            name = self._name(f"{verb} {what} of chunk {chunk}")
            of_transfer = PassKey(verb, chunk, (), False)
            builder = PassBuilder(self.plan, of_transfer, self.program.digits, self._sources(bases))
            if sends:
                overlap = self.plan.assumptions.pp_overlap
                builder.add(TraceNode(COMM_SEND, name, tensors, communication=sent, overlap=overlap))
            else:
                builder.add(TraceNode(COMM_RECV, name, outputs=tensors, communication=sent))
            self.program.nodes[key] = builder.built
        self.program.items.append(Item((Block(key, microbatch, 0, bases),), tag))

    def _gathers(self, item: Pass | Pair, place: int = 0) -> tuple[Block, ...]:
        """Return the gathers for the first layers of a pass or a pair, the blocks of an item from `place` on."""
        gathers: list[Block] = []
        for done in passes_of(item):
            direction = FORWARD if done.kind == "forward" else BACKWARD
            steps = accompanying(self.plan.columns["zero_stage"], direction)
            due = any(step.kind == ALL_GATHER and step.every == "microbatch" for step in steps)
            positions = self.plan.layers_of(done.chunk)
            if done.kind != "weights" and due and positions:
                layers = [positions[0] if direction == FORWARD else positions[-1]]
                gathers += self._gather(done, self._key(done, isinstance(item, Pair)), layers, place + len(gathers))
        return tuple(gathers)

    def _gather_once(self, runs: Sequence[PassRun]) -> None:
        """Add the gathers of all weights that the step before has updated in parts, before the first pass."""
        zero_stage = self.plan.columns["zero_stage"]
        if self.plan.forward_only or divides(zero_stage, "weight") or not accompanying(zero_stage, FORWARD):
            return
        first: dict[int, Pass] = {}
        for done in (done for run in runs for done in passes_of(run.item) if done.kind == "forward"):
            first.setdefault(done.chunk, done)
        for chunk, done in first.items():
            key = PassKey("forward", chunk, PURPOSES["forward"], False)
            if gathers := self._gather(done, key, self.plan.layers_of(chunk), 0):
                self.program.items.append(Item(gathers))

    def _gather(self, done: Pass, key: PassKey, positions: Sequence[int], place: int) -> tuple[Block, ...]:
        """Return the gathers of some layers of a pass, a block of the next item; none where none is due."""
        direction, what = (FORWARD, "forward") if done.kind == "forward" else (BACKWARD, "gradient")
        name = ("gather", direction, done.chunk, key.first)
        if name not in self.program.nodes:
            builder = PassBuilder(self.plan, key, self.program.digits, {})
            for position in positions:
                builder.gather(position, direction)
            self.program.nodes[name] = builder.built
        if not self.program.nodes[name].nodes:
            return ()
        self.at[f"gather {what}", done.chunk, done.microbatch] = (len(self.program.items), place)
        return (Block(name, done.microbatch, 0, {}),)
