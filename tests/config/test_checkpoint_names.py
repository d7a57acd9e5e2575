"""A name of the Hugging Face hub where a file is expected: how to get its model, and the packaged one of that name."""

import pytest

from dsx.config.search_path import find, find_path, hint_of_checkpoint, names, packaged_model
from dsx.errors import SpecError

MODELS = names("models", ".yaml")


@pytest.mark.parametrize(
    ("checkpoint", "model"),
    [
        ("Qwen3-32B", "qwen3-32b"),
        ("Llama-3.1-70B-Instruct", "llama-3-70b"),
        ("Meta-Llama-3-8B", "llama-3-8b"),
        ("Llama-2-13b-hf", "llama-2-13b"),
        ("DeepSeek-V3-0324", "deepseek-v3"),
        ("Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("Llama-4-Scout-17B-16E", "llama-4-scout"),
        ("GLM-4.5", "glm-4.5"),
        ("GLM-4.5-Air", "glm-4.5-air"),
        ("OLMo-2-0325-32B", "olmo-2-32b"),
        ("Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"),
        ("gemma-3-27b-it", "gemma-3-27b"),
        ("Qwen3-14B", None),
        ("Llama-3.2-1B", None),
    ],
)
def test_the_packaged_model_of_a_checkpoint(checkpoint, model):
    assert packaged_model(checkpoint, MODELS) == model


@pytest.mark.parametrize("name", ["Qwen/Qwen3-32B", "https://huggingface.co/Qwen/Qwen3-32B/tree/main"])
def test_what_to_do_with_a_checkpoint(name):
    hint = hint_of_checkpoint(name, MODELS)
    assert hint.startswith("; did you mean the packaged model 'qwen3-32b'?; dsx downloads no checkpoint: ")
    assert "'hf download Qwen/Qwen3-32B config.json --local-dir .'" in hint
    assert "'dsx import-hf config.json -o qwen3-32b.yaml'" in hint


@pytest.mark.parametrize("name", ["models/mine.yaml", "a/b/config.json", "/tmp/Qwen/Qwen3-32B", "./model", "../model"])
def test_a_path_is_no_checkpoint(name):
    assert hint_of_checkpoint(name, MODELS) == ""


def test_where_a_model_or_a_config_is_expected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"model 'Qwen/Qwen3-32B': .* is not a file; did you mean the packaged model"):
        find("models", "Qwen/Qwen3-32B", ".yaml")
    with pytest.raises(SpecError, match=r"config 'Qwen3-32B': .* is not a file; did you mean the packaged model"):
        find_path("config", "Qwen3-32B")
    with pytest.raises(SpecError, match=r"cluster 'Qwen/Qwen3-32B': Qwen/Qwen3-32B is not a file$"):
        find("clusters", "Qwen/Qwen3-32B", ".yaml")
    # A file of that folder with a similar name comes first.
    (tmp_path / "Qwen").mkdir()
    (tmp_path / "Qwen" / "Qwen3-32").write_text("")
    with pytest.raises(SpecError, match=r"is not a file; did you mean 'Qwen3-32'\?$"):
        find_path("config", "Qwen/Qwen3-32B")
