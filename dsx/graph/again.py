"""Recomputation: what a layer keeps and makes again under each mode, and what it needs while it runs.

* none: everything that the backward reads is kept.
* selective: of an ``again ... end`` region nothing made inside is kept for its own backward; its forward,
  collectives included, runs again from its inputs, which are kept as they were produced (Korthikanti et al.,
  2022, section 5: the attention core).
* full: the layer keeps its inputs alone, and its whole forward runs again.

What lies beside the kept tensors while a kernel's backward runs: the gradients that come in and go out, and
copies that are gathered again.
"""

from collections.abc import Iterable
from typing import Any

from dsx.graph.expressions import Name, combine, product, total
from dsx.graph.kernels import Kernel, crossing
from dsx.graph.layer import PANELS, Layer
from dsx.graph.match import elements
from dsx.graph.saved import GRADIENT_BYTES, Saved, as_produced, stored, tensor_bytes

MODES = ("none", "selective", "full")  # of recomputation, in the order of every array over them


def kept(layer: Layer, kernels: Iterable[Kernel]) -> list[tuple[Saved, ...]]:
    """Return what each kernel keeps under selective recomputation; a tensor may be listed by several."""
    kernels = list(kernels)
    outside = {saved.key for kernel in kernels if not kernel.again for saved in kernel.saved}
    regions: dict[tuple[str, int], set[str]] = {}
    for kernel in kernels:
        if kernel.again:
            made = {name for op in kernel.operators for name in op.outputs}
            regions.setdefault(kernel.again, set()).update(made)
    return [
        _inputs(layer, kernel, regions[kernel.again], outside) if kernel.again else kernel.saved for kernel in kernels
    ]


def _inputs(layer: Layer, kernel: Kernel, made: set[str], outside: set[tuple[str, str]]) -> tuple[Saved, ...]:
    """Return what a kernel of a region takes from outside of it, unless another operator keeps the same copy."""
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
    """Return the local bytes of the layer's inputs: what it keeps under full recomputation."""
    return total(tensor_bytes(layer, name, layer.tensors[name].distribution) for name in layer.inputs)


def transient_bytes(layer: Layer, kernel: Kernel) -> Any:
    """Return the local bytes that the backward of a kernel needs beside the kept tensors."""
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
            moved = argument.distribution != tensor.distribution
            if moved and (op.panelled or argument.made_again):
                found.append(combine("/", size, Name(PANELS)) if op.panelled else size)
            if not (tensor.weight or tensor.data):
                found.append(size)
            elif tensor.weight and moved and not op.panelled:
                found.append(product((GRADIENT_BYTES, elements(argument.distribution.dims))))
    return total(found)
