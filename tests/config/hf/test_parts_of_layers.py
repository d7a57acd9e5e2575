"""Biases, norms and windows that a config states: they are in its layers, and their weights are counted."""

import pytest
from config.hf.configs import CONFIGS, write

from dsx.config.assumption_set import load_assumptions
from dsx.config.hf_config import load_config, to_model
from dsx.config.model_file import ModelSpec
from dsx.notation.expressions import evaluate
from dsx.notation.model import build_model, parameters, unsharded
from dsx.notation.work import FORWARD

DEFAULT = load_assumptions("default")
ATTENTION = {"qkv_bias", "out_bias"}
FEED_FORWARD = {"ff_bias", "ff_out_bias"}


def model(file) -> ModelSpec:
    return to_model(load_config(file), "tried", "a test")


def body(spec: ModelSpec) -> list:
    return [entry.layer for entry in spec.sequence[1:-1] for _ in range(entry.count)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama-3-8b", "rotary gated"),
        ("mistral-7b", "rotary gated window"),
        ("phi-3-mini", "rotary gated window"),
        ("qwen2-7b", "rotary gated qkv_bias"),
        ("qwen3-8b", "rotary gated qk_norm"),
        ("mixtral-8x7b", "rotary"),
        ("qwen3-30b-a3b", "rotary qk_norm"),
        ("gpt2", "layernorm qkv_bias out_bias ff_bias ff_out_bias dropout residual_dropout"),
        ("gpt-neox-20b", "layernorm rotary qkv_bias out_bias ff_bias ff_out_bias"),
        ("falcon-7b", "layernorm one_norm rotary"),
        ("falcon-40b", "layernorm rotary"),
        ("vit-l-16", "layernorm qkv_bias out_bias ff_bias ff_out_bias full"),
        ("mamba2-2.7b", "conv_bias gate_norm"),
        ("olmo-2-32b", "rotary gated post_norm joint_qk_norm"),
    ],
)
def test_what_the_layers_of_a_published_config_have(name, options):
    assert {layer.options for layer in body(model(CONFIGS / f"{name}.json"))} == {frozenset(options.split())}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gemma-2-9b", "sandwich rotary gated"),
        ("gemma-3-1b", "sandwich rotary gated qk_norm"),
        ("gpt-oss-20b", "rotary qkv_bias out_bias expert_bias sinks"),
    ],
)
def test_layers_with_a_window_have_all_else_that_the_others_have(name, options):
    found = {layer.options for layer in body(model(CONFIGS / f"{name}.json"))}
    assert found == {frozenset(options.split()), frozenset([*options.split(), "window"])}


@pytest.mark.parametrize(
    ("base", "changes", "options", "weights"),
    [
        ("llama-3-8b", {"attention_bias": True}, ATTENTION, (32 + 2 * 8) * 128 + 4096),
        ("llama-3-8b", {"mlp_bias": True}, FEED_FORWARD, 2 * 14336 + 4096),
        ("phi-3-mini", {"attention_bias": True}, ATTENTION, 3 * 3072 + 3072),
        ("qwen3-8b", {"attention_bias": True}, ATTENTION, (32 + 2 * 8) * 128 + 4096),
        ("qwen3-30b-a3b", {"attention_bias": True}, ATTENTION, (32 + 2 * 4) * 128 + 2048),
        ("gemma-2-9b", {"attention_bias": True}, ATTENTION, (16 + 2 * 8) * 256 + 3584),
        ("gemma-3-1b", {"attention_bias": True}, ATTENTION, (4 + 2 * 1) * 256 + 1152),
        ("gpt-oss-20b", {"attention_bias": False}, ATTENTION, -((64 + 2 * 8) * 64 + 2880)),
        ("gpt-neox-20b", {"attention_bias": False}, ATTENTION, -(3 * 6144 + 6144)),
        ("falcon-7b", {"bias": True}, ATTENTION | FEED_FORWARD, (71 + 2 * 1) * 64 + 4544 + 4 * 4544 + 4544),
        ("falcon-40b", {"num_ln_in_parallel_attn": 1}, {"one_norm"}, -2 * 8192),
        ("vit-l-16", {"qkv_bias": False}, {"qkv_bias"}, -3 * 1024),
        ("olmo-2-32b", {"attention_bias": True}, ATTENTION, (40 + 2 * 8) * 128 + 5120),
        ("llama-4-maverick", {"attention_bias": True}, ATTENTION, (40 + 2 * 8) * 128 + 5120),
        ("glm-4.5", {"attention_bias": False}, {"qkv_bias"}, -(96 + 2 * 8) * 128),
        ("glm-4.5", {"use_qk_norm": False}, {"qk_norm"}, -2 * 128),
        # x and z of width 2 e, B and C of one group and a step for each of 80 heads; the convolution is of x, B and C.
        ("mamba2-2.7b", {"use_bias": True}, {"in_bias", "result_bias"}, 4 * 2560 + 2 * 128 + 80 + 2560),
        ("mamba2-2.7b", {"use_conv_bias": False}, {"conv_bias"}, -(2 * 2560 + 2 * 128)),
        ("mamba2-2.7b", {"rms_norm": False}, {"gate_norm"}, -2 * 2560),
        ("deepseek-v3", {"attention_bias": True}, ATTENTION, 1536 + 512 + 64 + 7168),
        ("mixtral-8x7b", {"sliding_window": 4096}, {"window"}, 0),
        ("mistral-7b", {"sliding_window": None}, {"window"}, 0),
        ("phi-3-mini", {"sliding_window": None}, {"window"}, 0),
    ],
)
def test_what_a_key_of_a_config_changes(tmp_path, base, changes, options, weights):
    """In every layer of the body: its options, and its parameters as they are counted by hand."""
    before, after = model(CONFIGS / f"{base}.json"), model(write(tmp_path, base, **changes))
    pairs = list(zip(body(before), body(after), strict=True))
    assert {one.options ^ other.options for one, other in pairs} == {frozenset(options)}
    assert [one.blocks for one, _ in pairs] == [other.blocks for _, other in pairs]
    count = [parameters(build_model(spec, DEFAULT, "2d")) for spec in (before, after)]
    assert count[1] - count[0] == len(pairs) * weights


def scores(spec: ModelSpec) -> float:
    """Return the forward FLOPs of attention proper in one layer and one sequence."""
    built = build_model(spec, DEFAULT, "2d")
    (layer,) = (layer for layer, _ in built.body)
    values = unsharded(layer, built.dimensions, spec.default_sequence_length)
    (kernel,) = (kernel for kernel in layer.kernels if kernel.name == "self-attention.attention")
    return evaluate(kernel.work[FORWARD].matrix, values)


@pytest.mark.parametrize(("window", "share"), [(1024, 1024 * (2 * 4096 - 1024) / 4096**2), (4096, 1), (8192, 1)])
def test_a_stated_window_is_what_attention_works_on(tmp_path, window, share):
    """Of sequences of 4,096: s w - w^2 / 2 pairs of positions in the place of s^2 / 2."""
    windowed = model(write(tmp_path, "mixtral-8x7b", sliding_window=window))
    assert scores(windowed) == share * scores(model(CONFIGS / "mixtral-8x7b.json"))


def test_no_shared_expert_and_alibi(tmp_path):
    before = model(CONFIGS / "deepseek-v3.json")
    after = model(write(tmp_path, "deepseek-v3", n_shared_experts=0))
    assert [one.options - other.options for one, other in zip(body(before), body(after), strict=True)] == [
        *3 * [frozenset()],
        *58 * [frozenset({"shared"})],
    ]
    assert "fs" not in after.dimensions
    count = [parameters(build_model(spec, DEFAULT, "2d")) for spec in (before, after)]
    assert count[0] - count[1] == 58 * 3 * 7168 * 2048
    # Alibi takes the place of rotary positions.
    (layer,) = set(body(model(write(tmp_path, "falcon-7b", alibi=True))))
    assert layer.options == {"layernorm", "one_norm"}


@pytest.mark.parametrize(
    ("base", "key", "options", "norms"),
    [
        ("gpt-neox-20b", "use_parallel_residual", "layernorm rotary qkv_bias out_bias ff_bias ff_out_bias", 0),
        ("falcon-7b", "parallel_attn", "layernorm rotary", 1),
    ],
)
def test_layers_whose_halves_follow_each_other(tmp_path, base, key, options, norms):
    """With norms of their own, which a parallel layer may share, and all else that a parallel one has."""
    side_by_side, in_turn = model(CONFIGS / f"{base}.json"), model(write(tmp_path, base, **{key: False}))
    assert {layer.kind for layer in body(side_by_side)} == {"parallel-layer"}
    assert {(layer.kind, layer.options) for layer in body(in_turn)} == {("transformer", frozenset(options.split()))}
    count = [parameters(build_model(spec, DEFAULT, "2d")) for spec in (side_by_side, in_turn)]
    assert count[1] - count[0] == len(body(in_turn)) * norms * 2 * in_turn.dimensions["e"]


@pytest.mark.parametrize("base", ["gpt-neox-20b", "falcon-7b", "llama-3-8b", "deepseek-v3", "mamba2-2.7b", "gpt2"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_head(tmp_path, base, tied):
    spec = model(write(tmp_path, base, tie_word_embeddings=tied))
    assert ("tied" in spec.sequence[-1].options) is tied


@pytest.mark.parametrize(
    ("changes", "without", "limits"),
    [
        ({}, (), (8, 4)),
        ({}, ("n_group", "topk_group"), (8, 4)),  # the defaults of DeepseekV3Config
        ({"n_group": 1, "topk_group": 1}, (), (None, None)),
        ({"topk_group": 8}, (), (None, None)),
    ],
)
def test_groups_that_limit_the_choices_of_a_token(tmp_path, changes, without, limits):
    spec = model(write(tmp_path, "deepseek-v3", without, **changes))
    assert (spec.dimensions.get("ng"), spec.dimensions.get("tg")) == limits
    assert ["limited" in layer.options for layer in body(spec)] == [False] * 3 + [limits != (None, None)] * 58
