"""Every packaged layer kind, with any of its options and blocks, under every strategy: its weights counted by hand."""

from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import settings as run
from hypothesis import strategies as st
from notation.definitions import STANDARD, number, settings

from dsx.config.model_file import PREDICTED, PREDICTION
from dsx.errors import InputError
from dsx.notation.build import build_layer
from dsx.notation.library import load_definition, load_strategy, strategy_names
from dsx.notation.work import derive

E, F, V, H, G, K = 256, 1024, 4096, 16, 8, 16
X, FX, FS, POSITIONS = 16, 128, 512, 300
RQ, RKV, NOPE, ROPE, KV = 96, 64, 24, 8, 20
STATE, CONV = 32, 4
LG, LH, LK, LV, CHUNK = 4, 8, 24, 40, 64
SG, SH, SK, LE, CLASSES, GG, GK, OG, OL = 4, 24, 8, 48, 5, 4, 32, 8, 12
SIZES = {
    "e": E, "f": F, "v": V, "h": H, "g": G, "k": K, "x": X, "fx": FX, "fs": FS, "positions": POSITIONS, "rq": RQ,
    "rkv": RKV, "nope": NOPE, "rope": ROPE, "kv": KV, "state": STATE, "conv": CONV, "lg": LG, "lh": LH, "lk": LK,
    "lv": LV, "chunk": CHUNK,
    "sg": SG, "sh": SH, "sk": SK, "le": LE, "classes": CLASSES,
    "gg": GG, "gk": GK, "og": OG, "ol": OL, "weight_bytes": 1,
}  # fmt: skip
CX, MERGED, ZX = H // G * K + 2 * STATE, H * K, 2 * H * K + 2 * G * STATE + H
WIDE = (H + 2 * GG) * GK
OWN_CX, OWN_MERGED, OWN_ZX = SH // SG * SK + 2 * STATE, SH * SK, 2 * SH * SK + 2 * SG * STATE + SH
NO_GATE = {
    "": -X * E * FX, "expert_bias": -X * FX, "shared": -E * FS, "latent_experts": X * (E - LE) * FX,
}  # fmt: skip

# Parameters of a layer or block without options, and how many more there are where all of some options are set.
PARTS = {
    "embedding": (V * E, {"learned_positions": POSITIONS * E, "layernorm": 2 * E}),
    "head": (E + E * V, {"layernorm": E, "bare_layernorm": -E}),
    "label-head": (E + E * CLASSES, {"layernorm": E, "label_bias": CLASSES}),
    "transformer": (
        2 * E,
        {"layernorm": 2 * E, "bare_layernorm": -2 * E, "out_bias": E, "ff_out_bias": E, "sandwich": 2 * E},
    ),
    "parallel-layer": (
        2 * E,
        {"layernorm": 2 * E, "one_norm": -E, "one_norm layernorm": -E, "out_bias": E, "ff_out_bias": E},
    ),
    "sublayer": (E, {"layernorm": E, "result_bias": E}),
    "self-attention": (
        E * (H + 2 * G) * K + MERGED * E,
        {
            "qkv_bias": (H + 2 * G) * K, "qk_norm": 2 * K, "joint_qk_norm": (H + G) * K, "output_gate": E * H * K,
            "qkv_bias output_gate": H * K, "shared_kv": -E * G * K, "qkv_bias shared_kv": -G * K,
            "global_heads": E * (WIDE - (H + 2 * G) * K) + H * (GK - K) * E,
            "global_heads qkv_bias": WIDE - (H + 2 * G) * K,
            "global_heads qk_norm": 2 * (GK - K), "global_heads joint_qk_norm": (H + GG) * GK - (H + G) * K,
            "global_heads output_gate": E * H * (GK - K), "global_heads qkv_bias output_gate": H * (GK - K),
            "value_width": (E * G + H * E) * (KV - K), "qkv_bias value_width": G * (KV - K),
            "global_heads value_width": E * (GG * (KV - GK) - G * (KV - K)) + E * H * (K - GK),
            "global_heads qkv_bias value_width": GG * (KV - GK) - G * (KV - K),
            "global_heads shared_kv": -E * (GG * GK - G * K), "global_heads qkv_bias shared_kv": -(GG * GK - G * K),
        },
    ),
    "latent-attention": (
        E * RQ + RQ + RQ * H * (NOPE + ROPE) + E * (RKV + ROPE) + RKV + RKV * H * (NOPE + KV) + H * KV * E,
        {
            "qkv_bias": RQ + RKV + ROPE, "plain_queries qkv_bias": -RQ,
            "plain_queries": E * H * (NOPE + ROPE) - (E * RQ + RQ + RQ * H * (NOPE + ROPE)),
        },
    ),
    "grouped-output-attention": (E * RQ + RQ + RQ * H * K + E * K + K + H * K * OL + OG * OL * E, {}),
    "attention-core": (0, {"sinks": H}),
    "unfused-attention-core": (0, {"sinks": H}),
    "feed-forward": (2 * E * F, {"ff_bias": F, "gated": E * F, "ff_bias gated": F}),
    "experts": (
        E * X + 3 * X * E * FX,
        {
            "expert_bias": X + X * (2 * FX + E), "corrected": X, "shared": 3 * E * FS,
            "latent_experts": 2 * E * LE - 3 * X * (E - LE) * FX, "latent_experts expert_bias": -X * (E - LE),
        }
        | {f"{named} {words}": size for named in ("squared_relu", "ungated") for words, size in NO_GATE.items()},
    ),
    "shared-experts": (0, {"shared shared_gate": E}),
    "state-space": (
        E * ZX + G * CX * CONV + 3 * H + MERGED * E,
        {
            "in_bias": ZX, "conv_bias": G * CX, "gate_norm": MERGED,
            "own_heads": E * (OWN_ZX - ZX) + (SG * OWN_CX - G * CX) * CONV + 3 * (SH - H) + (OWN_MERGED - MERGED) * E,
            "own_heads in_bias": OWN_ZX - ZX, "own_heads conv_bias": SG * OWN_CX - G * CX,
            "own_heads gate_norm": OWN_MERGED - MERGED,
        },
    ),
    "gated-delta-net": (
        E * 2 * (LG * LK + LH * LV + LH) + (2 * LG * LK + LH * LV) * CONV + 2 * LH + LV + LH * LV * E,
        {},
    ),
}  # fmt: skip
USED = {"experts": ["shared-experts"]}  # blocks that a block uses itself, in place of a block parameter
ATTENTION = list(
    product(
        ["self-attention", "latent-attention", "grouped-output-attention"], ["attention-core", "unfused-attention-core"]
    )
)
LAYERS = [
    "embedding",
    "head",
    "label-head",
    *(f"transformer attention={a} core={c} ffn={f}" for a, c in ATTENTION for f in ("feed-forward", "experts")),
    *(f"parallel-layer attention={a} core={c}" for a, c in ATTENTION),
    *(f"sublayer mixer={a} core={c}" for a, c in ATTENTION),
    *(f"transformer attention=gated-delta-net ffn={f}" for f in ("feed-forward", "experts")),
    *(f"sublayer mixer={mixer}" for mixer in ("state-space", "gated-delta-net", "feed-forward", "experts")),
]
STRATEGIES = strategy_names()
strategy = cache(load_strategy)
definition = cache(load_definition)
OF_STRATEGIES = {option for name in STRATEGIES for option in strategy(name).settings.options}


def parts(layer):
    """The names of a layer and of its blocks, without the layer that a head predicts with (test_prediction)."""
    kind, *words = layer.split()
    own = definition(kind).parameters | dict(settings(" ".join(words)).blocks)
    own.pop(PREDICTED, None)
    found = [kind, *own.values()]
    return found + [block for part in found for block in USED.get(part, [])]


def exclusive(layer):
    """What options exclude each other over, and the options."""
    return {over: options for part in parts(layer) for over, options in definition(part).exclusive.items()}


@st.composite
def chosen(draw, layer):
    """Options of a layer that may be set together, those left out that strategies set."""
    groups = [group for group in exclusive(layer).values() if not OF_STRATEGIES & {*group}]
    alone = {option for part in parts(layer) for option in definition(part).options}
    alone -= OF_STRATEGIES.union(*groups) | {PREDICTION}
    found = {draw(st.sampled_from(["", *group])) for group in groups} - {""}
    found |= draw(st.sets(st.sampled_from(sorted(alone))))
    return found if "shared" in found else found - {"shared_gate"}  # of a block that is not used otherwise


def built(layer, options, name):
    kind, *words = layer.split()
    known = settings(" ".join([*words, *options]))
    return build_layer(definition(kind), strategy(name), STANDARD, lambda block, place: definition(block), known)


@pytest.mark.slow
@run(max_examples=60)
@given(st.data(), st.sampled_from(LAYERS), st.sampled_from(STRATEGIES))
def test_every_layer_builds_under_every_strategy_and_has_the_weights_of_its_options(data, layer, name):
    options = data.draw(chosen(layer))
    made = built(layer, options, name)
    assert {option for option, is_set in made.options.items() if is_set} - OF_STRATEGIES == options
    found = derive(made)
    added = [PARTS[part] for part in parts(layer)]
    expected = sum(own + sum(more[words] for words in more if options >= {*words.split()}) for own, more in added)
    sizes = {letter: size for letter, size in SIZES.items() if letter not in found.definitions}
    assert sum(number(found, weight.bytes, **sizes) for weight in found.weights) == expected


@given(st.data(), st.sampled_from([layer for layer in LAYERS if exclusive(layer)]), st.sampled_from(STRATEGIES))
def test_two_options_that_exclude_each_other_are_refused(data, layer, name):
    over, group = data.draw(st.sampled_from(sorted(exclusive(layer).items())))
    both = data.draw(st.permutations(group))[:2]
    with pytest.raises(InputError, match=rf"exclude each other \({over}: one of {', '.join(group)}, or none\)"):
        built(layer, data.draw(chosen(layer)) | {*both}, name)


def test_what_a_strategy_sets_excludes_what_a_layer_sets():
    with pytest.raises(InputError, match=r"'ring' and 'exchange' exclude each other \(context:"):
        built("transformer", {"exchange"}, "2d-ring")
    assert {"ring", "exchange", "copied_kv", "gathered_qkv"} == OF_STRATEGIES
