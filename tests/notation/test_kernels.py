"""FLOPs and bytes of kernels: fused attention (FORMULAS 2.3), multiplies, panels, the causal half."""

import pytest
from notation.definitions import BACKWARD, FORWARD, build, derived, kernel, number, packaged

from dsx.notation.library import load_layer, load_operators
from dsx.notation.work import derive

W, B, L, H, Q, N1, N2 = 2, 2, 512, 8, 64, 4, 2
E = H * Q
SIZES = {"b": B, "s": L, "e": E, "h": H, "g": H, "k": Q, "f": 4 * E, "tp": N1, "cp": N2}
HL, LR = H // N1, L // N2  # heads and rows of one rank
S, ROWS = B * HL * LR * L, B * HL * LR  # elements and rows of the square
LOCAL, FULL = B * HL * LR * Q, B * HL * L * Q  # q or the result; gathered k or v

TABLE = load_operators(["standard", "arxiv-2410.00273"])


def work(layer, name, **sizes):
    return [
        tuple(number(layer, value, **(SIZES | sizes)) for value in (w.matrix, w.vector, w.bytes))
        for w in kernel(layer, name).work
    ]


def attention(reads):
    layer = derive(load_layer("transformer-2410.00273", "2d", TABLE), reads, ["add"])
    return work(layer, "attention")


FORWARD_MATRIX = S * (2 * Q - 1) + ROWS * Q * (2 * L - 1)  # logits; attend
FORWARD_VECTOR = (3 * S - ROWS) + S  # softmax 2S + Z with Z = S - rows; dropout
BACKWARD_MATRIX = (
    ROWS * Q * (2 * L - 1) + B * HL * L * Q * (2 * LR - 1)  # dQ, dK
    + S * (2 * Q - 1) + B * HL * L * Q * (2 * LR - 1)  # dA, dV
    + S * (2 * Q - 1)  # the recomputed logits
)  # fmt: skip
BACKWARD_VECTOR = (4 * S - ROWS) + S + FORWARD_VECTOR
STORED = W * (4 * LOCAL + 2 * ROWS)


@pytest.mark.parametrize(
    ("reads", "read"),
    [
        ("stored", STORED),
        # q and the result as produced, k and v gathered, and what the kernel keeps of its own
        ("consumed", W * (2 * LOCAL + 2 * FULL + 2 * ROWS)),
    ],
)
def test_fused_attention(reads, read):
    forward, backward = attention(reads)
    assert forward == (FORWARD_MATRIX, FORWARD_VECTOR, W * (LOCAL + 2 * FULL + ROWS + LOCAL))
    # Besides: the gradients of q and of the result, and of gathered k and v.
    assert backward == (BACKWARD_MATRIX, BACKWARD_VECTOR, W * (2 * FULL + 2 * LOCAL) + read)


def test_a_mask_halves_flops_and_no_bytes():
    layer = packaged("transformer", "2d", TABLE)
    forward, backward = work(layer, "self-attention.attention")
    logits, attend = S * (2 * Q - 1), ROWS * Q * (2 * L - 1)
    assert forward == (logits // 2 + attend // 2, (3 * S - ROWS) // 2, W * (2 * LOCAL + 2 * FULL + ROWS))
    key_gradient = B * HL * L * Q * (2 * LR - 1)
    assert backward == (
        attend // 2 + 2 * (key_gradient // 2) + 2 * (logits // 2),
        (4 * S - ROWS) // 2 + (3 * S - ROWS) // 2,
        W * (2 * LOCAL + 2 * FULL + ROWS) + W * (2 * LOCAL + 2 * FULL),
    )
    # A mask halves no bytes outside a kernel either.
    text = "layer a\ninput q[b, s, k] p[b, t, k]\na[b, s, t] = einsum{}(q, p)\no[b, s, t] = softmax{}(a)"
    whole, half = (derived(text.replace("{}", modifier)) for modifier in ("", "{causal}"))
    sizes = {"b": 2, "s": 64, "t": 64, "k": 8}
    for name, unit in (("a", "matrix"), ("o", "vector")):
        for one, other in zip(kernel(whole, name).work, kernel(half, name).work, strict=True):
            assert number(half, other.bytes, **sizes) == number(whole, one.bytes, **sizes) > 0
            assert number(half, getattr(other, unit), **sizes) * 2 == number(whole, getattr(one, unit), **sizes) > 0


FUSED = """
layer a
input x[b, s, e]
weight g[e]
fuse first
n[b, s, e] = norm(x, g)
u[b, s, e] = gelu(n)
end
fuse {name}
v[b, s, e] = gelu(u)
w[b, s, e] = add(v, x)
end
"""


def test_bytes_cross_the_border_of_a_fused_kernel_and_uncounted_ones_cost_nothing():
    layer = derived(FUSED.format(name="second"))
    tensor, sizes = W * B * L * E, {"b": B, "s": L, "e": E}
    first, second = (kernel(layer, name) for name in ("first", "second"))
    assert number(layer, first.work[FORWARD].bytes, **sizes) == tensor + W * E + tensor
    assert number(layer, second.work[FORWARD].bytes, **sizes) == 3 * tensor
    # n is inside: recomputed from x, in 4 vector FLOPs an element; u crosses and is kept for the second.
    elements = B * L * E
    assert number(layer, first.work[BACKWARD].vector, **sizes) == (8 + 13 + 4) * elements
    assert [entry.key[0] for entry in first.saved] == ["x"]
    assert [entry.key[0] for entry in second.saved] == ["u"]
    assert number(layer, second.work[BACKWARD].vector, **sizes) == 13 * elements
    # Uncounted operators cost nothing.
    layer = derive(build("layer a\ninput x[b, s, e]\ny[b, s, e] = add(x, x)\nz[b, s, e] = gelu(y)"), uncounted=["add"])
    assert [k.runs for k in layer.kernels] == [False, True]
    assert [(w.matrix, w.vector, w.bytes) for w in layer.kernels[0].work] == [(0, 0, 0)] * 2


SPLIT = """
layer a
input x[b, s/tp, e]
weight w[e, f] v[f, e]
fuse mine
z[b, s, f] = einsum(x[b, s, e], w)
end
u[b, s/tp, f] = gelu(z[b, s/tp, f])
fuse {name}
y[b, s, e] = einsum(u[b, s, f], v)
end
"""


def test_names_of_kernels():
    apart, alike = (derived(SPLIT.format(name=name)) for name in ("other", "mine"))
    assert [k.name for k in alike.kernels] == ["mine", "u", "mine"]
    for direction in (FORWARD, BACKWARD):
        assert [k.collectives[direction] for k in alike.kernels] == [k.collectives[direction] for k in apart.kernels]
    assert [len(k.collectives[FORWARD]) for k in alike.kernels] == [1, 0, 1]
    # A kernel may be called as a tensor outside it.
    layer = derived(SPLIT.format(name="u"))
    assert [(k.name, len(k.collectives[FORWARD])) for k in layer.kernels] == [("mine", 1), ("u", 0), ("u", 1)]
    # A kernel that begins with a name assigned again has its own name.
    layer = derived("layer a\ninput x[b]\nx[b] = gelu(x)\nfuse f\nx[b] = gelu(x)\ny[b] = gelu(x)\nend")
    assert [k.name for k in layer.kernels] == ["x.2", "f"]
    biased = packaged("transformer ff_bias", "2d")
    assert kernel(biased, "feed-forward.activation").kinds == ("bias", "gelu")
