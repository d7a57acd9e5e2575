"""Activation recomputation: the tensors that a layer keeps in each mode, and the transient memory of its backward.

* none: the layer keeps every tensor that its backward reads.
* selective: the backward of a ``recompute ... end`` region keeps no tensor that the region makes. It keeps the
  region's inputs as they were produced, and repeats the forward with its collectives (Korthikanti et al., 2022,
  section 5: the attention core).
* full: the layer keeps its inputs alone, and its backward repeats the whole forward.

Besides the kept tensors, a running backward holds transient ones: the gradients of its results and arguments, and
tensors that it gathers a second time.
"""

from collections.abc import Iterable
from typing import Any

from dsx.graph.expressions import Name, combine, product, total
from dsx.graph.kernels import Kernel, crossing
from dsx.graph.layer import PANELS, Layer
from dsx.graph.match import elements
from dsx.graph.saved import GRADIENT_BYTES, Saved, as_produced, stored, tensor_bytes

MODES = ("none", "selective", "full")  # every array over the modes has this order


def kept(layer: Layer, kernels: Iterable[Kernel]) -> list[tuple[Saved, ...]]:
    """Return what each kernel keeps under selective recomputation; several kernels may list one tensor."""
    kernels = list(kernels)
    outside = {saved.key for kernel in kernels if not kernel.recompute_region for saved in kernel.saved}
    regions: dict[tuple[str, int], set[str]] = {}
    for kernel in kernels:
        if kernel.recompute_region:
            made = {name for op in kernel.operators for name in op.outputs}
            regions.setdefault(kernel.recompute_region, set()).update(made)
    return [
        _inputs(layer, kernel, regions[kernel.recompute_region], outside) if kernel.recompute_region else kernel.saved
        for kernel in kernels
    ]


def _inputs(layer: Layer, kernel: Kernel, made: set[str], outside: set[tuple[str, str]]) -> tuple[Saved, ...]:
    """Return the tensors that a kernel of a region reads from outside the region and that no other operator keeps."""
    found: dict[tuple[str, str], Saved] = {}
    for op in kernel.operators:
        for argument in op.arguments:
            copy = (argument.tensor, str(argument.distribution))
            if argument.tensor in made or copy in outside:
                continue
            saved, _ = stored(layer, as_produced(layer, op, argument.tensor), panelled=False)
            if saved:
                found[saved.key] = saved
    return tuple(found.values())


def input_bytes(layer: Layer) -> Any:
    """Return the local bytes of the layer's inputs, which are all it keeps under full recomputation."""
    return total(tensor_bytes(layer, name, layer.tensors[name].distribution) for name in layer.inputs)


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
                found.append(combine("/", size, Name(PANELS)) if op.panelled else size)
            if not (tensor.weight or tensor.data):
                found.append(size)
            elif tensor.weight and redistributed and not op.panelled:
                found.append(product((GRADIENT_BYTES, elements(argument.distribution.dims))))
    return total(found)
