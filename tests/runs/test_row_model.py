"""The model of a row by its dimensions, and the FLOPs of its tokens beside published active parameters."""

import pytest

from dsx.config.model_file import load_model
from dsx.runs.row_job import token_flops


def layers(setup):
    return [(str(entry.layer), entry.count) for entry in setup.model.layers]


def test_layer_kinds_follow_from_the_columns(made):
    plain, grouped, gated, experts = made(
        {"gated_mlp": "0"}, {"gated_mlp": "0", "kv_heads": "8"}, {}, {"experts": "8", "topk": "2"}
    )
    kinds = [[kind for kind, _ in layers(setup)] for setup in (plain, grouped, gated, experts)]
    with_biases = "transformer[dropout ff_bias ff_out_bias layernorm out_bias qkv_bias residual_dropout]"
    assert kinds == [
        ["embedding[learned_positions]", with_biases, "head[layernorm tied]"],
        ["embedding", "transformer[layernorm rotary squared_relu]", "head[layernorm]"],
        ["embedding", "transformer[gated rotary]", "head"],
        ["embedding", "transformer[rotary ffn=experts]", "head"],
    ]
    assert plain.model.dimensions["positions"] == 2048
    assert [experts.model.dimensions[letter] for letter in ("x", "fx", "topk")] == [8, 11008, 2]


def test_names_entries_and_masks_of_rows(made):
    first, again, other = made({}, {"tp": "1", "dp": "8", "sp": "0"}, {"layers": "30"})
    assert first.model == again.model
    assert first.model.name != other.model.name
    # As many layers as a cell holds are one entry.
    (setup,) = made({"layers": str(2**31 - 1)})
    assert layers(setup) == [("embedding", 1), ("transformer[gated rotary]", 2**31 - 1), ("head", 1)]
    # Attention is not masked and has the head dimensions of its text.
    # Scores over 128 + 64 dimensions per head, values over 128.
    once = token_flops(load_model("deepseek-v3"), 4096)
    assert once.attention == pytest.approx(61 * 2 * 128 * (192 + 128) * 4096)
    assert token_flops(load_model("deepseek-v3"), 8192).attention == pytest.approx(2 * once.attention)


MODEL = """name: latent
source: made up
default_sequence_length: 2048
dimensions: {e: 512, h: 8, g: 8, k: 96, f: 2048, fe: 256, x: 16, topk: 4, v: 1000}
layers:
  - {kind: embedding, count: 1}
  - {kind: transformer, options: [rotary, gated], count: 2}
  - repeat: 2
    layers:
      - {kind: transformer, count: 3}
      - {kind: transformer, options: [full]}
  - {kind: head, options: [tied]}
"""


@pytest.mark.parametrize(
    ("number", "counts"),
    [
        (10, [("[gated rotary]", 2), ("", 3), ("[full]", 1), ("", 3), ("[full]", 1)]),
        (3, [("[gated rotary]", 2), ("", 1)]),
        (7, [("[gated rotary]", 1), ("", 2), ("[full]", 1), ("", 2), ("[full]", 1)]),  # in proportion
        (15, [("[gated rotary]", 2), ("", 8), ("[full]", 1), ("", 3), ("[full]", 1)]),  # the commonest fills up
    ],
)
def test_what_columns_do_not_say_is_taken_from_the_model_with_these_dimensions(
    made, tmp_path, monkeypatch, number, counts
):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "latent.yaml").write_text(MODEL)
    monkeypatch.setenv("DSX_PATH", str(tmp_path))
    sizes = {"hidden": "512", "heads": "8", "kv_heads": "8", "ffn_hidden": "256", "experts": "16", "topk": "4"}
    setup, other = made(sizes | {"layers": str(number)}, sizes | {"topk": "2"})
    body = [(f"transformer{settings}", count) for settings, count in counts]
    assert layers(setup) == [("embedding", 1), *body, ("head[tied]", 1)]
    assert (setup.model.dimensions["k"], setup.model.dimensions["v"]) == (96, 32000)
    assert layers(other)[1][0] == "transformer[rotary ffn=experts]"


def test_packaged_models_stand_for_what_columns_do_not_say(made):
    experts = {"head_dim": "", "vocab": "151936", "tp": "1", "sp": "0", "dp": "8"}
    latent, queries = made(
        experts
        | {"layers": "61", "hidden": "7168", "heads": "128", "kv_heads": "128", "ffn_hidden": "2048"}
        | {"experts": "256", "topk": "8"},
        experts
        | {"layers": "48", "hidden": "2048", "heads": "32", "kv_heads": "4", "ffn_hidden": "768"}
        | {"experts": "128", "topk": "8"},
    )
    assert layers(latent) == [
        ("embedding", 1),
        ("transformer[gated attention=latent-attention]", 3),
        ("transformer[corrected limited shared attention=latent-attention ffn=experts]", 58),
        ("head", 1),
    ]
    assert queries.model.dimensions["k"] == 128


PUBLISHED = {"deepseek-v3": 37e9, "mixtral-8x7b": 12.9e9, "qwen3-30b-a3b": 3.3e9, "kimi-k2": 32e9, "gpt3-175b": 175e9}


@pytest.mark.parametrize(("name", "active"), PUBLISHED.items())
def test_active_parameters_are_those_published(name, active):
    spec = load_model(name)
    once = token_flops(spec, 4096)
    # An embedding is looked up, not multiplied; some count it all the same. Published numbers are rounded.
    embedding = spec.dimensions["v"] * spec.dimensions["e"]
    assert 0.98 * (active - embedding) < (once.layers + once.head) / 2 < 1.02 * active
