"""A block's text as another text uses it: the names that it takes, its result under another name, its modifier."""

from dataclasses import replace
from typing import Any

from dsx.graph.layer import OUTPUT
from dsx.graph.notation import FOLLOWS, LayerText, OperatorText, TensorText, UseText


def declared(text: LayerText) -> set[str]:
    """Return the names that a text declares itself."""
    lines = [entry for entry in text.body if isinstance(entry, OperatorText)]
    made = {tensor.name for line in lines for tensor in line.outputs}
    return made | {tensor.name for tensor in (*text.inputs, *text.weights)}


def results(text: LayerText) -> int:
    """Return how many lines of a text make a tensor 'output'."""
    return sum(
        entry.bindings.get(OUTPUT, OUTPUT) == OUTPUT
        if isinstance(entry, UseText)
        else OUTPUT in [tensor.name for tensor in entry.outputs]
        for entry in text.body
    )


def renamed(text: LayerText, made: str) -> LayerText:
    """Return a block whose result is called `made`."""

    def called(tensor: TensorText) -> TensorText:
        return replace(tensor, name=made) if tensor.name == OUTPUT else tensor

    def rename(entry: OperatorText | UseText) -> OperatorText | UseText:
        if isinstance(entry, OperatorText):
            outputs, arguments = (tuple(map(called, tensors)) for tensors in (entry.outputs, entry.arguments))
            return replace(entry, outputs=outputs, arguments=arguments)
        inputs = {inner: made if outer == OUTPUT else outer for inner, outer in entry.bindings.items()}
        return replace(entry, bindings=inputs if made == OUTPUT else {OUTPUT: made} | inputs)

    return replace(text, body=tuple(map(rename, text.body)))


def modified(entry: OperatorText | UseText, modifier: str) -> Any:
    """Return a line of a block with the modifier that the block is used with in the place of ``{*}``."""
    return replace(entry, modifier=modifier) if entry.modifier == FOLLOWS else entry
