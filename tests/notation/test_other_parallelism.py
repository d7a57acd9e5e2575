"""Texts that nobody has a table for: what follows from them is reasoned out here by hand."""

import pytest
from notation.definitions import A2A, AG, AR, BACKWARD, FORWARD, RS, collectives, derived, saved, volumes, weights

W, B, S, E, F = 2, 2, 256, 64, 512
SIZES = {"b": B, "s": S, "e": E, "f": F}

FSDP = """
layer fsdp
input x[b, s, e]
weight w1[e/dp, f] w2[f/dp, e]
z[b, s, f]      = einsum(x, w1[e, f]~)
u[b, s, f]      = gelu(z)
d[b, s, e]      = einsum(u, w2[f, e]~)
output[b, s, e] = add(x, d)
"""


def test_fsdp():
    layer, sizes = derived(FSDP), SIZES | {"dp": 8}
    matrix = W * E * F
    assert volumes(layer, FORWARD, **sizes) == [(AG, "dp", matrix)] * 2
    assert volumes(layer, BACKWARD, **sizes) == [(AG, "dp", matrix)] * 2 + [(RS, "dp", matrix)] * 2
    # The gradient is complete when the layer is done: nothing is left to the end of the step.
    assert weights(layer, **sizes) == {name: (matrix // 8, (), False) for name in ("w1", "w2")}
    # Neither the weights nor the gathered weights are kept.
    assert saved(layer, **sizes) == {"x": W * B * S * E, "z": W * B * S * F, "u": W * B * S * F}
    # Without the mark a gathered weight is kept.
    layer, sizes = derived(FSDP.replace("~", "")), SIZES | {"dp": 8}
    assert volumes(layer, BACKWARD, **sizes) == [(RS, "dp", W * E * F)] * 2
    assert saved(layer, **sizes)["w1"] == saved(layer, **sizes)["w2"] == W * E * F
    # Fsdp over dp leaves the reduction over cp.
    layer = derived(FSDP.replace("[b, s,", "[b, s/cp,"))
    assert [(w.reduced_over, w.over_dp) for w in layer.weights] == [(("cp",), False)] * 2
    assert collectives(layer, BACKWARD)[(RS, "dp", "d w1")] == 1


def mlp(first, second):
    """Two multiplies; `first` and `second` are the distributions of (input, weight, output)."""
    (x, w1, z), (u, w2, d) = first, second
    return f"layer two\ninput x{x}\nweight w1{w1} w2{w2}\nz{z} = einsum(x, w1)\nd{d} = einsum(z{u}, w2)\n"


@pytest.mark.parametrize(
    ("first", "second", "forward", "backward"),
    [
        # column over tp, then row over tp: nothing between; the gradient of x is a sum over tp
        (
            ("[b, s, e]", "[e, f/tp]", "[b, s, f/tp]"),
            ("[b, s, f/tp]", "[f/tp, e]", "[b, s, e @tp]"),
            [],
            [(AR, "tp", B * S * E)],
        ),
        # row over tp, then column over tp: the result is completed before it is used
        (
            ("[b, s, e/tp]", "[e/tp, f]", "[b, s, f @tp]"),
            ("[b, s, f]", "[f, e/tp]", "[b, s, e/tp]"),
            [(AR, "tp", B * S * F)],
            [(AR, "tp", B * S * F)],
        ),
        # column over tp, then column over tp: gather, and scatter the gradient
        (
            ("[b, s, e]", "[e, f/tp]", "[b, s, f/tp]"),
            ("[b, s, f]", "[f, e/tp]", "[b, s, e/tp]"),
            [(AG, "tp", B * S * F)],
            [(AR, "tp", B * S * E), (RS, "tp", B * S * F)],
        ),
        # row over tp, then row over tp: scatter, and gather the gradient
        (
            ("[b, s, e/tp]", "[e/tp, f]", "[b, s, f @tp]"),
            ("[b, s, f/tp]", "[f/tp, e]", "[b, s, e @tp]"),
            [(RS, "tp", B * S * F)],
            [(AG, "tp", B * S * F)],
        ),
        # columns over tp, then tokens over cp: gathered over tp and sliced over cp, and back
        (
            ("[b, s, e]", "[e, f/tp]", "[b, s, f/tp]"),
            ("[b, s/cp, f]", "[f, e]", "[b, s/cp, e]"),
            [(AG, "tp", B * (S // 2) * F)],
            [(AG, "cp", B * S * F // 4), (AR, "tp", B * S * E)],
        ),
        # columns over tp, then rows over cp
        (
            ("[b, s, e]", "[e, f/tp]", "[b, s, f/tp]"),
            ("[b, s, f/cp]", "[f/cp, e]", "[b, s, e @cp]"),
            [(AG, "tp", B * S * F)],
            [(AG, "cp", B * S * F), (AR, "tp", B * S * E)],
        ),
        # tokens over tp, then columns over tp: an all-to-all is no use, the whole tensor is needed
        (
            ("[b, s/tp, e]", "[e, f]", "[b, s/tp, f]"),
            ("[b, s, f]", "[f, e/tp]", "[b, s, e/tp]"),
            [(AG, "tp", B * S * F)],
            [(RS, "tp", B * S * F)],
        ),
        # tokens over tp, then rows over tp: an all-to-all each way
        (
            ("[b, s/tp, e]", "[e, f]", "[b, s/tp, f]"),
            ("[b, s, f/tp]", "[f/tp, e]", "[b, s, e @tp]"),
            [(A2A, "tp", B * S * F // 4)],
            [(A2A, "tp", B * S * F // 4)],
        ),
    ],
)
def test_layers_of_different_parallelism(first, second, forward, backward):
    layer, sizes = derived(mlp(first, second)), SIZES | {"tp": 4, "cp": 2}
    assert volumes(layer, FORWARD, **sizes) == [(kind, axis, W * size) for kind, axis, size in forward]
    assert volumes(layer, BACKWARD, **sizes) == [(kind, axis, W * size) for kind, axis, size in backward]


def test_the_gradient_of_a_factor_is_partial_over_what_the_other_factor_is():
    """y = sum_i(h_i) v: dv = sum_i(h_i^T dy), one summand on each rank."""
    layer = derived("""
        layer low-rank
        input x[b, s, e/tp]
        weight a[e/tp, r] v[r, f]
        h[b, s, r @tp] = einsum(x, a)
        y[b, s, f @tp] = einsum(h, v)
        output[b, s, f] = gelu(y[b, s, f])
    """)
    assert {w.name: w.reduced_over for w in layer.weights} == {"a": (), "v": ("tp",)}
    assert collectives(layer, FORWARD) == {(AR, "tp", "y"): 1}
    assert collectives(layer, BACKWARD) == {}


SPLIT = """
layer split
dim e = i + j
input x[b, s, e]
weight w[i, f/tp] v[j, f/{axis}]
q[b, s, i], r[b, s, j] = view(x)
y[b, s, f/tp]     = einsum(q, w)
z[b, s, f/{axis}] = einsum(r, v)
"""


def test_a_partial_gradient_passes_a_view_only_if_all_parts_are_partial():
    sizes = {"b": B, "s": S, "i": 24, "j": 40, "f": F, "tp": 4, "cp": 2}
    both = derived(SPLIT.format(axis="tp"))
    assert collectives(both, BACKWARD) == {(AR, "tp", "d x"): 1}
    assert volumes(both, BACKWARD, **sizes) == [(AR, "tp", W * B * S * (24 + 40))]
    apart = derived(SPLIT.format(axis="cp"))
    assert collectives(apart, BACKWARD) == {(AR, "tp", "d q"): 1, (AR, "cp", "d r"): 1}
    assert volumes(apart, BACKWARD, **sizes) == [(AR, "cp", W * B * S * 40), (AR, "tp", W * B * S * 24)]
