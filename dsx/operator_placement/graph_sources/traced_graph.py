"""The graph of a traced step: its kernels with their seconds, and its inputs.

An input is an operator without time that holds its bytes, so it counts where weights are. Each tensor that a kernel
leaves in memory is held to the end of the step: an upper bound, without reuse. An input of one element is no operator
and has no edge. Where a step returns the new value of an input, both share a device, since the next step needs it
there, and the new value takes the memory of the old one.
"""

from collections.abc import Mapping

import numpy as np

from dsx.errors import InputError
from dsx.operator_placement.graph_sources.elementwise_fusion import FusedKernel, FusedStep, fused
from dsx.operator_placement.graph_sources.kernel_pricing import Pricing, kernel_seconds
from dsx.operator_placement.graph_sources.traced_step import Kernel, TracedOperator, TracedStep
from dsx.operator_placement.op_graph import OpGraph, Tensors

_SHOWN_KINDS = 3
_ELEMENT = 16.0  # bytes of the largest number, a complex one


def graph_of_step(step: TracedStep, pricing: Pricing) -> OpGraph:
    """Return the graph of a step, priced by the roofline; raises InputError for a step without operators."""
    kernels = fused(step)
    return graph_of_kernels(kernels, priced(kernels, pricing))


def priced(step: FusedStep, pricing: Pricing) -> np.ndarray:
    """Return the seconds of the kernels of a step by the roofline, [K]."""
    works = [works_of(step, kernel) for kernel in step.kernels]
    owner = np.repeat(np.arange(len(works)), [len(each) for each in works])
    return np.bincount(owner, kernel_seconds([work for each in works for work in each], pricing), len(works))


def works_of(step: FusedStep, kernel: FusedKernel) -> tuple[Kernel, ...]:
    """Return what a kernel computes and moves; a loop or a branch may be several kernels."""
    operators = [step.step.operators[op] for op in kernel.members]
    if operators[0].inside:
        return operators[0].inside
    read = dict.fromkeys(kernel.reads, 0.0)
    for op in operators:
        for tensor, size in zip(op.inputs, op.read_bytes, strict=True):
            found = step.source[tensor]
            if found is not None and found in read:
                read[found] = max(read[found], min(size, step.step.tensor_bytes[found]))
    written = sum(op.written_bytes for op in operators if not {*op.outputs}.isdisjoint(kernel.writes))
    multiplies = tuple(multiply for op in operators for multiply in op.multiplies)
    return (Kernel(sum(op.vector_flops for op in operators), sum(read.values()) + written, multiplies),)


def graph_of_kernels(fused_step: FusedStep, seconds: np.ndarray) -> OpGraph:
    """Return the graph of the kernels of a step with some seconds, [K]; its inputs come first."""
    step, kernels = fused_step.step, fused_step.kernels
    if not kernels:
        raise InputError("the step has no operators: it computes nothing of its arguments")
    size = step.tensor_bytes
    whole = fused_step.part_of
    used = {whole.get(tensor, tensor) for kernel in kernels for tensor in kernel.reads}
    inputs = [tensor for tensor in step.inputs if tensor in used and size[tensor] > _ELEMENT]
    place = {tensor: at for at, tensor in enumerate(inputs)}
    place |= {tensor: at for at, kernel in enumerate(kernels, len(inputs)) for tensor in kernel.writes}
    number: dict[int, int] = {}
    edges: dict[tuple[int, int], Tensors] = {}
    for at, kernel in enumerate(kernels, len(inputs)):
        for tensor in kernel.reads:
            maker = place.get(whole.get(tensor, tensor))
            if maker is not None:
                ends = maker, at
                edges[ends] = edges.get(ends, frozenset()) | {number.setdefault(tensor, len(number))}
    in_place = {fused_step.source[new] for given, new in step.updates.items() if given in place}
    held = [size[tensor] for tensor in inputs]
    held += [sum(size[one] for one in kernel.writes if one not in in_place) for kernel in kernels]
    return OpGraph(
        ids=(
            *(step.inputs[tensor] for tensor in inputs),
            *(named_after(step, kernel).id for kernel in kernels),
        ),
        kinds=(*("input" for _ in inputs), *(_kind(step, kernel) for kernel in kernels)),
        seconds=np.concatenate([np.zeros(len(inputs)), seconds])[:, None],
        memory_bytes=np.array(held, dtype=float),
        edges=edges,
        tensor_bytes=np.array([size[tensor] for tensor in number], dtype=float),
        together=_together(fused_step, place, len(held)),
    )


def named_after(step: TracedStep, kernel: FusedKernel) -> TracedOperator:
    """Return the operator that gives a kernel its name: a multiply, else the last one."""
    members = [step.operators[op] for op in kernel.members]
    return next((op for op in members if op.multiplies), members[-1])


def _kind(step: TracedStep, kernel: FusedKernel) -> str:
    named = named_after(step, kernel)
    if named.multiplies:
        return named.kind
    kinds = [*dict.fromkeys(step.operators[op].kind for op in kernel.members)]
    return "+".join(kinds if len(kinds) <= _SHOWN_KINDS else [*kinds[:_SHOWN_KINDS], "..."])


def _together(step: FusedStep, place: Mapping[int, int], count: int) -> np.ndarray:
    """Return the labels of the operators: those of an input and of its new value are one."""
    root = list(range(count))

    def find(op: int) -> int:
        while root[op] != op:
            op = root[op]
        return op

    for given, new in step.step.updates.items():
        made = step.source[new]
        if given in place and made is not None and made in place:
            one, other = find(place[given]), find(place[made])
            root[max(one, other)] = min(one, other)
    return np.unique([find(op) for op in range(count)], return_inverse=True)[1]
