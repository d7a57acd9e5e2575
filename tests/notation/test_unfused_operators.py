"""Operators that run as several kernels, and steps of a layer."""

from dataclasses import replace

import pytest
from notation.definitions import derived, kernel, number, packaged, saved

from dsx.config.assumption_set import load_assumptions
from dsx.notation.library import load_operators
from dsx.notation.model import OF_REPLICAS, OF_REPLICATED, OF_STAGE, OF_TIED, StepCollective, accompanying, divides
from dsx.notation.operators import Effort

STANDARD = load_operators(["standard"])
TABLES = load_assumptions("default").unfused_operators
SIZES = {"b": 2, "s": 8, "e": 16, "h": 2}
NORM = "layer a\ninput x[b, s, e]\nweight gamma[e]\ny[b, s, e] = norm(x, gamma)"
SOFTMAX = "layer a\ndim t = s\ninput x[b, h, s, t]\ny[b, h, s, t] = softmax(x)"


def moved(text, table):
    """Bytes of the forward and of the backward."""
    layer = derived(text, table=table)
    return [number(layer, work.bytes, **SIZES) for work in kernel(layer, "y").work]


def table_of(name):
    return load_operators(["standard", TABLES[name]])


def bytes_of(steps):
    """Bytes of an element, of steps with so many reads and writes in 16 and in 32 bits."""
    return sum(2 * short + 4 * long for short, long in steps)


@pytest.mark.parametrize("name", TABLES)
def test_it_is_the_same_operator_but_for_bytes(name):
    ours, theirs = STANDARD[name], table_of(name)[name]
    assert ours != theirs
    without = {"forward": Effort(), "backward": Effort(), "saved": (), "in_kernel": None}
    assert replace(ours, **without) == replace(theirs, **without)
    for direction in ("forward", "backward"):
        sources = [getattr(kind, direction).vector.source for kind in (ours, theirs)]
        assert sources[0] == sources[1]


def test_norm_and_softmax_step_by_step():
    copy, square, mean, product, back, weight = (1, 1), (0, 2), (0, 1), (0, 2), (1, 1), (2, 0)
    forward = [copy, square, mean, product, back, weight]
    # pow(x, 1), times 2, times the gradient; its sum with the gradient of the product
    of_weight, of_root, of_square, both = (2 + 3 + 1, 0), (0, 3 + 1), (0, 2 + 2 + 3), (0, 3)
    backward = [of_weight, back, product, of_root, mean, of_square, both, copy]
    size, gamma = 2 * 8 * 16, 2 * 16
    assert moved(NORM, table_of("norm")) == [bytes_of(forward) * size + gamma, bytes_of(backward) * size + 2 * gamma]
    assert moved(NORM, STANDARD) == [4 * size + gamma, 6 * size + 2 * gamma]
    # What the square and the product read is kept in 32 bits, what the weight reads in 16.
    assert sum(saved(derived(NORM, table=table_of("norm")), **SIZES).values()) == (4 + 2) * size
    # Softmax step by step.
    scale, mask, copy, softmax, back = (2, 0), (2, 0), (1, 1), (0, 2), (1, 1)
    forward = [scale, mask, copy, softmax, back]
    backward = [back, (0, 3), copy, mask, scale]
    size = 2 * 2 * 8 * 8
    assert moved(SOFTMAX, table_of("softmax")) == [bytes_of(forward) * size, bytes_of(backward) * size]
    assert sum(saved(derived(SOFTMAX, table=table_of("softmax")), **SIZES).values()) == 4 * size


@pytest.mark.parametrize(
    ("core", "each"),
    [
        ("unfused-attention-core", {"p": 2, "p state 0": 4}),  # the next multiply reads the result in 16 bits
        ("unfused-attention-core dropout", {"p state 0": 4, "p.2 state 0": 1, "p.2": 2}),  # there what is left of it
    ],
)
def test_softmax_saves_its_result_as_its_readers_read_it(core, each):
    layer = packaged(core, "1d-no-sp", table_of("softmax"))
    sizes = SIZES | {"g": 2, "j": 1, "k": 4, "kv": 4, "t": 8, "tp": 1}
    square = 2 * 2 * 8 * 8
    kept = saved(layer, **sizes)
    assert {name: kept[name] / square for name in kept if name.split()[0] in ("p", "p.2", "a")} == each


def test_what_is_inside_fused_attention_and_outside_of_it():
    works = [
        [found.work for found in packaged("transformer rotary gated", "1d", table).kernels]
        for table in (STANDARD, table_of("softmax"))
    ]
    assert works[0] == works[1]
    # Unfused traffic is that of rotary positions and gated units.
    layer = packaged("transformer rotary gated", "1d-no-sp")
    sizes = {"b": 2, "s": 8, "e": 16, "h": 4, "g": 2, "k": 4, "f": 64, "tp": 1}
    moved = {
        one.name: [number(layer, work.unfused, **sizes) for work in one.work]
        for one in layer.kernels
        if any(number(layer, work.unfused, **sizes) for work in one.work)
    }
    queries, keys, gated = (2 * 2 * 8 * width for width in (4 * 4, 2 * 4, 64))
    assert moved == {
        "self-attention.q.2": [8 * queries, 8 * queries],
        "self-attention.kk.2": [8 * keys, 8 * keys],
        "feed-forward.u": [2 * gated, 4 * gated],
    }


FORWARD, BACKWARD = 0, 1
AG, RS, AR = "all-gather", "reduce-scatter", "all-reduce"

# (kind, what it moves, direction, how often)
COLLECTIVES = {
    0: {(AR, "gradients", BACKWARD, "step")},
    1: {(AG, "weights", FORWARD, "step"), (RS, "gradients", BACKWARD, "step")},
    2: {(AG, "weights", FORWARD, "step"), (RS, "gradients", BACKWARD, "microbatch")},
    3: {
        (AG, "weights", FORWARD, "microbatch"),
        (AG, "weights", BACKWARD, "microbatch"),
        (RS, "gradients", BACKWARD, "microbatch"),
    },
}
DIVIDED = {0: set(), 1: {"optimizer"}, 2: {"optimizer", "gradient"}, 3: {"optimizer", "gradient", "weight"}}


@pytest.mark.parametrize("stage", COLLECTIVES)
def test_the_collectives_of_a_stage(stage):
    found = [(one.kind, one.of, one.direction, one.every) for one in OF_STAGE[stage]]
    assert sorted(found) == sorted(COLLECTIVES[stage])
    assert {one.ranks for one in OF_STAGE[stage]} == {"shards"}


@pytest.mark.parametrize("stage", DIVIDED)
def test_what_a_stage_divides(stage):
    assert {state for state in ("optimizer", "gradient", "weight") if divides(stage, state)} == DIVIDED[stage]


@pytest.mark.parametrize("stage", COLLECTIVES)
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_a_pass_is_accompanied_by_the_collectives_of_its_direction(stage, direction):
    wanted = [one for one in COLLECTIVES[stage] if one[2] == direction]
    found = [(one.kind, one.of, one.direction, one.every) for one in accompanying(stage, direction)]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize(("one", "ranks"), [(OF_REPLICAS, "replicas"), (OF_REPLICATED, "tensor"), (OF_TIED, "ends")])
def test_other_sums_of_gradients_are_all_reduced_once_a_step(one, ranks):
    assert one == StepCollective(AR, "gradients", ranks, BACKWARD, "step")
