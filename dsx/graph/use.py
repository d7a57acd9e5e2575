"""A block as another definition uses it: the names that it declares, its renamed result, its modifier."""

from dataclasses import replace
from typing import Any

from dsx.graph.layer import OUTPUT
from dsx.graph.notation import FOLLOWS, OperatorSyntax, SelectedLayer, TensorSyntax, UseSyntax


def declared(source: SelectedLayer) -> set[str]:
    """Return the names that a layer or block declares itself, without those of its blocks."""
    lines = [entry for entry in source.body if isinstance(entry, OperatorSyntax)]
    made = {tensor.name for line in lines for tensor in line.outputs}
    return made | {tensor.name for tensor in (*source.inputs, *source.weights)}


def results(source: SelectedLayer) -> int:
    """Return the number of lines that make a tensor 'output'."""
    return sum(
        entry.bindings.get(OUTPUT, OUTPUT) == OUTPUT
        if isinstance(entry, UseSyntax)
        else OUTPUT in [tensor.name for tensor in entry.outputs]
        for entry in source.body
    )


def renamed(block: SelectedLayer, made: str) -> SelectedLayer:
    """Return a block whose tensor 'output' is called `made`."""

    def called(tensor: TensorSyntax) -> TensorSyntax:
        return replace(tensor, name=made) if tensor.name == OUTPUT else tensor

    def rename(entry: OperatorSyntax | UseSyntax) -> OperatorSyntax | UseSyntax:
        if isinstance(entry, OperatorSyntax):
            outputs, arguments = (tuple(map(called, tensors)) for tensors in (entry.outputs, entry.arguments))
            return replace(entry, outputs=outputs, arguments=arguments)
        inputs = {inner: made if outer == OUTPUT else outer for inner, outer in entry.bindings.items()}
        return replace(entry, bindings=inputs if made == OUTPUT else {OUTPUT: made} | inputs)

    return replace(block, body=tuple(map(rename, block.body)))


def modified(entry: OperatorSyntax | UseSyntax, modifier: str) -> Any:
    """Return a line of a block with ``{*}`` replaced by the modifier of the block's use."""
    return replace(entry, modifier=modifier) if entry.modifier == FOLLOWS else entry
