"""Layers built from texts written in a test, and their derived quantities at plain numbers."""

from collections import Counter
from functools import cache
from textwrap import dedent

import pytest

from dsx.errors import NotationError
from dsx.graph.build import build_layer
from dsx.graph.derived import derive
from dsx.graph.expressions import evaluate
from dsx.graph.library import load_operators
from dsx.graph.model import define
from dsx.graph.notation import parse

STANDARD = load_operators(["standard"])
BYTES = {"activation_bytes": 2, "weight_bytes": 2, "gradient_bytes": 2, "panels": 1}
AG, RS, AR, A2A = "all-gather", "reduce-scatter", "all-reduce", "all-to-all"
FORWARD, BACKWARD = 0, 1


@cache
def parse_block(source):
    return parse(dedent(source), "block.layer")


def build(text, strategy="", blocks=(), table=STANDARD):
    """The layer of `text`, under the strategy and with the blocks that the texts give."""
    known = {block.name: block for block in map(parse_block, blocks)}

    def find_block(name, place):
        if name not in known:
            raise place.error(f"no block {name!r}")
        return known[name]

    overlay = parse(dedent(strategy), "strategy.layer") if strategy else None
    return build_layer(parse(dedent(text), "a.layer"), overlay, table, find_block)


def derived(text, **kwargs):
    return derive(build(text, **kwargs))


def number(layer, expr, **sizes):
    """The value of an expression of a derived layer; degrees that are not given are 1."""
    values = BYTES | dict.fromkeys(layer.axes, 1) | sizes
    return evaluate(expr, define(layer, values))


def moves(layer, direction):
    """How often each (kind, axis, tensor) occurs."""
    return Counter((move.kind, move.axis, move.tensor) for move in layer.collectives(direction))


def volumes(layer, direction, **sizes):
    """(kind, axis, bytes) of every collective, sorted."""
    return sorted((m.kind, m.axis, number(layer, m.bytes, **sizes)) for m in layer.collectives(direction))


def kernel(layer, name):
    (found,) = [kernel for kernel in layer.kernels if kernel.name == name]
    return found


def saved(layer, **sizes):
    """Bytes of every tensor that is kept, by name; a name kept in two forms is a mistake of the test."""
    entries = [(entry.key, number(layer, entry.bytes, **sizes)) for k in layer.kernels for entry in k.saved]
    by_name = {key[0] if not key[1].startswith("state") else f"{key[0]} {key[1]}": size for key, size in entries}
    assert len(by_name) == len(entries)
    return by_name


def weights(layer, **sizes):
    """(bytes, axes reduced at the end of the step besides dp, whether dp is) of every weight."""
    return {w.name: (number(layer, w.bytes, **sizes), w.reduced_over, w.over_dp) for w in layer.weights}


def fails(text, *words, **kwargs):
    """Building and deriving `text` is an error at the place marked ^, whose message has all `words`."""
    before = text[: text.index("^")]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    with pytest.raises(NotationError) as caught:
        derived(before + text[len(before) + 1 :], **kwargs)
    error = caught.value
    message = str(error)
    assert (error.line, error.column) == (line, column), message
    assert message.startswith(f"{error.file}:{line}:{column}: ")
    for word in words:
        assert word in message, message
