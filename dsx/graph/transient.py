"""The transient memory of a kernel's backward, besides what is saved.

A running backward holds the gradients of its results and arguments, and the tensors that it gathers a second time.
"""

from typing import Any

from dsx.graph.expressions import Name, combine, product, total
from dsx.graph.kernels import Kernel, crossing
from dsx.graph.layer import PANELS, Layer
from dsx.graph.match import elements
from dsx.graph.saved import GRADIENT_BYTES, axes_between, is_copy, tensor_bytes


def transient_bytes(layer: Layer, kernel: Kernel) -> Any:
    """Return the local bytes of the transient tensors of a kernel's backward."""
    if all(op.costs_nothing for op in kernel.operators):
        return 0
    operators = list(kernel.operators)
    inside = {name for op in operators for name in op.outputs}
    found = [tensor_bytes(layer, name, layer.tensors[name].distribution) for name in crossing(layer, operators)]
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
