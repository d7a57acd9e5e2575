"""The launches of a kernel: one in the forward; in the backward, the gradients of inputs and those of weights.

An operator alone moves the bytes of its operator table. A fused kernel moves the tensors that cross its border, and in
its backward also what it keeps besides them. The two gradients of a multiply are two launches, since each is a multiply
of its own; so a multiply with a weight that is fused with what follows, such as its bias, has two launches back, which
both read the gradient of its result. A fused kernel without such a multiply (attention) has one launch back.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from dsx.graph.expressions import total
from dsx.graph.kernels import Kernel, crossing
from dsx.graph.layer import Argument, Layer, Operator
from dsx.graph.operator_work import Gradient, Work, backward_work, forward_work, functions
from dsx.graph.saved import tensor_bytes

Part = Literal["forward", "inputs", "weights"]  # "inputs" has the gradients of weights too, unless a launch has them


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """What one launch does, and the arguments that it computes gradients of and reads for them."""

    part: Part
    work: Work
    gradients_of: tuple[Argument, ...] = ()
    reads: tuple[Argument, ...] = ()  # of the tensors from outside the kernel, for a backward
    keeps: bool = True  # whether it reads the state that the kernel keeps besides tensors


def forward_launch(layer: Layer, kernel: Kernel, uncounted: frozenset[str]) -> LaunchWork:
    """Return the forward of a kernel; operators of the kinds in `uncounted` do nothing."""
    counted = [op for op in kernel.operators if op.kind.name not in uncounted]
    work = sum((forward_work(layer, op) for op in counted), Work())
    if kernel.fused:
        work = replace(work, bytes=_forward_bytes(layer, kernel), unfused=0)
    return LaunchWork("forward", work)


def backward_launches(
    layer: Layer, kernel: Kernel, fused_backward_reads: str, uncounted: frozenset[str]
) -> tuple[LaunchWork, ...]:
    """Return the launches of a kernel's backward, inputs first; none where it does no work."""
    counted = [op for op in kernel.operators if op.kind.name not in uncounted]
    gradients = [(op, gradient) for op in counted for gradient in backward_work(layer, op)]
    if kernel.fused:
        recomputed = sum((forward_work(layer, op) for op in counted if op in kernel.recomputed), Work())
        return _fused(layer, kernel, gradients, recomputed, fused_backward_reads)
    ((op, first), *others) = gradients or [(kernel.operators[0], Gradient(Work()))]
    if first.work == Work() and not others:
        return ()
    if not first.work.multiplies:
        work = sum((gradient.work for _, gradient in others), first.work)
        outer = tuple(argument for argument in op.arguments if not layer.tensors[argument.tensor].data)
        return (LaunchWork("inputs", work, outer, tuple(kernel.border)),)
    found = [_of_multiply(op, gradient) for op, gradient in gradients]
    return tuple(sorted(found, key=lambda launch: launch.part))


def _of_multiply(op: Operator, gradient: Gradient) -> LaunchWork:
    others = tuple(argument for argument in op.arguments if argument is not gradient.argument)
    own = (gradient.argument,) if gradient.argument else ()
    return LaunchWork("weights" if gradient.of_weight else "inputs", gradient.work, own, others)


def _fused(
    layer: Layer, kernel: Kernel, gradients: list[tuple[Operator, Gradient]], recomputed: Work, backward_reads: str
) -> tuple[LaunchWork, ...]:
    """Return one launch, or two where the kernel has a multiply with a weight."""
    entering = {(arg.tensor, str(arg.distribution)): arg for arg in entering_arguments(kernel)}
    of_weights = [(op, gradient) for op, gradient in gradients if gradient.of_weight]
    rest = sum((gradient.work for _, gradient in gradients if not gradient.of_weight), recomputed)
    outer = tuple(arg for arg in entering.values() if not layer.tensors[arg.tensor].data)
    leaving = total(
        tensor_bytes(layer, name, layer.tensors[name].distribution) for name in crossing(layer, kernel.operators)
    )
    reads = _backward_reads(layer, kernel, backward_reads)
    written = {key: tensor_bytes(layer, arg.tensor, arg.distribution) for key, arg in entering.items()}
    if not of_weights:
        moved = total([*(size for _, size in reads), leaving, *written.values()])
        return (LaunchWork("inputs", replace(rest, bytes=moved, unfused=0), outer, kernel.border),)
    weights = {key for key, arg in entering.items() if layer.tensors[arg.tensor].weight}
    # The gradient of a weight takes the other factor of its multiply; the gradient of the input the weight.
    factors = {arg.tensor for op, gradient in of_weights for arg in op.arguments if arg is not gradient.argument}
    parts: list[LaunchWork] = []
    for of_part, work in ((False, rest), (True, sum((gradient.work for _, gradient in of_weights), Work()))):
        taken = [size for tensor, size in reads if (tensor in factors) == of_part]
        made = [size for key, size in written.items() if (key in weights) == of_part]
        parts.append(
            LaunchWork(
                "weights" if of_part else "inputs",
                replace(work, bytes=total([*taken, leaving, *made]), unfused=0),
                tuple(arg for arg in outer if ((arg.tensor, str(arg.distribution)) in weights) == of_part),
                tuple(arg for arg in kernel.border if (arg.tensor in factors) == of_part),
                keeps=not of_part,
            )
        )
    return tuple(parts)


def entering_arguments(kernel: Kernel) -> list[Argument]:
    """Return the arguments of a kernel's operators that come from outside of it."""
    inside = {name for op in kernel.operators for name in op.outputs}
    return [arg for op in kernel.operators for arg in op.arguments if arg.tensor not in inside]


def _forward_bytes(layer: Layer, kernel: Kernel) -> Any:
    """Return the bytes that the forward of a fused kernel reads and writes."""
    entering = {
        (arg.tensor, str(arg.distribution)): tensor_bytes(layer, arg.tensor, arg.distribution)
        for arg in entering_arguments(kernel)
    }
    writes = [
        op.kind.in_kernel.writes.resolve(functions(layer, op))
        for op in kernel.operators
        if op.kind.in_kernel and op.kind.in_kernel.writes
    ]
    return total([*entering.values(), *_leaving(layer, kernel), *writes])


def _leaving(layer: Layer, kernel: Kernel) -> list[Any]:
    """Return the bytes of the results of a kernel that others consume."""
    return [tensor_bytes(layer, name, layer.tensors[name].distribution) for name in crossing(layer, kernel.operators)]


def _backward_reads(layer: Layer, kernel: Kernel, backward_reads: str) -> list[tuple[str, Any]]:
    """Return what the backward of a fused kernel reads besides gradients: tensors with their bytes."""
    if backward_reads == "stored":
        stored = [(saved.key[0], saved.bytes) for saved in kernel.saved]
        weights = [arg for arg in kernel.border if layer.tensors[arg.tensor].weight]
        return stored + [(arg.tensor, tensor_bytes(layer, arg.tensor, arg.distribution)) for arg in weights]
    consumed = [(arg.tensor, tensor_bytes(layer, arg.tensor, arg.distribution)) for arg in kernel.border]
    return consumed + [(saved.key[0], saved.bytes) for saved in kernel.saved if saved.key[1].startswith("state ")]
