"""Layers built from definitions in a test, and what is derived from them, at plain numbers."""

from collections import Counter
from functools import cache
from textwrap import dedent

import pytest

from dsx.errors import NotationError
from dsx.notation.build import build_layer
from dsx.notation.expressions import evaluate
from dsx.notation.library import load_layer, load_operators
from dsx.notation.model import define
from dsx.notation.parse import parse
from dsx.notation.selection import resolved, selected
from dsx.notation.syntax import Settings
from dsx.notation.work import derive

STANDARD = load_operators(["standard"])
BYTES = {"activation_bytes": 2, "weight_bytes": 2, "gradient_bytes": 2, "cross_entropy_bytes": 12, "panels": 1}
AG, RS, AR, A2A = "all-gather", "reduce-scatter", "all-reduce", "all-to-all"
FORWARD, BACKWARD = 0, 1


@cache
def parsed(source, file):
    return parse(dedent(source), file)


def settings(words):
    """Options, and block parameters as PARAMETER=BLOCK."""
    options = frozenset(word for word in words.split() if "=" not in word)
    return Settings(options, tuple(tuple(word.split("=")) for word in words.split() if "=" in word))


def overlay(*sources):
    """The strategy of the first definition; it may extend the others."""

    def find_strategy(name, place):
        for source in sources:
            if (found := parsed(source, "strategy.layer")).name == name:
                return found
        raise place.error(f"no strategy {name!r}")

    return resolved(parsed(sources[0], "strategy.layer"), find_strategy)


def read(source, chosen=""):
    """The lines of a layer or block that count with its settings."""
    return selected(parse(source, "some/a.layer"), settings(chosen))


def build(text, strategy="", blocks=(), table=STANDARD, chosen="", inherited="", bases=()):
    """The layer that `text` defines with its settings, under a strategy and with the given blocks.

    The strategy may extend those in `bases`.
    """
    known = {block.name: block for block in (parsed(block, "block.layer") for block in blocks)}

    def find_block(name, place):
        if name not in known:
            raise place.error(f"no block {name!r}")
        return known[name]

    overlaid = overlay(strategy, *bases) if strategy else None
    return build_layer(
        parse(dedent(text), "a.layer"), overlaid, table, find_block, settings(chosen), settings(inherited)
    )


def packaged(words, strategy, table=STANDARD):
    """A packaged layer kind, its name followed by its settings, under a packaged strategy."""
    name, _, chosen = words.partition(" ")
    return derive(load_layer(name, strategy, table, chosen=settings(chosen)))


def derived(text, **kwargs):
    return derive(build(text, **kwargs))


def number(layer, expr, **sizes):
    """The value of an expression of a derived layer; degrees that are not given are 1."""
    values = BYTES | dict.fromkeys(layer.axes, 1) | sizes
    return evaluate(expr, define(layer, values))


def collectives(layer, direction):
    """How often each (kind, axis, tensor) occurs."""
    return Counter((one.kind, one.axis, one.tensor) for one in layer.collectives(direction))


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
