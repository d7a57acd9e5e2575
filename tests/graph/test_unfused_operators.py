"""Tables of operators that run as several kernels: the same operator, with the bytes of each step counted by hand."""

from dataclasses import replace

import pytest
from graph.texts import build, derived, kernel, number, saved

from dsx.graph.derived import derive
from dsx.graph.kernels import Work
from dsx.graph.library import load_layer, load_operators
from dsx.graph.operators import Effort
from dsx.spec.assumptions import load_assumptions

STANDARD = load_operators(["standard"])
TABLES = load_assumptions("default").unfused_operators
SIZES = {"b": 2, "s": 8, "e": 16, "h": 2}
NORM = "layer a\ninput x[b, s, e]\nweight gamma[e]\ny[b, s, e] = norm(x, gamma)"
SOFTMAX = "layer a\ndim t = s\ninput x[b, h, s, t]\ny[b, h, s, t] = softmax(x)"
READ16, WRITE16, READ32, WRITE32, MASK = 2, 2, 4, 4, 1  # bytes an element


def moved(text, table):
    """Bytes of the forward and of the backward."""
    return [
        number(derived(text, table=table), work.bytes, **SIZES) for work in kernel(derived(text, table=table), "y").work
    ]


@pytest.mark.parametrize("name", TABLES)
def test_it_is_the_same_operator_but_for_bytes(name):
    ours, theirs = STANDARD[name], load_operators(["standard", TABLES[name]])[name]
    assert ours != theirs
    without = {"forward": Effort(), "backward": Effort(), "saved": (), "in_kernel": None}
    assert replace(ours, **without) == replace(theirs, **without)
    for direction in ("forward", "backward"):
        sources = [getattr(kind, direction).vector.source for kind in (ours, theirs)]
        assert sources[0] == sources[1]


def test_norm_step_by_step():
    forward = [
        *(READ16 + WRITE32, READ32 + WRITE32, READ32),  # copy, square, mean
        *(READ32 + WRITE32, READ32 + WRITE16, READ16 + WRITE16),  # times its root, copy back, times the weight
    ]
    size, weight = 2 * 8 * 16, 2 * 16
    fused, unfused = (moved(NORM, load_operators(["standard", *more])) for more in ((), [TABLES["norm"]]))
    assert unfused[0] == sum(forward) * size + weight
    assert unfused[1] == 62 * size + 2 * weight
    assert fused == [4 * size + weight, 6 * size + 2 * weight]
    # What the mean and the product read is kept in float32, what the weight reads in 16 bits.
    assert sum(saved(derived(NORM, table=load_operators(["standard", TABLES["norm"]])), **SIZES).values()) == 6 * size


def test_softmax_step_by_step():
    forward = [
        *(READ16 + WRITE16, READ16 + MASK + WRITE16, READ16 + WRITE32),  # scale, mask, copy
        *(READ32 + WRITE32, READ32 + WRITE16),  # softmax, copy back
    ]
    backward = [READ16 + WRITE32, 2 * READ32 + WRITE32, READ32 + WRITE16, READ16 + MASK + WRITE16, READ16 + WRITE16]
    size = 2 * 2 * 8 * 8
    table = load_operators(["standard", TABLES["softmax"]])
    assert moved(SOFTMAX, table) == [sum(forward) * size, sum(backward) * size]
    # Beside the result in 16 bits: in float32, and the mask.
    assert sum(saved(derived(SOFTMAX, table=table), **SIZES).values()) == (2 + 4 + MASK) * size


def test_fused_attention_has_its_softmax_inside():
    layers = [
        derive(load_layer("gated-transformer", "1d", load_operators(["standard", *more])))
        for more in ((), [TABLES["softmax"]])
    ]
    works: list[list[tuple[Work, Work]]] = [[k.work for k in layer.kernels] for layer in layers]
    assert works[0] == works[1]
    assert build(NORM) != build(NORM, table=load_operators(["standard", TABLES["norm"]]))
