"""What is kept for the backward, and what the backward regathers."""

from notation.definitions import AG, BACKWARD, FORWARD, RS, collectives, derived, saved, volumes

W, B, S, E, F, H, K = 2, 2, 256, 64, 512, 8, 8
SIZES = {"b": B, "s": S, "e": E, "f": F, "h": H, "k": K, "tp": 4, "cp": 2}
HEADS = W * B * (S // 2) * H * K

UNFUSED = """
layer unfused
dim c = 3 * h * k
dim t = s
input n[b, s/cp, e]
weight w[e, c]
qkv[b, s/cp, c]    = einsum(n, w)
q[b, s/cp, h, k], kk[b, s/cp, h, k], vv[b, s/cp, h, k] = view(qkv)
k1[b, t, h, k]     = view(kk[b, s, h, k]~)
v1[b, t, h, k]     = view(vv[b, s, h, k]~)
a[b, h, s/cp, t]   = einsum(q, k1)
p[b, h, s/cp, t]   = softmax(a)
o[b, s/cp, h, k]   = einsum(p, v1)
"""


def test_attention_keeps_its_own_keys_and_values():
    layer = derived(UNFUSED)
    assert saved(layer, **SIZES) == {
        "n": W * B * (S // 2) * E,
        "q": HEADS,
        "kk": HEADS,
        "vv": HEADS,
        "p": W * B * H * (S // 2) * S,
    }
    assert collectives(layer, FORWARD) == {(AG, "cp", "kk"): 1, (AG, "cp", "vv"): 1}
    again = {(AG, "cp", name): 1 for name in ("kk", "vv")}
    assert collectives(layer, BACKWARD) == again | {(RS, "cp", f"d {name}"): 1 for name in ("kk", "vv")}
    # Without the mark the gathered ones are kept.
    layer = derived(UNFUSED.replace("~", ""))
    kept = saved(layer, **SIZES)
    assert kept["kk"] == kept["vv"] == 2 * HEADS
    assert collectives(layer, BACKWARD) == {(RS, "cp", f"d {name}"): 1 for name in ("kk", "vv")}
    # Fused attention recomputes the square.
    fused = UNFUSED.replace("k1[", "fuse attention\nk1[").rstrip() + "\nend\nend_[b, s/cp, h, k] = gelu(o)\n"
    kept = saved(derived(fused), **SIZES)
    statistics = W * B * H * (S // 2)
    assert kept == {"n": W * B * (S // 2) * E, **dict.fromkeys(("q", "kk", "vv", "o"), HEADS), "p state 0": statistics}


GATED = """
layer gated
input n[b, s/tp, e]
weight w1[e, f/tp] w2[e, f/tp]
gate[b, s, f/tp]   = einsum(n[b, s, e]~, w1)
up[b, s, f/tp]     = einsum(n[b, s, e]~, w2)
output[b, s, f/tp] = swiglu(gate, up)
"""


def test_one_gather_serves_both_multiplies_and_one_scatter_both_gradients():
    layer = derived(GATED)
    tokens = W * B * S * E
    assert volumes(layer, FORWARD, **SIZES) == [(AG, "tp", tokens)]
    assert volumes(layer, BACKWARD, **SIZES) == [(AG, "tp", tokens), (RS, "tp", tokens)]
    hidden = W * B * S * F // 4
    assert saved(layer, **SIZES) == {"n": tokens // 4, "gate": hidden, "up": hidden}
    # Without the mark the gathered copy is kept once.
    layer = derived(GATED.replace("~", ""))
    assert volumes(layer, FORWARD, **SIZES) == [(AG, "tp", tokens)]
    assert volumes(layer, BACKWARD, **SIZES) == [(RS, "tp", tokens)]
    assert saved(layer, **SIZES)["n"] == tokens
    # Two distributions are two gathers and two kept tensors.
    layer = derived("""
        layer two
        input n[b, s/cp/tp, e]
        weight w1[e, f] w2[e, f]
        y[b, s/cp, f] = einsum(n[b, s/cp, e], w1)
        z[b, s, f]    = einsum(n[b, s, e], w2)
        zz[b, s/cp, f] = gelu(z[b, s/cp, f])
        output[b, s/cp, f] = add(y, zz)
    """)
    assert collectives(layer, FORWARD) == {(AG, "tp", "n"): 2, (AG, "cp", "n"): 1}
    kept = {entry.key for kernel in layer.kernels for entry in kernel.saved if entry.key[0] == "n"}
    assert kept == {("n", "[b, s/cp, e]"), ("n", "[b, s, e]")}


def test_a_tensor_counts_once_also_under_another_name():
    layer = derived("""
        layer once
        input x[b, s, e]
        weight w[e, f]
        u[b, s, e] = gelu(x)
        y[b, s, f] = einsum(x, w)
    """)
    assert saved(layer, **SIZES) == {"x": W * B * S * E}
    # A view is its source under another name.
    layer = derived("""
        layer merged
        dim m = h * k
        input o[b, s, h/tp, k]
        weight w[m/tp, e]
        u[b, s, h/tp, k] = gelu(o)
        om[b, s, m/tp]   = view(u)
        y[b, s, e @tp]   = einsum(om, w)
        v[b, s, h/tp, k] = gelu(u)
        output[b, s, e]  = gelu(y[b, s, e])
    """)
    heads = W * B * S * H * K // 4
    assert saved(layer, **SIZES) == {"o": heads, "u": heads, "y": W * B * S * E}
    # Linear operators and views keep nothing.
    layer = derived("""
        layer nothing
        input x[b, s, e]
        weight beta[e]
        y[b, s, e] = bias(x, beta)
        z[b, s, e] = add(x, y)
        output[b, s, e] = scale(z)
    """)
    assert saved(layer, **SIZES) == {}
