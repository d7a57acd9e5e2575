"""Regions of packaged layers by hand: what is kept, what is repeated, and what the backward then holds.

Sizes are those of one rank, in elements of two bytes: X = b s e / tp between blocks, W = b s e gathered.
"""

import pytest
from notation.definitions import kernel, number, packaged

from dsx.notation.recompute import recomputation
from dsx.notation.syntax import REGIONS_BY_NAME
from dsx.notation.work import FORWARD

B, S, E, F, H, G, K, TP = 2, 512, 256, 1024, 8, 4, 32, 2
SIZES = {"b": B, "s": S, "e": E, "f": F, "h": H, "g": G, "k": K, "tp": TP}
X = B * S * E // TP
Z = B * S * F // TP  # one of the wide tensors of the feed-forward network
Q, KV = B * S * H * K // TP, B * S * G * K // TP
STATISTICS = B * S * H // TP


def kept(layer, *chosen, **sizes):
    found = recomputation(layer, frozenset(chosen))
    return {saved.key: number(layer, saved.bytes, **SIZES | sizes) // 2 for listed in found.kept for saved in listed}


def repeated(layer, *chosen):
    return [layer.kernels[index].name for index in recomputation(layer, frozenset(chosen)).repeated]


def held(layer, *chosen, **sizes):
    """Elements of the recomputed tensors of each region, and the first and last kernel that they exist for."""
    return [
        (
            sum(number(layer, saved.bytes, **SIZES | sizes) // 2 for saved in one.tensors),
            layer.kernels[one.kernels[0]].name,
            layer.kernels[one.kernels[-1]].name,
        )
        for one in recomputation(layer, frozenset(chosen)).recomputed
    ]


@pytest.fixture(scope="module")
def dense():
    return packaged("transformer gated rotary", "1d")


def test_a_dense_layer(dense):
    """Input, both norms' results, q, k, v, the attention result with statistics, r, and three wide tensors."""
    assert sum(kept(dense).values()) == 4 * X + Q + 2 * KV + Q + STATISTICS + 3 * Z
    # Their results vanish; what they read was kept anyway. Each exists from the multiply that reads it to its norm.
    assert sum(kept(dense).values()) - sum(kept(dense, "norms").values()) == 2 * X
    assert kept(dense).keys() - kept(dense, "norms").keys() == {("n1", ""), ("n2", "")}
    assert repeated(dense, "norms") == ["n1", "n2"]
    assert held(dense, "norms") == [(X, "n1", "self-attention.qkv"), (X, "n2", "feed-forward.up")]
    assert recomputation(dense, frozenset({"norms"})).completed == ()
    # It keeps its input, and runs again with the gather of it and the reduce-scatter of its result.
    found = recomputation(dense, frozenset({"feed-forward"}))
    assert sum(kept(dense).values()) - sum(kept(dense, "feed-forward").values()) == 3 * Z
    assert ("n2", "") in kept(dense, "feed-forward")
    assert repeated(dense, "feed-forward") == [f"feed-forward.{name}" for name in ("z", "up", "u", "output")]
    moved = [
        (one.kind, one.tensor)
        for index in (*found.repeated, *found.completed)
        for one in dense.kernels[index].collectives[FORWARD]
    ]
    assert moved == [("all-gather", "n2"), ("reduce-scatter", "feed-forward.output")]
    assert held(dense, "feed-forward") == [(3 * Z, "feed-forward.z", "feed-forward.output")]
    # The input of the network is a norm's result, which is not kept; it exists while the network runs again.
    both = kept(dense, "norms", "feed-forward")
    assert sum(kept(dense).values()) - sum(both.values()) == 2 * X + 3 * Z
    assert held(dense, "norms", "feed-forward") == [
        (X, "n1", "self-attention.qkv"),
        (X, "n2", "feed-forward.output"),
        (3 * Z, "feed-forward.z", "feed-forward.output"),
    ]


def test_regions_free_no_copy_that_is_kept_and_have_names():
    """Attention that exchanges positions for heads keeps queries, keys and values as it received them."""
    layer = packaged("transformer gated attention=latent-attention", "ulysses")
    freed = kept(layer, **LATENT).keys() - kept(layer, "latent-up-projection", **LATENT).keys()
    copies = {key for key in kept(layer, **LATENT) if key[1] and not key[1].startswith("state")}
    assert copies
    assert not copies & freed
    # Regions of attention and their names.
    fused, unfused = (packaged(f"transformer{core}", "1d") for core in ("", " core=unfused-attention-core"))
    assert "core-attention" not in fused.region_names
    assert unfused.region_names == ("norms", "core-attention", "feed-forward")
    assert kernel(fused, "self-attention.attention").regions == ()
    # Every region names its launcher word and known regions.
    assert len({region.megatron_lm for region in REGIONS_BY_NAME.values()}) == len(REGIONS_BY_NAME)
    assert all(region.within in ("", *REGIONS_BY_NAME) for region in REGIONS_BY_NAME.values())


# Latent attention and experts: queries from rq, keys and values from rkv, 4 experts on 2 ranks, 2 for each token.
RQ, RKV, NOPE, ROPE, V, X4, TOPK, FX, FS = 64, 32, 16, 16, 32, 4, 2, 128, 64
LATENT = {
    "rq": RQ, "rkv": RKV, "nope": NOPE, "rope": ROPE, "kv": V, "k": NOPE + ROPE, "x": X4, "topk": TOPK, "fx": FX,
    "fs": FS, "capacity_percent": 100, "ep": 2, "g": H, "tp2": 1, "cp": 1,
}  # fmt: skip
TOKENS = B * S // TP
ROWS = TOPK * TOKENS  # tokens that the experts of one rank get: x / ep experts of 2 topk tokens / x slots each


@pytest.fixture(scope="module")
def experts():
    return packaged("transformer shared attention=latent-attention ffn=experts", "1d")


def freed(layer, *chosen):
    return sum(kept(layer, **LATENT).values()) - sum(kept(layer, *chosen, **LATENT).values())


def test_up_projections_of_latent_attention(experts):
    """Queries, keys, values and the normalised latents vanish; the latents stay, and the part that has positions."""
    wide = B * S * H // TP * (2 * (NOPE + ROPE) + V)
    assert freed(experts, "latent-up-projection") == wide + TOKENS * (RQ + RKV - ROPE)
    before, after = kept(experts, **LATENT), kept(experts, "latent-up-projection", **LATENT)
    assert after.keys() - before.keys() == {("latent-attention.kp", "")}
    assert repeated(experts, "latent-up-projection") == [
        f"latent-attention.{name}" for name in ("qn", "qb", "q", "ln", "kvb", "kn", "rotary")
    ]
    # The attention kernel reads them in its backward; the rotary embedding of the second region needs the first one's.
    assert [(first, last) for _, first, last in held(experts, "latent-up-projection", **LATENT)] == [
        ("latent-attention.qn", "latent-attention.attention"),
        ("latent-attention.ln", "latent-attention.attention"),
    ]


def test_experts_and_shared_experts(experts):
    """One of the three wide tensors vanishes; the two that it is computed from stay."""
    assert freed(experts, "expert-activation") == ROWS * FX
    assert repeated(experts, "expert-activation") == ["experts.u"]
    assert held(experts, "expert-activation", **LATENT) == [(ROWS * FX, "experts.u", "experts.y")]
    # Shared experts.
    assert freed(experts, "shared-experts") == 3 * B * S * FS // TP
    found = recomputation(experts, frozenset({"shared-experts"}))
    assert [one.tensor for index in found.completed for one in experts.kernels[index].collectives[FORWARD]] == [
        "experts.shared-experts.output"
    ]
    # They keep their input alone, and repeat dispatch and combination with their all-to-alls.
    parts = ("experts", "expert-activation", "shared-experts")
    assert kept(experts, *parts, **LATENT) == kept(experts, "experts", **LATENT)
    assert repeated(experts, *parts) == repeated(experts, "experts")
    left = {key for key in kept(experts, "experts", **LATENT) if key[0].startswith("experts.")}
    assert left == set()
    found = recomputation(experts, frozenset({"experts"}))
    again = [one.kind for index in found.repeated for one in experts.kernels[index].collectives[FORWARD]]
    assert again.count("all-to-all") == 2
    # Of its input, only the norm's result is kept, which the norm's region would free too.
    assert freed(experts, "experts", "norms") - freed(experts, "experts") == 2 * X
    # Regions that share nothing free the sum.
    parts = ("norms", "latent-up-projection", "expert-activation", "shared-experts")
    assert freed(experts, *parts) == sum(freed(experts, part) for part in parts)
