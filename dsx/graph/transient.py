"""The transient memory of a kernel's backward, besides what is saved.

A running backward holds the gradients that it reads, or that kernels before it wait for; those that it makes, of its
arguments; and the tensors that it gathers a second time.
"""

from typing import Any

from dsx.graph.expressions import Name, combine, product, total
from dsx.graph.kernels import Kernel
from dsx.graph.layer import PANELS, Layer
from dsx.graph.match import elements
from dsx.graph.nodes import Launch, LayerGraph, Value
from dsx.graph.saved import GRADIENT_BYTES, axes_between, is_copy, tensor_bytes


def transient_bytes(layer: Layer, graph: LayerGraph, index: int, kernel: Kernel) -> Any:
    """Return the local bytes of the transient tensors of the backward of a kernel, by its position in the layer.

    0 for one that has no backward of its own: the gradient of its result is that of its arguments.
    """
    begins = next(
        (at for at, node in enumerate(graph.backward) if node.kernel == index and isinstance(node, Launch)), None
    )
    if begins is None:
        return 0
    operators = list(kernel.operators)
    inside = {name for op in operators for name in op.outputs}
    found = _held_gradients(graph, begins)
    seen: set[tuple[str, str]] = set()
    for op in operators:
        for argument in op.arguments:
            key = (argument.tensor, str(argument.distribution))
            tensor = layer.tensors[argument.tensor]
            if argument.tensor in inside or key in seen:
                continue
            seen.add(key)
            size = tensor_bytes(layer, argument.tensor, argument.distribution)
            redistributed = argument.distribution != tensor.distribution
            if redistributed and (op.panelled or argument.regathered):
                again = product((size, is_copy(axes_between(tensor.distribution, argument.distribution))))
                found.append(combine("/", size, Name(PANELS)) if op.panelled else again)
            if not (tensor.weight or tensor.data):
                found.append(size)
            elif tensor.weight and redistributed and not op.panelled:
                found.append(product((GRADIENT_BYTES, elements(argument.distribution.dims))))
    return total(found)


def _held_gradients(graph: LayerGraph, begins: int) -> list[Any]:
    """Return the bytes of the gradients that exist before a node of the backward, and are read by it or later.

    Of a gradient and its redistributed copies, the first counts, and others where the axes between have several ranks.
    """
    read = {value for node in graph.backward[begins:] for value in node.reads} | {*graph.input_gradients}
    # By gradient, the one that it is a copy of, and the axes that it was redistributed over.
    made: dict[Value, tuple[Value, tuple[str, ...]]] = {value: (value, ()) for value in graph.output_gradients}
    for node in graph.backward[:begins]:
        if isinstance(node, Launch):
            made |= {value: (value, ()) for value in node.writes}
        elif node.after_kernel:
            source, axes = made[node.reads[0]] if len(node.reads) == 1 else (node.writes[0], ())
            made |= {value: (source, (*axes, node.collective.axis)) for value in node.writes}
    counted: dict[Value, tuple[str, ...]] = {}
    found: list[Any] = []
    for value, (source, axes) in made.items():
        if value not in read:
            continue
        first = source not in counted
        between = {*axes} ^ {*counted.setdefault(source, axes)}
        found.append(value.bytes if first else product((value.bytes, is_copy(sorted(between)))))
    return found
