"""The matrices among the weights of a layer, which an optimizer may update as a whole.

A matrix is a weight that an einsum multiplies with. Batch letters, those of experts, are also in the other factor and
in the result, and count matrices; of the others the einsum contracts the rows, and the columns are in its result.
The weights of an embedding, which takes data, are no matrices, nor are those with the letter of the vocabulary or of
classes: Adam updates them, as norms, biases and convolutions (arXiv 2502.16982, section 2.2; Megatron Core 0.16.1,
megatron/core/optimizer/muon.py).
"""

from dataclasses import dataclass
from typing import Any

from dsx.graph.expert_axes import EP
from dsx.graph.expressions import product
from dsx.graph.layer import Layer
from dsx.graph.match import local_size, ordered
from dsx.graph.notation import Dim
from dsx.spec.model import CLASSES, VOCABULARY


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight as matrices of their whole size, which tensor parallel ranks may divide."""

    rows: Any
    columns: Any
    count: Any  # on a rank
    axes: tuple[str, ...]  # that divide each of them


def matrix_of(layer: Layer, weight: str) -> Matrix | None:
    """Return the matrices of a weight; None if it has none."""
    dims = layer.tensors[weight].distribution.dims
    letters = {dim.letter for dim in dims}
    if layer.tensors[layer.inputs[0]].data or letters & {VOCABULARY, CLASSES}:
        return None
    for op in layer.operators:
        taken = [argument for argument in op.arguments if argument.tensor == weight]
        if op.kind.shape != "contract" or not taken:
            continue
        (other,) = (argument for argument in op.arguments if argument is not taken[0])
        factor = {dim.letter for dim in other.distribution.dims}
        result = {dim.letter for dim in layer.tensors[op.name].distribution.dims}
        batch = letters & factor & result
        whole = [Dim(dim.letter) for dim in dims if dim.letter not in batch]
        return Matrix(
            rows=product(local_size(dim) for dim in whole if dim.letter not in result),
            columns=product(local_size(dim) for dim in whole if dim.letter in result),
            count=product(local_size(dim) for dim in dims if dim.letter in batch),
            axes=ordered({axis for dim in dims if dim.letter not in batch for axis in dim.axes} - {EP}),
        )
    return None
