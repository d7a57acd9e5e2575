"""Latent attention with plain queries, experts without a gate, heads of state-space layers, labels: work by hand."""

import pytest
from notation.definitions import A2A, FORWARD, kernel, number, packaged, saved, volumes

from dsx.notation.expressions import evaluate
from dsx.notation.model import define

B, S, E, TP, EP = 2, 512, 256, 4, 8
H, NOPE, ROPE, RKV, KV = 16, 24, 8, 64, 20
LATENT = {"b": B, "s": S, "e": E, "h": H, "nope": NOPE, "rope": ROPE, "rkv": RKV, "kv": KV, "rq": 96, "f": 1024}
X, TOPK, FX, FS, LE = 16, 4, 128, 384, 64
MIXTURE = {"b": B, "s": S, "e": E, "x": X, "topk": TOPK, "fx": FX, "fs": FS, "capacity_percent": 100, "le": LE}
MIXTURE |= dict.fromkeys(("tp", "tp2", "cp", "ep"), 1)
SLOTS = TOPK * B * S // X  # of an expert
OWN = {"sh": 24, "sg": 4, "sk": 32}
STATES = {"b": B, "s": S, "e": E, "state": 32, "conv": 4, "chunk": 64, "h": 8, "g": 2, "k": 16}


def matrix(layer, *of, **sizes):
    """Matrix FLOPs of the forward: of the kernels named in `of`, else of all."""
    kernels = [kernel(layer, name) for name in of] or layer.kernels
    return sum(number(layer, one.work[FORWARD].matrix, **sizes) for one in kernels)


def multiply(rows, inner, columns):
    return rows * columns * (2 * inner - 1)


def test_plain_queries_latent_experts_and_state_spaces():
    layer = packaged("transformer gated attention=latent-attention plain_queries", "1d")
    width = H * (NOPE + ROPE) // TP
    assert matrix(layer, "latent-attention.qb", **LATENT, tp=TP) == multiply(B * S, E, width)
    assert saved(layer, **LATENT, tp=TP).keys() & {"latent-attention.qa", "latent-attention.qn"} == set()
    with_latent = packaged("transformer gated attention=latent-attention", "1d")
    less = multiply(B * S // TP, E, 96) + multiply(B * S, 96, width)
    assert matrix(with_latent, **LATENT, tp=TP) - matrix(layer, **LATENT, tp=TP) == less - multiply(B * S, E, width)
    # Latent experts exchange and multiply narrow vectors.
    narrow, wide = (packaged(f"sublayer mixer=experts squared_relu{more}", "1d") for more in (" latent_experts", ""))
    exchanged = [
        sum(size for kind, _, size in volumes(one, FORWARD, **MIXTURE | {"ep": EP}) if kind == A2A)
        for one in (narrow, wide)
    ]
    assert exchanged[0] * E == exchanged[1] * LE > 0
    ends = multiply(B * S, E, LE) + multiply(B * S, LE, E)
    experts = multiply(SLOTS * X, LE, FX) + multiply(SLOTS * X, FX, LE)
    assert matrix(narrow, **MIXTURE) == ends + experts + multiply(B * S, E, X)
    # Tp divides the groups of a state space layer.
    layer = packaged("sublayer mixer=state-space own_heads", "1d")
    (rule,) = (rule for rule in layer.rules if rule.reason == "state_groups_not_divisible")
    assert [evaluate(rule.left, define(layer, STATES | OWN | {"tp": tp})) for tp in (2, 4, 8)] == [0, 0, 4]


@pytest.mark.parametrize("activation", ["squared_relu", "ungated"])
def test_an_expert_without_a_gate_has_two_multiplies(activation):
    layer = packaged(f"sublayer mixer=experts shared {activation}", "1d")
    up, down = multiply(SLOTS * X, E, FX), multiply(SLOTS * X, FX, E)
    assert matrix(layer, "experts.up", "experts.y", **MIXTURE) == up + down
    every = multiply(B * S, E, FS) + multiply(B * S, FS, E)
    assert matrix(layer, **MIXTURE) == up + down + every + multiply(B * S, E, X)
    gated = packaged("sublayer mixer=experts shared", "1d")
    assert matrix(gated, **MIXTURE) - matrix(layer, **MIXTURE) == up + multiply(B * S, E, FS)


@pytest.mark.parametrize("strategy", ["1d", "2d"])
def test_state_space_layers_with_own_heads_cost_what_layers_of_these_heads_cost(strategy):
    own = packaged("sublayer mixer=state-space own_heads conv_bias gate_norm", strategy)
    usual = packaged("sublayer mixer=state-space conv_bias gate_norm", strategy)
    as_heads = STATES | dict(zip("hgk", OWN.values(), strict=True))
    for one, other in zip(own.kernels, usual.kernels, strict=True):
        for direction in (FORWARD, 1):
            for unit in ("matrix", "vector", "bytes"):
                found = number(own, getattr(one.work[direction], unit), **STATES, **OWN, tp=TP)
                assert found == number(usual, getattr(other.work[direction], unit), **as_heads, tp=TP)


@pytest.mark.parametrize(("options", "labelled"), [("", B), (" each_token label_bias", B * S)])
def test_a_head_of_labels_has_no_logits_of_the_vocabulary(options, labelled):
    layer, sizes = packaged(f"label-head{options}", "1d"), {"b": B, "s": S, "e": E, "classes": 3, "v": 4096}
    assert matrix(layer, **sizes) == multiply(labelled, E, 3)
    assert saved(layer, **sizes)["output state 0"] == 12 * labelled * 3


def test_global_heads_grouped_results_and_values_of_own_width():
    """h = 16 query heads; gg = 2 key heads of gk = 32 in the place of g = 8 of k = 16; one multiply of 16 + 2 heads."""
    layer = packaged("transformer gated rotary qk_norm global_heads shared_kv", "1d")
    sizes = {"b": B, "s": S, "e": E, "h": H, "g": 8, "k": 16, "gg": 2, "gk": 32, "f": 1024, "tp": 2}
    assert matrix(layer, "self-attention.qkv", **sizes) == multiply(B * S, E, (H + 2) * 32 // 2)
    scores = multiply(B * H // 2 * S, 32, S) + multiply(B * H // 2 * S, S, 32)
    assert matrix(layer, "self-attention.attention", **sizes) == pytest.approx(scores / 2, abs=1)
    assert matrix(layer, "self-attention.output", **sizes) == multiply(B * S, H * 32 // 2, E)
    # h = 16 heads of 16 in og = 4 groups, each projected to ol = 24, and all 96 to the hidden size.
    layer = packaged("transformer gated attention=grouped-output-attention", "1d")
    sizes = {"b": B, "s": S, "e": E, "h": H, "k": 16, "rq": 96, "og": 4, "ol": 24, "f": 1024, "tp": 2}
    name = "grouped-output-attention"
    assert matrix(layer, f"{name}.qb", **sizes) == multiply(B * S, 96, H * 16 // 2)
    assert matrix(layer, f"{name}.kva", **sizes) == multiply(B * S // 2, E, 16)
    assert matrix(layer, f"{name}.narrow", **sizes) == 4 // 2 * multiply(B * S, 4 * 16, 24)
    assert matrix(layer, f"{name}.output", **sizes) == multiply(B * S, 4 * 24 // 2, E)
    # Values of a width of their own.
    layer = packaged("transformer gated rotary value_width", "1d")
    sizes = {"b": B, "s": S, "e": E, "h": H, "g": 4, "k": 24, "kv": 16, "f": 1024, "tp": 2}
    assert matrix(layer, "self-attention.qkv", **sizes) == multiply(B * S, E, (H * 24 + 4 * (24 + 16)) // 2)
    assert matrix(layer, "self-attention.output", **sizes) == multiply(B * S, H * 16 // 2, E)
