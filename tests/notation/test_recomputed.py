"""Recomputation: what is kept under each mode, in numbers of Korthikanti et al., 2022; regions and their faults."""

import numpy as np
import pytest
from notation.definitions import build, derived, fails, kernel, number

from dsx.config.assumption_set import load_assumptions
from dsx.cost.layer_work import layer_work
from dsx.notation.recompute import recomputation
from dsx.notation.work import derive
from dsx.verbs.layer import describe

# The layer of Korthikanti et al., section 4: biases, unfused attention, dropout of one byte an element.
STANDARD_LAYER = """
layer standard
dim c = 3 * h * k
dim m = h * k
dim t = s
input  x[b, s/tp, e]
weight g1[e] o1[e] wqkv[e, c/tp] bqkv[c/tp] wo[m/tp, e] bo[e] g2[e] o2[e] w1[e, f/tp] b1[f/tp] w2[f/tp, e] b2[e]
n1[b, s/tp, e]         = layernorm(x, g1, o1)
z1[b, s, c/tp]         = einsum(n1[b, s, e]~, wqkv)
qkv[b, s, c/tp]        = bias(z1, bqkv)
q[b, s, h/tp, k], kk[b, s, h/tp, k], vv[b, s, h/tp, k] = view(qkv)
k1[b, t, h/tp, k]      = view(kk)
v1[b, t, h/tp, k]      = view(vv)
recompute core-attention
a[b, h/tp, s, t]       = einsum(q, k1)
p[b, h/tp, s, t]       = softmax(a)
pd[b, h/tp, s, t]      = dropout(p)
o[b, s, h/tp, k]       = einsum(pd, v1)
end
om[b, s, m/tp]         = view(o)
y[b, s, e @tp]         = einsum(om, wo)
yb[b, s/tp, e]         = bias(y[b, s/tp, e], bo)
yd[b, s/tp, e]         = dropout(yb)
r[b, s/tp, e]          = add(x, yd)
n2[b, s/tp, e]         = layernorm(r, g2, o2)
z2[b, s, f/tp]         = einsum(n2[b, s, e]~, w1)
zb[b, s, f/tp]         = bias(z2, b1)
u[b, s, f/tp]          = gelu(zb)
d[b, s, e @tp]         = einsum(u, w2)
db[b, s/tp, e]         = bias(d[b, s/tp, e], b2)
dd[b, s/tp, e]         = dropout(db)
output[b, s/tp, e]     = add(r, dd)
"""
B, S, H, K = 2, 1024, 16, 64
E = H * K
SIZES = {"b": B, "s": S, "e": E, "h": H, "k": K, "f": 4 * E}


CORE = frozenset({"core-attention"})


def work(text, tp=1):
    keys = {"microbatch_size": np.array([B]), "panels": np.array([1]), "tp": np.array([tp]), "tp_nvs": np.array([1])}
    sizes = {name: size for name, size in SIZES.items() if name not in "bs"}
    return layer_work(derived(text), sizes, load_assumptions("default"), S, keys)


def kept(layer, chosen, **sizes):
    """Bytes of every tensor that is kept if some regions are recomputed."""
    found = recomputation(layer, frozenset(chosen)).kept
    return {saved.key: number(layer, saved.bytes, **SIZES | sizes) for listed in found for saved in listed}


@pytest.mark.parametrize("tp", [1, 4])
def test_activations_of_a_layer_are_those_of_korthikanti_table_2(tp):
    """sbh (34 + 5as/h), 34 sbh without the core, 2 sbh with the input alone; sequence parallelism divides all by t."""
    unit = S * B * E // tp
    none, selective, full = work(STANDARD_LAYER, tp).stash[:, 0].tolist()
    assert none == unit * 34 + 5 * H * S * S * B // tp
    assert selective == unit * 34
    assert full == unit * 2


def test_activations_without_sequence_parallelism_or_region():
    """sbh (10 + 24/t + 5as/ht): norms, their results and the masks of the residual stream are whole."""
    whole = STANDARD_LAYER.replace("s/tp", "s").replace("[b, s, e]~", "")
    none, selective, full = work(whole, 4).stash[:, 0].tolist()
    unit = S * B * E
    assert (none, selective, full) == (unit * 16 + 5 * H * S * S * B // 4, unit * 16, unit * 2)
    # A layer without a region keeps as much as without recomputation.
    plain = work(STANDARD_LAYER.replace("recompute core-attention\n", "").replace("end\n", "", 1))
    none, selective, _ = plain.stash[:, 0].tolist()
    assert none == selective
    assert plain.working[0, 0] == plain.working[1, 0]
    # Work without recomputation does not depend on the region.
    marked = work(STANDARD_LAYER)
    for name in ("matrix", "vector", "bytes", "volumes"):
        assert np.array_equal(getattr(plain, name), getattr(marked, name))
    assert [len(mode.repeated) for mode in plain.modes] == [0, 0, len(derived(STANDARD_LAYER).priced_kernels)]
    assert [len(mode.repeated) for mode in marked.modes[:2]] == [0, 4]


def test_transient_memory_of_each_mode():
    """That of the multiply with the values; of the softmax, with the core recomputed; as under none, with the stash.

    Beside it the gradient of `r` waits for the residual connection. All kernels after it have freed what they saved.
    """
    found = work(STANDARD_LAYER)
    none, selective, full = found.working[:, 0].tolist()
    square, unit = H * S * S * B, S * B * E
    freed = 24 * unit  # om, n2 and its input, zb, u, and the masks of two dropouts
    assert none == 2 * square + 3 * 2 * unit - freed  # gradients of pd, o, v1 and r
    # Probabilities, mask and dropped ones have been recomputed; gradients of p, a, v1 and r. v1 is freed too.
    assert selective == 5 * square + 4 * square + 2 * 2 * unit - (freed + 2 * unit)
    assert full == none + found.stash[0, 0] - found.stash[2, 0]


FEED_FORWARD = """
layer feed-forward
input  x[b, s, e]
weight w1[e, f] w2[f, e]
z[b, s, f]      = einsum(x, w1)
u[b, s, f]      = gelu(z)
output[b, s, e] = einsum(u, w2)
"""


@pytest.mark.parametrize(
    ("length", "unreduced", "transient"),
    [
        (S, 5 + 2, 5),  # the second multiply and its weight; gelu has 8 units, and 4 are freed
        (S // 32, 128 + 5 - 8, 5),  # the first multiply: gradients of both weights, where z and u are freed
    ],
)
def test_gradients_of_weights_wait_while_saved_tensors_are_freed(length, unreduced, transient):
    """A unit is a tensor of the input's size. Each weight has 4 E^2 elements, as many as two units of 1,024 tokens."""
    keys = {"microbatch_size": np.array([B]), "panels": np.array([1]), "tp": np.array([1]), "tp_nvs": np.array([1])}
    sizes = {name: size for name, size in SIZES.items() if name not in "bs"}
    found = layer_work(derived(FEED_FORWARD), sizes, load_assumptions("default"), length, keys)
    unit = 2 * B * length * E
    assert found.scattered[0, 0] == unreduced * unit
    assert found.working[0, 0] == transient * unit


FUSED = """
layer fused
dim t = s
input q[b, s/cp, h, k] kv[b, s/cp, h, k]
recompute core-attention
fuse attention
k1[b, t, h, k]    = view(kv[b, s, h, k]~)
a[b, h, s/cp, t]  = einsum(q, k1)
p[b, h, s/cp, t]  = softmax(a)
o[b, s/cp, h, k]  = einsum(p, k1)
end
end
output[b, s/cp, h, k] = gelu(o)
"""


def test_regions_of_fused_kernels_and_blocks():
    layer = derived(FUSED)
    held = kept(layer, CORE, cp=2)
    share = 2 * B * (S // 2) * E
    assert held == {("q", ""): share, ("kv", ""): share, ("o", ""): share}
    assert len(kernel(layer, "attention").saved) == 4  # and the statistics of softmax
    # A block may be used inside a region.
    block = "block twice\ninput x[b, e]\nu[b, e] = gelu(x)\noutput[b, e] = gelu(u)"
    layer = build(
        "layer a\ninput x[b, e]\nrecompute feed-forward\nuse twice\nend\nrecompute experts\nuse twice\nend",
        blocks=[block],
    )
    assert [op.regions for op in layer.operators] == [(("feed-forward", 1),)] * 2 + [(("experts", 2),)] * 2
    both = recomputation(derive(layer), frozenset({"feed-forward", "experts"}))
    assert [saved.key[0] for listed in both.kept for saved in listed] == ["x", "twice.output"]
    assert [one.kernels for one in both.recomputed] == [range(2), range(2, 4)]
    # A region of a block inside itself.
    block = "block inner\ninput x[b]\nrecompute experts\noutput[b] = gelu(x)\nend"
    with pytest.raises(Exception, match="region 'experts' is used inside region 'experts'; a region is not part of"):
        build("layer a\ninput x[b]\nrecompute experts\nuse inner\nend", blocks=[block])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            "recompute norms\n ^recompute norms\ny[b] = gelu(x)\nend\nend",
            ["region 'norms' has no 'end' yet", "not part of itself"],
        ),
        ("fuse f\n ^recompute norms\ny[b] = gelu(x)\nend\nend", ["recomputed as a whole", "'f' has no 'end' yet"]),
        ("^recompute norms\ny[b] = gelu(x)", ["region 'norms' has no 'end'"]),
        ("^recompute norms\nuse inner\nrecompute experts\nend", ["region 'norms' has no 'end'"]),
        ("recompute ^norm\ny[b] = gelu(x)\nend", ["'norm' is not a region", "did you mean 'norms'?", "feed-forward"]),
    ],
)
def test_faults_of_a_region(lines, words):
    block = "block inner\ninput x[b]\noutput[b] = gelu(x)"
    fails(f"layer a\ninput x[b]\n{lines}", *words, blocks=[block])


def test_the_description_of_a_layer_says_what_each_mode_keeps_and_how_its_multiplies_look():
    described = describe(build(STANDARD_LAYER), "consumed", (), {"tp": 1, "activation_bytes": 2}, SIZES)
    kept = [described[name]["value"] for name in ("saved_bytes", "saved_bytes_selective", "saved_bytes_full")]
    assert kept == work(STANDARD_LAYER).stash[:, 0].tolist()
    core = {one["name"] for one in described["kernels"] if one["recompute"] == ["core-attention"]}
    assert core == {"a", "p", "pd", "o"}
    (scores,) = (one["forward"]["multiplies"][0] for one in described["kernels"] if one["name"] == "a")
    sizes = [scores[name]["value"] for name in ("rows", "columns", "contracted", "batch")]
    assert (sizes, scores["linear"]) == ([S, S, K, B * H], False)
