"""Heads of classifiers and reward models, by the class that a config states; and classes whose head is not known."""

import pytest
from config.hf.configs import CONFIGS, write

from dsx.verbs.import_hf import import_hf

BASE = 8_030_261_248 - 128_256 * 4_096  # of Llama 3 8B without its head
TWO = {"id2label": {"0": "no", "1": "yes"}}


def test_a_reward_model_has_no_head_of_the_vocabulary():
    found = import_hf(CONFIGS / "reward-llama-3-8b.json")
    assert found.parameters == 7_504_928_768 == BASE + 4_096
    assert (found.model.sequence[-1].kind, found.published) == ("label-head", None)
    assert found.report[1] == "7,504,928,768 parameters, unchecked: no published total is known"


@pytest.mark.parametrize(
    ("task", "changes", "more"),
    [
        ("ForSequenceClassification", {}, 2 * 4_096),  # PretrainedConfig: two labels where none are stated
        ("ForSequenceClassification", {"num_labels": 5}, 5 * 4_096),
        ("ForSequenceClassification", TWO | {"tie_word_embeddings": True}, 2 * 4_096),
        ("ForTokenClassification", {"num_labels": 9}, 9 * 4_096 + 9),
        ("ForQuestionAnswering", {}, 2 * 4_096 + 2),
    ],
)
def test_what_the_class_of_a_model_puts_in_the_place_of_its_head(tmp_path, task, changes, more):
    found = import_hf(write(tmp_path, "llama-3-8b", architectures=[f"Llama{task}"], **changes))
    assert found.parameters == BASE + more
    assert "tied" not in found.model.sequence[-1].options
    assert found.ignored.unpriced == {}


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox-20b", "falcon-7b", "deepseek-v3", "mamba2-2.7b", "nemotron-h-8b"])
def test_every_family_has_heads_of_labels(tmp_path, name):
    found = import_hf(write(tmp_path, name, architectures=["SomeForSequenceClassification"], num_labels=3))
    (last, before) = (found.model.sequence[-1], import_hf(CONFIGS / f"{name}.json").model.sequence[-1])
    assert last.kind == "label-head"
    assert {*last.options} == {*before.options} - {"tied"}
    assert found.model.dimensions["classes"] == 3


def test_a_section_may_leave_the_class_and_the_labels_to_the_whole_config(tmp_path):
    changes = {"architectures": ["Gemma3ForSequenceClassification"], "id2label": {"0": "score"}}
    assert import_hf(write(tmp_path, "gemma-3-4b", **changes)).model.dimensions["classes"] == 1


@pytest.mark.parametrize("name", ["Qwen2ForRewardModel", "LlamaModel"])
def test_a_head_that_is_not_known_is_named(tmp_path, name):
    found = import_hf(write(tmp_path, "llama-3-8b", architectures=[name]))
    assert found.ignored.unpriced.keys() == {"architectures"}
    assert found.parameters == 8_030_261_248
