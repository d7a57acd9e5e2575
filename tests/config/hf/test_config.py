"""Reading a config.json: spellings, defaults and sections, and faults with their line and key."""

import json

import pytest
from config.hf.configs import published, write

from dsx.config.hf_config import load_config
from dsx.errors import SpecError, UnknownNameError


def fault(file) -> str:
    with pytest.raises((SpecError, UnknownNameError)) as caught:
        load_config(file)
    return str(caught.value)


def test_defaults_other_spellings_and_layouts(tmp_path):
    absent = ("num_key_value_heads", "tie_word_embeddings")
    values = load_config(write(tmp_path, "llama-3-8b", absent, head_dim=None)).values
    assert values["num_key_value_heads"] == values["num_attention_heads"] == 32
    assert values["head_dim"] == 128
    assert values["tie_word_embeddings"] is False
    assert load_config(write(tmp_path, "gpt2", n_inner=None)).values["n_inner"] == 4 * 768
    assert load_config(write(tmp_path, "qwen3-8b", ("head_dim",), num_attention_heads=16)).values["head_dim"] == 128
    # A byte order mark is passed over.
    file = write(tmp_path, "llama-3-8b")
    file.write_text(file.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert load_config(file).model_type == "llama"
    # Other spellings.
    renamed = write(tmp_path, "qwen3-30b-a3b", ("num_experts",), num_local_experts=64)
    assert load_config(renamed).values["num_experts"] == 64
    old = {"n_embed": 8192, "n_layer": 60, "n_head": 128, "n_head_kv": 8}
    new = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_kv_heads")
    values = load_config(write(tmp_path, "falcon-40b", new, **old)).values
    assert [values[key] for key in new] == [8192, 60, 128, 8]
    # Length before positions were stretched.
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    for key in ("rope_scaling", "rope_parameters"):
        file = write(tmp_path, "llama-3-8b", ("rope_scaling",), **{key: stretched})
        assert load_config(file).values["original_max_position_embeddings"] == 4096
    # Tabs and one line are json too.
    file = tmp_path / "config.json"
    for text in (json.dumps(published("gpt2"), indent="\t"), json.dumps(published("gpt2"), separators=(",", ":"))):
        file.write_text(text)
        assert load_config(file).values["n_embd"] == 768


@pytest.mark.parametrize(("name", "key"), [("llama-3-8b", "model_type"), ("qwen3-vl-30b-a3b", "text_config")])
def test_a_null_key_is_not_its_own_nearest(tmp_path, name, key):
    assert "did you mean" not in fault(write(tmp_path, name, **{key: None}))


def test_faults_name_key_and_line_and_come_together(tmp_path):
    file = write(tmp_path, "llama-3-8b", ("hidden_size", "vocab_size"), hiden_size=4096, num_hidden_layers="32")
    lines = fault(file).splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("config.json:1: hidden_size: is required, but missing; did you mean 'hiden_size'?")
    number = next(i for i, line in enumerate(file.read_text().splitlines(), 1) if '"num_hidden_layers"' in line)
    assert lines[1].endswith(f"config.json:{number}: num_hidden_layers: expected a whole number from 1, got '32'")
    assert "vocab_size: is required" in lines[2]


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        ("llama-3-8b", {"num_attention_heads": 0}, "num_attention_heads: expected a whole number from 1, got 0"),
        ("llama-3-8b", {"hidden_size": 4096.5}, "hidden_size: expected a whole number from 1, got 4096.5"),
        ("llama-3-8b", {"hidden_size": True}, "hidden_size: expected a whole number from 1, got True"),
        ("llama-3-8b", {"vocab_size": 10**12}, "vocab_size: expected a whole number from 1"),
        ("llama-3-8b", {"vocab_size": float("inf")}, "vocab_size: expected a whole number from 1"),
        ("llama-3-8b", {"tie_word_embeddings": "no"}, "tie_word_embeddings: expected true or false, got 'no'"),
        ("llama-3-8b", {"rope_scaling": "yarn"}, "rope_scaling: expected an object, got 'yarn'"),
        ("gpt-oss-20b", {"layer_types": "full"}, "layer_types: expected a list, got 'full'"),
        (
            "llama-3-8b",
            {"num_attention_heads": 33},
            "head_dim: is missing, and its default cannot be computed: hidden_size",
        ),
        (
            "gpt-oss-20b",
            {"experts_per_token": 8},
            "experts_per_token: is 8, but num_experts_per_tok, another name for it",
        ),
        ("gemma-3-4b", {"text_config": None}, "text_config: is missing"),
        ("gemma-3-4b", {"text_config": {"hidden_size": 0}}, "text_config.hidden_size: expected a whole number from 1"),
        ("llama-3-8b", {"model_type": None}, "model_type: is required, but missing"),
        ("llama-3-8b", {"model_type": "qwen3moe"}, "unknown model_type 'qwen3moe'; did you mean 'qwen3_moe'?"),
        ("llama-3-8b", {"model_type": "shared/decoder"}, "unknown model_type 'shared/decoder'"),
        ("llama-3-8b", {"model_type": 7}, "unknown model_type '7'"),
    ],
)
def test_keys_that_cannot_be_read(tmp_path, base, changes, says):
    message = fault(write(tmp_path, base, **changes))
    assert says in message
    assert "config.json:" in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "config.json:1:1: is not JSON"),
        ("[1]", "expected an object with keys"),
        ('{"model_type": "gpt2",}', "config.json:1:2"),
        ("model_type: gpt2", "is not JSON"),
        ('{"model_type": "gpt2", "n_embd": 1, "n_embd": 2}', "the key 'n_embd' is given twice"),
        ('{"d_model": 2560, "n_layer": 64}', "model_type: is required, but missing"),
        ("[" * 100_000, "nested too deeply"),
        ("\xff", "is not UTF-8 text"),
    ],
)
def test_what_is_no_config(tmp_path, text, says):
    file = tmp_path / "config.json"
    file.write_text(text, encoding="latin-1")
    assert says in fault(file)
