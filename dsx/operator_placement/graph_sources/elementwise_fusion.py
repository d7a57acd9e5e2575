"""The kernels that a compiler makes of traced operators: what works element by element is fused, as XLA does.

An operator that works element by element, or reduces, joins what makes its input, if nothing else reads that. It joins
it even so if both loop over equally many elements, and the kernel then has several results. What a reduction makes ends
a kernel. Views and spreads (a broadcast) are read through by their readers, unless a kernel of its own, such as a
multiply, needs a spread in memory. The transpose of the result of a multiply is part of the multiply if nothing else
reads that. A fusion that would make a cycle is left out.

Not modelled: multiplies with fused epilogues, cheap operators that XLA repeats in each of several readers.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.operator_placement.graph_sources.traced_step import TracedOperator, TracedStep
from dsx.operator_placement.merging import Merging
from dsx.operator_placement.op_graph import OpGraph, Tensors


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """Operators that one launch runs, in the order of the step; its tensors are those in memory."""

    members: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FusedStep:
    """The kernels of a step."""

    step: TracedStep
    kernels: tuple[FusedKernel, ...]  # each after those that it reads from
    source: tuple[int | None, ...]  # of each tensor, the tensor that is read in its place; None for one without any
    part_of: Mapping[int, int]  # tensors that are read where another one is, which they are a part of


def fused(step: TracedStep) -> FusedStep:
    """Return the kernels of a step."""
    melted = _melted(step)
    source, part_of = _sources(step, melted)
    own = [op for op in range(len(step.operators)) if op not in melted]
    merging = Merging(_graph(step, own, source, part_of))
    reductions = {tensor for op in step.operators if op.role == "reduction" for tensor in op.outputs}
    alone = [step.operators[op].role == "alone" for op in own]
    elements = [step.operators[op].elements for op in own]
    multiplies = [bool(step.operators[op].multiplies) for op in own]
    transposes = [step.operators[op].role == "transpose" for op in own]

    def joins(op: int, other: int) -> bool:
        if multiplies[op] and transposes[other] and len(merging.members[op]) == len(merging.members[other]) == 1:
            return len(merging.after[op]) == 1
        if alone[op] or alone[other] or merging.after[op][other] & reductions:
            return False
        if len(merging.after[op]) == 1:
            return True
        return elements[op] == elements[other] and not merging.has_detour(op, other)

    pending = deque((op, other) for op in merging.order for other in sorted(merging.after[op]))
    while pending:
        op, other = pending.popleft()
        if op not in merging.after or other not in merging.after[op] or not joins(op, other):
            continue
        elements[op] = max(elements[op], elements[other])
        merging.merge(op, other)
        pending += [(op, after) for after in sorted(merging.after[op])]
        pending += [(before, op) for before in sorted(merging.before[op])]
    members = [tuple(sorted(own[one] for one in merging.members[op])) for op in merging.order if op >= 0]
    return FusedStep(step, tuple(_kernels(step, members, source, part_of)), tuple(source), part_of)


def _kernels(
    step: TracedStep,
    members: Sequence[tuple[int, ...]],
    source: Sequence[int | None],
    part_of: Mapping[int, int],
) -> list[FusedKernel]:
    returned = {source[tensor] for tensor in step.outputs}
    made = [{tensor for op in ops for tensor in step.operators[op].outputs} for ops in members]
    reads = [
        [
            tensor
            for tensor in dict.fromkeys(one for op in ops for one in inputs_of(step.operators[op], source))
            if part_of.get(tensor, tensor) not in own
        ]
        for ops, own in zip(members, made, strict=True)
    ]
    leaving = returned.union(*reads)
    leaving |= {part_of[tensor] for tensor in leaving if tensor is not None and tensor in part_of}
    return [
        FusedKernel(ops, tuple(taken), tuple(tensor for tensor in sorted(own) if tensor in leaving))
        for ops, own, taken in zip(members, made, reads, strict=True)
    ]


def _melted(step: TracedStep) -> set[int]:
    """Return the operators that no kernel runs: views, and spreads that none needs in memory."""
    needed = set(step.outputs)  # in memory, as they are
    melted: set[int] = set()
    for number in reversed(range(len(step.operators))):
        op = step.operators[number]
        if op.role in ("view", "part"):
            melted.add(number)
            needed.update(op.inputs if needed.intersection(op.outputs) else ())
        elif op.role == "spread" and not needed.intersection(op.outputs):
            melted.add(number)
        elif op.role == "alone":
            needed.update(op.inputs)
    return melted


def _sources(step: TracedStep, melted: set[int]) -> tuple[list[int | None], dict[int, int]]:
    """Return what is read in place of each tensor, and what the parts that are read are of."""
    source: list[int | None] = [*range(len(step.tensor_bytes))]
    part_of: dict[int, int] = {}
    spread: set[int] = set()  # what has more elements than is read in its place; a part of it is read as all of that
    for number in sorted(melted):
        op = step.operators[number]
        for place, tensor in enumerate(op.outputs):
            # A view of several tensors, such as a barrier, is each of them; a part of one may be several.
            given = op.inputs[min(place, len(op.inputs) - 1)] if op.inputs else None
            found = None if given is None else source[given]
            if op.role == "spread" or given in spread:
                spread.add(tensor)
            if op.role == "part" and found is not None and tensor not in spread:
                part_of[tensor] = part_of.get(found, found)
            else:
                source[tensor] = found
    return source, part_of


def _graph(step: TracedStep, own: Sequence[int], source: Sequence[int | None], part_of: Mapping[int, int]) -> OpGraph:
    """Return the operators with kernels as a graph without times."""
    made = {tensor: at for at, op in enumerate(own) for tensor in step.operators[op].outputs}
    edges: dict[tuple[int, int], Tensors] = {}
    for at, op in enumerate(own):
        for tensor in inputs_of(step.operators[op], source):
            maker = made.get(part_of.get(tensor, tensor))
            if maker is not None:
                ends = maker, at
                edges[ends] = edges.get(ends, frozenset()) | {tensor}
    operators = [step.operators[op] for op in own]
    return OpGraph(
        ids=tuple(op.id for op in operators),
        kinds=tuple(op.kind for op in operators),
        seconds=np.zeros((len(own), 1)),
        memory_bytes=np.zeros(len(own)),
        edges=edges,
        tensor_bytes=np.array(step.tensor_bytes),
        together=np.arange(len(own)),
    )


def inputs_of(op: TracedOperator, source: Sequence[int | None]) -> list[int]:
    """Return the tensors that an operator reads where views and melted spreads are read through."""
    found = (source[tensor] for tensor in op.inputs)
    return [tensor for tensor in dict.fromkeys(found) if tensor is not None]
