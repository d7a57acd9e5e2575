"""The program of a stage: its passes and transfers in the one order that all stages follow, and what they refer to.

An item is a pass or a pair of passes with the gathers of weights for the next one, a transfer between stages, or the
end of the step. Passes of one kind are alike for most microbatches, so items share descriptions of their nodes
(`PassNodes`), and differ in microbatches and in the items that they refer to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from dsx.notation.graph import BACKWARD, FORWARD
from dsx.notation.model import accompanying, divides
from dsx.notation.sharded_layer import ALL_GATHER
from dsx.plans.pass_times import PassRun, StageTransfer, global_order
from dsx.schedules.order import Pair, Pass, passes_of
from dsx.traces.codec import COMM_RECV, COMM_SEND
from dsx.traces.layer_nodes import MICROBATCH, BasePass, NodeCommunication, TraceNode
from dsx.traces.pass_nodes import PassBuilder
from dsx.traces.traced_plan import PURPOSES, PassKey, PassNodes, Tensors, TracedPlan
from dsx.traces.weight_nodes import EndBuilder


class Block(NamedTuple):
    """The nodes of one pass in an item."""

    key: object  # of its `PassNodes`
    microbatch: int
    previous: int  # the microbatch before
    bases: Mapping[BasePass, tuple[int, int]]  # what its nodes refer to: (item, block)


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


def whole_order(plan: TracedPlan) -> tuple[PassRun | StageTransfer, ...]:
    """Return all passes of all stages and all transfers in one order; only forwards of a plan without a backward."""
    columns = plan.columns
    order = global_order(plan.schedule, columns["pp"], columns["num_microbatches"], columns["vpp"])
    if not plan.forward_only:
        return order
    found: list[PassRun | StageTransfer] = []
    for entry in order:
        done = passes_of(entry.item) if isinstance(entry, PassRun) else (entry.done,)
        if forwards := [one for one in done if one.kind == "forward"]:
            found.append(PassRun(entry.stage, forwards[0]) if isinstance(entry, PassRun) else entry)
    return tuple(found)


def stage_items(
    plan: TracedPlan, stage: int, order: Sequence[PassRun | StageTransfer], receives_first: bool = False
) -> StageItems:
    """Return the program of a stage; `order` is that of `whole_order`.

    `receives_first` is the program of every other rank of a ring.
    """
    return _StageBuilder(plan, stage, receives_first).build(order)


class _StageBuilder:
    def __init__(self, plan: TracedPlan, stage: int, receives_first: bool) -> None:
        self.plan, self.stage, self.receives_first = plan, stage, receives_first
        per_chain = plan.columns["num_microbatches"] // plan.holds.num_chains
        self.each = max(per_chain, 1)
        self.made = StageItems(digits=len(str(max(self.each - 1, 1))))
        self.length = len(plan.chunks)
        self.at: dict[tuple[str, int, int], tuple[int, int]] = {}  # (what, chunk, microbatch) -> (item, block)
        self.done: dict[tuple[str, int], list[int]] = {}  # microbatches so far, by purpose and chunk

    def build(self, order: Sequence[PassRun | StageTransfer]) -> StageItems:
        mine = [entry for entry in order if self._is_mine(entry)]
        runs = [entry for entry in mine if isinstance(entry, PassRun)]
        following = {id(run): later.item for run, later in pairwise(runs)}
        self._gather_once(runs)
        for entry in mine:
            if isinstance(entry, StageTransfer):
                self._transfer(entry)
                continue
            if entry is runs[0] and (gathers := self._gathers(entry.item)):
                self.made.items.append(Item(gathers))
            self._run(entry.item, following.get(id(entry)))
        if not self.plan.forward_only:
            self._end()
        return replace(self.made, items=self._tagged())

    def _tagged(self) -> list[Item]:
        """Return the items, with tags for the sends within passes behind those between stages."""
        most = max(nodes.num_tags for nodes in self.made.nodes.values())
        first = 2 * (self.each + 1) * len(self.plan.stages)
        items = self.made.items
        return [item if item.tag else replace(item, tag=first + number * most) for number, item in enumerate(items)]

    def _is_mine(self, entry: PassRun | StageTransfer) -> bool:
        if isinstance(entry, PassRun):
            return entry.stage == self.stage
        return self.stage in (entry.source, entry.target)

    # Passes

    def _key(self, done: Pass, paired: bool) -> PassKey:
        """Return the kind of a pass, which runs next."""
        counts = {purpose: len(self.done.get((purpose, done.chunk), ())) for purpose in PURPOSES[done.kind]}
        first = tuple(purpose for purpose, count in counts.items() if count == 0)
        last = done.kind != "forward" and {*counts.values()} == {self.each - 1}
        return PassKey(done.kind, done.chunk, first, last, paired)

    def _run(self, item: Pass | Pair, following: Pass | Pair | None) -> None:
        """Add a pass or a pair, with the gathers for the `following` one."""
        passes = passes_of(item)
        blocks: list[Block] = []
        number = len(self.made.items)
        for place, done in enumerate(passes):
            key = self._key(done, isinstance(item, Pair))
            self._make(key, done)
            # A whole backward never runs while weights of an earlier one are owed, so both its purposes follow one.
            before = self.done.get((PURPOSES[done.kind][0], done.chunk), [0])
            bases = self._bases(done) | self._previous(done)
            blocks.append(Block(key, done.microbatch, before[-1], bases))
            for what in _results(done.kind):
                self.at[what, done.chunk, done.microbatch] = (number, place)
            for purpose in PURPOSES[done.kind]:
                self.done.setdefault((purpose, done.chunk), []).append(done.microbatch)
                self.at[f"pass {purpose}", done.chunk, done.microbatch] = (number, place)
        gathers = self._gathers(following, len(blocks)) if following else ()
        self.made.items.append(Item((*blocks, *gathers), num_passes=len(blocks)))

    def _bases(self, done: Pass) -> dict[BasePass, tuple[int, int]]:
        chunk, microbatch = done.chunk, done.microbatch
        found: dict[BasePass, tuple[int, int]] = {}
        for what in ("forward", "gradient", "receive forward", "receive gradient", "gather forward", "gather gradient"):
            for other in (chunk - 1, chunk, chunk + 1):
                if (what, other, microbatch) in self.at:
                    found[what, other] = self.at[what, other, microbatch]
        return found

    def _previous(self, done: Pass) -> dict[BasePass, tuple[int, int]]:
        """Return the passes of the chunk before one, by purpose."""
        return {
            ("previous", own, done.chunk): self.at[f"pass {own}", done.chunk, self.done[own, done.chunk][-1]]
            for own in PURPOSES[done.kind]
            if (own, done.chunk) in self.done
        }

    def _make(self, key: PassKey, done: Pass) -> None:
        """Describe the nodes of a kind of pass, once."""
        if key in self.made.nodes:
            return
        plan, chunk = self.plan, done.chunk
        builder = PassBuilder(plan, key, self.made.digits, self._sources(done), self.receives_first)
        if done.kind == "forward":
            builder.forward(self._begins(chunk))
        else:
            builder.backward(self._gradients(chunk), self._begins(chunk))
        self.made.nodes[key] = builder.found

    def _sources(self, done: Pass) -> dict[str, BasePass]:
        """Return the tensors that other passes of the microbatch write."""
        found: dict[str, BasePass] = {}
        for base, (item, block) in self._bases(done).items():
            made = self.made.nodes[self.made.items[item].blocks[block].key].made
            found |= dict.fromkeys(made, base)
        return found

    def _place(self, chunk: int) -> int:
        return chunk % self.length

    def _name(self, rest: str) -> str:
        return f"m{MICROBATCH * self.made.digits}.{rest}"

    def _begins(self, chunk: int) -> Tensors:
        """Return what the forward of a chunk reads."""
        place = self._place(chunk)
        if place == 0:
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
        if self._place(chunk) == self.length - 1:
            return []
        if self.plan.stages[chunk + 1] == self.stage:
            return self._input_gradients(chunk + 1)
        return [(self._name(f"chunk {chunk} gradient"), self._boundary(chunk + 1))]

    def _input_gradients(self, chunk: int) -> Tensors:
        positions = self.plan.layers_of(chunk)
        if not positions:
            return self._gradients(chunk)
        nodes = self.plan.nodes(positions[0])
        if nodes.output_gradient in nodes.input_gradients and len(positions) == 1:
            passed = self._gradients(chunk)
        else:
            passed = []
        own = [name for name in nodes.input_gradients if name != nodes.output_gradient]
        return passed + [(self._name(f"L{positions[0]:03d}.{name}"), nodes.boundary_bytes) for name in own]

    def _boundary(self, chunk: int) -> int:
        """Return the bytes between a chunk and the one before it."""
        first = chunk - self._place(chunk)
        later = [at for other in range(chunk, first + self.length) for at in self.plan.layers_of(other)]
        earlier = [at for other in range(first, chunk) for at in self.plan.layers_of(other)]
        return self.plan.nodes((later[:1] or earlier[-1:])[0]).boundary_bytes

    # Transfers

    def _transfer(self, entry: StageTransfer) -> None:
        done, sends = entry.done, entry.source == self.stage
        chunk, microbatch = done.chunk, done.microbatch
        forward = done.kind == "forward"
        target = chunk + 1 if forward else chunk - 1
        tag = 1 + 2 * (microbatch * len(self.plan.stages) + chunk) + (0 if forward else 1)
        what = "forward" if forward else "gradient"
        number = len(self.made.items)
        bases: dict[BasePass, tuple[int, int]] = {}
        key = (("send" if sends else "receive"), what, chunk)
        if sends:
            tensors = self._results(chunk) if forward else self._input_gradients(chunk)
            for base in ((what, chunk), (f"receive {what}", chunk)):
                if (*base, microbatch) in self.at:
                    bases[base] = self.at[(*base, microbatch)]
        else:
            tensors = self._begins(target) if forward else self._gradients(target)
            self.at[f"receive {what}", target, microbatch] = (number, 0)
        if key not in self.made.nodes:
            self.made.nodes[key] = self._transfer_nodes(sends, what, chunk, target, tensors, bases)
        self.made.items.append(Item((Block(key, microbatch, 0, bases),), tag))

    def _transfer_nodes(
        self,
        sends: bool,
        what: str,
        chunk: int,
        target: int,
        tensors: Tensors,
        bases: Mapping[BasePass, tuple[int, int]],
    ) -> PassNodes:
        verb, other = ("send", target) if sends else ("receive", chunk)
        later = max(chunk, target)
        communication = NodeCommunication(self._boundary(later), peer=("stage", self.plan.stages[other]))
        name = self._name(f"{verb} {what} of chunk {chunk}")
        builder = PassBuilder(self.plan, PassKey(verb, chunk, (), False), self.made.digits, {})
        for base, (item, block) in bases.items():
            made = self.made.nodes[self.made.items[item].blocks[block].key].made
            builder.sources |= dict.fromkeys(made, base)
        node = TraceNode(COMM_SEND if sends else COMM_RECV, name, communication=communication)
        node.inputs, node.outputs = (list(tensors), []) if sends else ([], list(tensors))
        node.overlap = self.plan.assumptions.pp_overlap if sends else None
        builder.add(node)
        return builder.found

    # ZeRO

    def _gathers(self, item: Pass | Pair, place: int = 0) -> tuple[Block, ...]:
        """Return the gathers for the first layers of a pass or a pair, the blocks of an item from `place` on."""
        found: list[Block] = []
        for done in passes_of(item):
            direction = FORWARD if done.kind == "forward" else BACKWARD
            each = [one for one in accompanying(self.plan.columns["zero_stage"], direction) if one.kind == ALL_GATHER]
            due = any(one.every == "microbatch" for one in each)
            positions = self.plan.layers_of(done.chunk)
            if done.kind == "weights" or not due or not positions:
                continue
            layers = [positions[0] if direction == FORWARD else positions[-1]]
            key = self._key(done, isinstance(item, Pair))
            found += self._gather(done, key, direction, layers, place + len(found))
        return tuple(found)

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
            if gathers := self._gather(done, key, FORWARD, self.plan.layers_of(chunk), 0):
                self.made.items.append(Item(gathers))

    def _gather(
        self, done: Pass, key: PassKey, direction: int, positions: Sequence[int], place: int
    ) -> tuple[Block, ...]:
        """Return the gathers of some layers of a pass, a block of the next item; none where none is due."""
        own = ("gather", direction, done.chunk, key.first)
        if own not in self.made.nodes:
            builder = PassBuilder(self.plan, key, self.made.digits, {})
            for position in positions:
                builder.gather(position, direction)
            self.made.nodes[own] = builder.found
        if not self.made.nodes[own].nodes:
            return ()
        what = "gather forward" if direction == FORWARD else "gather gradient"
        self.at[what, done.chunk, done.microbatch] = (len(self.made.items), place)
        return (Block(own, done.microbatch, 0, {}),)

    # The end of the step

    def _end(self) -> None:
        chunks = [chunk for chunk, stage in enumerate(self.plan.stages) if stage == self.stage]
        bases: dict[BasePass, tuple[int, int]] = {}
        sources: dict[str, BasePass] = {}
        last = self.each - 1
        for chunk in chunks:
            for purpose in PURPOSES["backward"]:
                place = bases["last", purpose, chunk] = self.at[f"pass {purpose}", chunk, last]
                made = self.made.nodes[self.made.items[place[0]].blocks[place[1]].key].made
                sources |= dict.fromkeys(made, ("last", purpose, chunk))
        key = PassKey("end", 0, (), True)
        builder = EndBuilder(self.plan, key, self.made.digits, sources)
        positions = sorted({at for chunk in chunks for at in self.plan.layers_of(chunk)}, reverse=True)
        builder.end(positions)
        if not builder.found.nodes:
            return
        self.made.nodes[key] = builder.found
        self.made.items.append(Item((Block(key, last, last, bases),)))


def _results(kind: str) -> tuple[str, ...]:
    """Return what a pass computes, by the words that others refer to it with."""
    if kind == "forward":
        return ("forward",)
    return () if kind == "weights" else ("gradient",)
