"""Laws of work: the textbook count, and that dividing a layer neither adds nor loses any."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notation.definitions import BACKWARD, FORWARD, STANDARD, derived, number, packaged

from dsx.notation.operators import load_tables

# Multiplies counted as size(y) * contracted, which division keeps exactly.
EXACT = """
einsum:
  arguments: [x, w]
  shape: contract
  linear: one
  saved: [x, w]
  forward: {matrix: size(y) * contracted}
  gradient: {matrix: size(dx) * contracted}
  panels:
    forward: {matrix: size(y) * contracted}
    gradient: {matrix: size(dx) * contracted}
  work: {causal: [1, 2]}
"""


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "exact.yaml"
    path.write_text(EXACT)
    return STANDARD | load_tables([path])


def matrix(layer, direction, **sizes):
    return sum(number(layer, k.work[direction].matrix, **sizes) for k in layer.kernels)


@pytest.mark.parametrize("strategy", ["1d", "2d"])
@pytest.mark.parametrize(("b", "s", "h", "k"), [(1, 2048, 16, 64), (3, 128, 5, 7)])
def test_forward_flops_of_an_unsharded_layer_are_the_textbook_count(strategy, b, s, h, k):
    """24 b s e^2 + 4 b s^2 e, the second halved by the mask; less one addition per element of each product."""
    layer = packaged("transformer", strategy)
    e = h * k
    count = matrix(layer, FORWARD, b=b, s=s, e=e, h=h, g=h, k=k, f=4 * e)
    first_additions = b * s * (3 * e + e + 4 * e + e)
    logits, attend = 2 * b * s * s * e - b * h * s * s, 2 * b * s * s * e - b * s * e
    assert count == 24 * b * s * e * e - first_additions + logits // 2 + attend // 2


@pytest.mark.parametrize("s", [2048, 8192])
def test_without_a_mask_the_square_is_whole(s):
    layer = packaged("transformer-2410.00273", "1d")
    b, h, k = 1, 16, 64
    e = h * k
    count = matrix(layer, FORWARD, b=b, s=s, e=e, h=h, g=h, k=k, f=4 * e)
    assert count == 24 * b * s * e**2 + 4 * b * s**2 * e - b * s * 9 * e - b * h * s * s - b * s * e


def test_backward_and_replicated_work(exact):
    layer = packaged("transformer", "1d", exact)
    sizes = {"b": 2, "s": 64, "h": 4, "g": 2, "k": 8, "e": 32, "f": 96}
    logits = 2 * 4 * 64 * 64 * 8 // 2
    assert matrix(layer, BACKWARD, **sizes) == 2 * matrix(layer, FORWARD, **sizes) + logits
    # Replicated work is reported.
    layer = derived(TEXTS["plain tensor parallelism"])
    assert {k.name: k.replicated for k in layer.kernels} == {"n": ("tp",), "z": (), "u": (), "d": (), "output": ("tp",)}
    experts = derived(TEXTS["experts"])
    assert {k.name: k.replicated for k in experts.kernels} == {"routes": ("tp",), "d": ("tp",), "z": (), "output": ()}


SIZES = {"b": 2, "s": 64, "h": 8, "g": 4, "k": 4, "e": 32, "f": 64, "x": 4}
DEGREE = st.sampled_from([1, 2, 4])
TEXTS = {
    "plain tensor parallelism": """
        layer a
        input x[b, s, e]
        weight g[e] w1[e, f/tp] w2[f/tp, e]
        n[b, s, e]    = norm(x, g)
        z[b, s, f/tp] = einsum(n, w1)
        u[b, s, f/tp] = gelu(z)
        d[b, s, e @*] = einsum(u, w2)
        output[b, s, e] = add(x, d[b, s, e])
    """,
    "different per layer": """
        layer a
        input x[b, s/cp, e]
        weight w1[e, f/tp] w2[f/dp, e]
        z[b, s/cp, f/tp]   = einsum(x, w1)
        d[b, s, e/tp2 @dp]  = einsum(z[b, s, f/dp], w2[f/dp, e/tp2])
        output[b, s, e/tp2] = gelu(d[b, s, e/tp2])
    """,
    "experts": """
        layer a
        dim n = 2 * b * s * ep / x
        input h[b, s, e]
        weight r[e, x] w1[x/ep, e, f/tp]
        routes[b, s, x]    = einsum(h, r)
        d[x, n/ep, e]      = dispatch(h, routes)
        z[x/ep, n, f/tp]   = einsum(d[x/ep, n, e], w1)
        output[x/ep, n, f/tp] = gelu(z)
    """,
}


@pytest.fixture(scope="module")
def layers(exact):
    kinds = ("transformer", "transformer rotary gated", "transformer rotary qk_norm qkv_bias ff_bias squared_relu")
    made = [packaged(kind, strategy, exact) for kind in kinds for strategy in ("1d", "2d", "summa")]
    return made + [derived(text, table=exact) for text in TEXTS.values()]


@given(st.fixed_dictionaries({axis: DEGREE for axis in ("tp", "tp2", "cp", "ep", "dp")}))
@pytest.mark.slow
def test_the_flops_of_all_ranks_are_those_of_one_and_the_replicated_ones(layers, degrees):
    for layer in layers:
        ranks = math.prod(degrees[axis] for axis in layer.axes if axis != "ep")  # whose ranks are those of others
        for kernel in layer.kernels:
            copies = math.prod(degrees[axis] for axis in kernel.replicated)
            for work in kernel.work:
                for flops in (work.matrix, work.vector):
                    one = number(layer, flops, **SIZES)
                    assert number(layer, flops, **(SIZES | degrees)) * ranks == one * copies, kernel.name


@pytest.mark.parametrize("strategy", ["1d", "2d", "summa"])
def test_the_packaged_strategies_replicate_no_work(strategy):
    layer = packaged("transformer", strategy)
    assert {k.name: k.replicated for k in layer.kernels if k.replicated and k.runs} == {}
