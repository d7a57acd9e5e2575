"""The graph of a traced step: its operators fused as a compiler does, with their seconds, and its inputs.

An operator that works element by element, or reduces, joins what makes its input, if nothing else reads that. It joins
it even so if both loop over equally many elements, and the kernel then has several results. What a reduction makes ends
a kernel. Views and spreads (a broadcast) are read through by their readers, unless a kernel of its own, such as a
multiply, needs a spread in memory. The transpose of the result of a multiply is part of the multiply if nothing else
reads that. A fusion that would make a cycle is left out.

Seconds are those of the roofline of `dsx.cost`, as for the kernels of layers. A multiply runs at the device's rate for
the precision of training, whatever the type of its arrays. A kernel is launched once.

An input is an operator without time that holds its bytes, so it counts where weights are. Each tensor that a kernel
leaves in memory is held to the end of the step: an upper bound, without reuse. An input of one element is no operator
and has no edge. Where a step returns the new value of an input, both share a device, since the next step needs it
there, and the new value takes the memory of the old one.

Not modelled: the host that issues kernels, multiplies with fused epilogues, cheap operators that XLA repeats in each of
several readers.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from dsx import arrays as xp
from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import Device, cluster_from_spec, load_cluster
from dsx.config.load import Given
from dsx.cost.context import Assumptions, assumptions_from_spec
from dsx.cost.layer_work import Multiplies, MultiplyShape
from dsx.cost.roofline import compute_time, exposed_memory_time, slowdowns
from dsx.errors import InputError
from dsx.notation.graph import BACKWARD, FORWARD
from dsx.placement.op_graph import Edge, Merging, OpGraph, Tensors, joined, joined_kinds

DEFAULT_CLUSTER, DEFAULT_ASSUMPTIONS = "h100-nvs8", "default"  # which price a step without times of its own
_ELEMENT = 16.0  # bytes of the largest number, a complex one

# How an operator may be fused: a view moves nothing and has all elements of what it is of, a
# part has some that lie together; a spread makes more elements of fewer ones, or of none; a transpose, and what is
# elementwise, compute each element by itself; the others reduce, or are kernels of their own.
Role = Literal["view", "part", "spread", "transpose", "elementwise", "reduction", "alone"]


@dataclass(frozen=True, slots=True)
class TracedMultiply:
    """`batch` multiplies of (rows x contracted) by (contracted x columns)."""

    rows: float
    columns: float
    contracted: float
    batch: float
    flops: float  # of all of them; less than the sizes say where zeros of a padding are left out
    attention: bool = False  # inside a fused kernel of attention
    backward: bool = False  # of that kernel


@dataclass(frozen=True, slots=True)
class TracedKernel:
    """What one launch computes and moves."""

    vector_flops: float
    num_bytes: float
    multiplies: tuple[TracedMultiply, ...] = ()
    runs: float = 1.0  # how often it runs


@dataclass(frozen=True, slots=True)
class TracedOperator:
    """One operator; tensors are numbers."""

    id: str
    kind: str
    role: Role
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    read_bytes: tuple[float, ...]  # of each input
    written_bytes: float
    elements: float  # of its largest tensor: what its kernel loops over
    vector_flops: float = 0.0
    multiplies: tuple[TracedMultiply, ...] = ()
    inside: tuple[TracedKernel, ...] = ()  # of a loop or a branch, in place of all other work


@dataclass(frozen=True, slots=True)
class TracedStep:
    """The operators of a step, each after those that it takes from."""

    operators: tuple[TracedOperator, ...]
    tensor_bytes: tuple[float, ...]
    inputs: Mapping[int, str]  # tensors from outside of the step, with their names
    outputs: frozenset[int]  # tensors that the step returns
    updates: Mapping[int, int] = field(default_factory=dict)  # input -> its new value, which the step returns


class Pricing(NamedTuple):
    """What the seconds of a kernel depend on besides its work."""

    device: Device
    assumptions: Assumptions


def pricing_of(cluster: Given, assumptions: Given) -> Pricing:
    """Return the pricing on a device of a cluster under an assumption set; raises SpecError or UnknownNameError."""
    machine = load_cluster(cluster)
    numbers = assumptions_from_spec(load_assumptions(assumptions), machine.device.family)
    return Pricing(cluster_from_spec(machine).device, numbers)


@xp.unchecked
def kernel_seconds(kernels: Sequence[TracedKernel], pricing: Pricing) -> np.ndarray:
    """Return the seconds of all runs of each kernel, [K]."""
    multiplies = [multiply for kernel in kernels for multiply in kernel.multiplies]
    owner = np.repeat(np.arange(len(kernels)), [len(kernel.multiplies) for kernel in kernels])
    matrix = np.zeros(len(kernels))
    if multiplies:
        names = ("rows", "columns", "contracted", "batch", "flops")
        sizes = Multiplies(**{name: np.array([[float(getattr(m, name))] for m in multiplies]) for name in names})
        shapes = tuple(
            MultiplyShape(0, BACKWARD if m.backward else FORWARD, False, m.attention, False, False) for m in multiplies
        )
        slowed = np.asarray(sizes.flops * slowdowns(sizes, shapes, *pricing))[:, 0]
        matrix = np.bincount(owner, slowed, len(kernels))
    launches = np.ones(len(kernels))
    vector = np.array([kernel.vector_flops for kernel in kernels])
    num_bytes = np.array([kernel.num_bytes for kernel in kernels])
    compute_s = np.asarray(compute_time(matrix, vector, launches, *pricing))
    exposed_s = np.asarray(exposed_memory_time(num_bytes, compute_s, launches, *pricing))
    return (compute_s + exposed_s) * np.array([kernel.runs for kernel in kernels])


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
    numbers = [number for number in range(len(step.operators)) if number not in melted]
    ops = [step.operators[number] for number in numbers]
    maker = {tensor: at for at, op in enumerate(ops) for tensor in op.outputs}
    without_times = OpGraph(
        ids=tuple(op.id for op in ops),
        kinds=tuple(op.kind for op in ops),
        seconds=np.zeros((len(ops), 1)),
        memory_bytes=np.zeros(len(ops)),
        edges=_edges([inputs_of(op, source) for op in ops], maker, part_of),
        tensor_bytes=np.array(step.tensor_bytes),
        together=np.arange(len(ops)),
    )
    merging = Merging(without_times)
    reductions = {tensor for op in step.operators if op.role == "reduction" for tensor in op.outputs}
    elements = [op.elements for op in ops]

    def joins(op: int, reader: int) -> bool:
        single = len(merging.members[op]) == len(merging.members[reader]) == 1
        if ops[op].multiplies and ops[reader].role == "transpose" and single:
            return len(merging.after[op]) == 1
        if "alone" in (ops[op].role, ops[reader].role) or merging.after[op][reader] & reductions:
            return False
        if len(merging.after[op]) == 1:
            return True
        return elements[op] == elements[reader] and not merging.has_detour(op, reader)

    pending = deque((op, reader) for op in merging.order for reader in sorted(merging.after[op]))
    while pending:
        op, reader = pending.popleft()
        if not merging.has_edge(op, reader) or not joins(op, reader):
            continue
        elements[op] = max(elements[op], elements[reader])
        merging.merge(op, reader)
        pending += [(op, successor) for successor in sorted(merging.after[op])]
        pending += [(source, op) for source in sorted(merging.before[op])]
    members = [tuple(sorted(numbers[member] for member in merging.members[op])) for op in merging.order]
    outputs = [{tensor for op in ops for tensor in step.operators[op].outputs} for ops in members]
    reads: list[list[int]] = []
    for ops_of, written in zip(members, outputs, strict=True):
        read = dict.fromkeys(tensor for op in ops_of for tensor in inputs_of(step.operators[op], source))
        reads.append([tensor for tensor in read if part_of.get(tensor, tensor) not in written])
    leaving = {source[tensor] for tensor in step.outputs}.union(*reads)
    leaving |= {part_of[tensor] for tensor in leaving if tensor is not None and tensor in part_of}
    kernels = [
        FusedKernel(ops_of, tuple(read), tuple(tensor for tensor in sorted(written) if tensor in leaving))
        for ops_of, written, read in zip(members, outputs, reads, strict=True)
    ]
    return FusedStep(step, tuple(kernels), tuple(source), part_of)


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
            viewed = op.inputs[min(place, len(op.inputs) - 1)] if op.inputs else None
            origin = None if viewed is None else source[viewed]
            if op.role == "spread" or viewed in spread:
                spread.add(tensor)
            if op.role == "part" and origin is not None and tensor not in spread:
                part_of[tensor] = part_of.get(origin, origin)
            else:
                source[tensor] = origin
    return source, part_of


def _edges(reads: Sequence[Sequence[int]], maker: Mapping[int, int], part_of: Mapping[int, int]) -> dict[Edge, Tensors]:
    """Return the edges with the tensors that each operator reads, given the operators that make tensors."""
    edges: dict[Edge, Tensors] = {}
    for op, tensors in enumerate(reads):
        for tensor in tensors:
            source = maker.get(part_of.get(tensor, tensor))
            if source is not None:
                edges[source, op] = edges.get((source, op), frozenset()) | {tensor}
    return edges


def inputs_of(op: TracedOperator, source: Sequence[int | None]) -> list[int]:
    """Return the tensors that an operator reads where views and melted spreads are read through."""
    sources = (source[tensor] for tensor in op.inputs)
    return [tensor for tensor in dict.fromkeys(sources) if tensor is not None]


def graph_of_step(step: TracedStep, pricing: Pricing) -> OpGraph:
    """Return the graph of a step, priced by the roofline; raises InputError for a step without operators."""
    kernels = fused(step)
    works = [works_of(kernels, kernel) for kernel in kernels.kernels]
    owner = np.repeat(np.arange(len(works)), [*map(len, works)])
    seconds = kernel_seconds([work for kernel in works for work in kernel], pricing)
    return graph_of_kernels(kernels, np.bincount(owner, seconds, len(works)))


def works_of(step: FusedStep, kernel: FusedKernel) -> tuple[TracedKernel, ...]:
    """Return what a kernel computes and moves; a loop or a branch may be several kernels."""
    operators = [step.step.operators[op] for op in kernel.members]
    if operators[0].inside:
        return operators[0].inside
    read = dict.fromkeys(kernel.reads, 0.0)
    for op in operators:
        for tensor, size in zip(op.inputs, op.read_bytes, strict=True):
            origin = step.source[tensor]
            if origin is not None and origin in read:
                read[origin] = max(read[origin], min(size, step.step.tensor_bytes[origin]))
    written = sum(op.written_bytes for op in operators if not {*op.outputs}.isdisjoint(kernel.writes))
    multiplies = tuple(multiply for op in operators for multiply in op.multiplies)
    return (TracedKernel(sum(op.vector_flops for op in operators), sum(read.values()) + written, multiplies),)


def graph_of_kernels(fused_step: FusedStep, seconds: np.ndarray) -> OpGraph:
    """Return the graph of the kernels of a step with some seconds, [K]; its inputs come first."""
    step, kernels, part_of = fused_step.step, fused_step.kernels, fused_step.part_of
    if not kernels:
        raise InputError("the step has no operators: it computes nothing of its arguments")
    size = step.tensor_bytes
    used = {part_of.get(tensor, tensor) for kernel in kernels for tensor in kernel.reads}
    inputs = [tensor for tensor in step.inputs if tensor in used and size[tensor] > _ELEMENT]
    maker = {tensor: at for at, tensor in enumerate(inputs)}
    maker |= {tensor: at for at, kernel in enumerate(kernels, len(inputs)) for tensor in kernel.writes}
    edges = _edges([*[()] * len(inputs), *(kernel.reads for kernel in kernels)], maker, part_of)
    # Tensors are numbered as they are read.
    read = (tensor for kernel in kernels for tensor in kernel.reads if part_of.get(tensor, tensor) in maker)
    number = {tensor: at for at, tensor in enumerate(dict.fromkeys(read))}
    new_values = {old: fused_step.source[new] for old, new in step.updates.items() if old in maker}
    in_place = {*new_values.values()}
    held = [size[tensor] for tensor in inputs]
    held += [sum(size[tensor] for tensor in kernel.writes if tensor not in in_place) for kernel in kernels]
    shared = [(maker[old], maker[new]) for old, new in new_values.items() if new is not None and new in maker]
    named = [named_after(step, kernel) for kernel in kernels]
    kinds = [
        op.kind if op.multiplies else joined_kinds(step.operators[member].kind for member in kernel.members)
        for op, kernel in zip(named, kernels, strict=True)
    ]
    return OpGraph(
        ids=(*(step.inputs[tensor] for tensor in inputs), *(op.id for op in named)),
        kinds=(*("input" for _ in inputs), *kinds),
        seconds=np.concatenate([np.zeros(len(inputs)), seconds])[:, None],
        memory_bytes=np.array(held, dtype=float),
        edges={ends: frozenset(number[tensor] for tensor in tensors) for ends, tensors in edges.items()},
        tensor_bytes=np.array([size[tensor] for tensor in number], dtype=float),
        together=np.unique(joined(len(held), shared), return_inverse=True)[1],
    )


def named_after(step: TracedStep, kernel: FusedKernel) -> TracedOperator:
    """Return the operator that gives a kernel its name: a multiply, else the last one."""
    members = [step.operators[op] for op in kernel.members]
    return next((op for op in members if op.multiplies), members[-1])
