"""Rows, columns, contracted size and batch of every multiply, forward and backward."""

import math
from dataclasses import replace

import pytest
from notation.definitions import BACKWARD, FORWARD, STANDARD, build, derived, kernel, number, packaged

from dsx.notation.work import derive

SIZES = {"b": 2, "s": 512, "e": 256, "h": 8, "g": 8, "k": 32, "f": 1024, "tp": 4, "cp": 2}
TOKENS = 2 * 256  # of one cp rank


def shapes(layer, name, direction, **sizes):
    """(rows, columns, contracted, batch, linear, of a weight) of each multiply."""
    return [
        (*(number(layer, getattr(m, size), **(SIZES | sizes)) for size in ("rows", "columns", "contracted", "batch")),
         m.linear, m.of_weight)
        for m in kernel(layer, name).work[direction].multiplies
    ]  # fmt: skip


LINEAR = "layer a\ninput x[b, s/cp, e]\nweight w[e, f/tp]\nz[b, s/cp, f/tp] = einsum(x, w)"


def test_linear_layers_batches_and_panels():
    layer = derived(LINEAR)
    assert shapes(layer, "z", FORWARD) == [(TOKENS, 256, 256, 1, True, False)]
    assert shapes(layer, "z", BACKWARD) == [
        (TOKENS, 256, 256, 1, True, False),  # of x
        (256, 256, TOKENS, 1, True, True),  # of w: all tokens are summed away
    ]
    # A letter of all three tensors is a batch.
    layer = derived("layer a\ninput q[b, h, s, k] p[b, h, t, k]\na[b, h, s, t] = einsum(q, p)")
    assert shapes(layer, "a", FORWARD, s=64, t=128) == [(64, 128, 32, 16, False, False)]
    assert shapes(layer, "a", BACKWARD, s=64, t=128) == [
        (64, 32, 128, 16, False, False),
        (128, 32, 64, 16, False, False),
    ]
    # Experts are a batch of linear multiplies.
    layer = derived("layer a\ninput d[x/ep, n, e]\nweight w[x/ep, e, f]\nz[x/ep, n, f] = einsum(d, w)")
    assert shapes(layer, "z", FORWARD, x=8, ep=4, n=100) == [(100, 1024, 256, 2, True, False)]
    # A weight under another name is a weight.
    layer = derived(
        "layer a\ndim m = h * k\ninput x[b, s, h, k]\nweight w[m, e]\nv[h, k, e] = view(w)\nz[b, s, e] = einsum(x, v)"
    )
    assert shapes(layer, "z", FORWARD)[0][4:] == (True, False)
    assert [shape[5] for shape in shapes(layer, "z", BACKWARD)] == [False, True]
    # In panels a multiply becomes as many thinner ones.
    layer = derived(LINEAR.replace("einsum", "einsum{panels}"))
    assert shapes(layer, "z", FORWARD, panels=8) == [(TOKENS, 256, 256 // 8, 8, True, False)]
    assert shapes(layer, "z", BACKWARD, panels=8) == [
        (TOKENS, 256 // 8, 256, 8, True, False),
        (256, 256 // 8, TOKENS, 8, True, True),
    ]


def test_a_fused_kernel_recomputes_its_forward_multiply():
    layer, name = packaged("transformer", "2d"), "self-attention.attention"
    square = (256, 512, 32, 2 * 2, False, False)  # two heads of one rank, two samples
    attend = (256, 32, 512, 2 * 2, False, False)
    assert shapes(layer, name, FORWARD) == [square, attend]
    backward = shapes(layer, name, BACKWARD)
    assert len(backward) == 5
    assert backward.count(square) == 2  # the recomputed logits, and the gradient of the probabilities
    halves = [number(layer, m.flops, **SIZES) for m in kernel(layer, name).work[FORWARD].multiplies]
    assert halves == [256 * 512 * 4 * 63 // 2, 256 * 32 * 4 * 1023 // 2]


@pytest.mark.parametrize("strategy", ["1d", "2d", "summa"])
@pytest.mark.parametrize("name", ["transformer", "transformer rotary gated", "transformer-2410.00273"])
def test_the_multiplies_are_all_matrix_flops_and_their_shapes_are_those_flops(name, strategy):
    layer = packaged(name, strategy)
    sizes = SIZES | {"tp2": 2, "panels": 2, "e": 1024, "s": 1024}
    for one in layer.kernels:
        for work in one.work:
            flops = [number(layer, m.flops, **sizes) for m in work.multiplies]
            assert sum(flops) == number(layer, work.matrix, **sizes)
            for m, count in zip(work.multiplies, flops, strict=True):
                shape = [number(layer, size, **sizes) for size in (m.rows, m.columns, m.contracted, m.batch)]
                share = count / (2 * math.prod(shape))
                assert 0.45 < share <= 1.0  # a mask halves them; a first addition is not counted


def test_a_contraction_of_three_tensors_has_no_shape():
    three = replace(STANDARD["einsum"], arguments=("x", "w", "v"), saved=("x", "w", "v"))
    text = "layer a\ninput x[b, s/cp, e]\nweight w[e, f] v[f, e]\nz[b, s/cp, e] = einsum(x, w, v)"
    layer = derive(build(text, table=STANDARD | {"einsum": three}))
    assert shapes(layer, "z", FORWARD) == shapes(layer, "z", BACKWARD) == []
    assert [weight.matrix for weight in layer.weights] == [None, None]
