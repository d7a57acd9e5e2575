"""Keys that are ignored, and heads that label."""

import pytest
from config.hf.configs import CONFIGS, NAMES, published, write

from dsx.config.hf_config import ignored_keys, load_config
from dsx.config.hf_family import load_family
from dsx.config.search_path import names
from dsx.verbs.import_hf import import_hf

FAMILIES = names("families", ".yaml")


def test_three_groups(tmp_path):
    changes = {"attention_dropout": 0.0, "quantization_config": {"bits": 4}, "quantum_layers": 3}
    ignored = ignored_keys(load_config(write(tmp_path, "llama-3-8b", **changes)))
    assert ignored.unpriced == {"quantization_config": "weights in fewer bits; the assumption set states the precision"}
    assert ignored.unknown == {"quantum_layers": 3}
    assert ignored.no_cost["values that change nothing"] == ["architectures", "attention_dropout"]
    assert ignored.no_cost["initial values"] == ["initializer_range"]
    # Falcon's alibi takes the place of rotary positions, which is priced, and adds to each score, which is not.
    assert ignored_keys(load_config(write(tmp_path, "falcon-7b", alibi=True))).unpriced.keys() == {"alibi"}
    assert "alibi" in ignored_keys(load_config(CONFIGS / "falcon-7b.json")).no_cost["values that change nothing"]
    # What matters of published configs.
    matters = {name: set(ignored_keys(load_config(CONFIGS / f"{name}.json")).unpriced) for name in NAMES}
    assert matters["llama-3-8b"] == set()
    assert matters["deepseek-v3"] == {"num_nextn_predict_layers", "quantization_config"}
    assert matters["gemma-3-4b"] == {"vision_config", "mm_tokens_per_image"}


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_read_or_listed(name):
    config = load_config(CONFIGS / f"{name}.json")
    ignored = ignored_keys(config)
    listed = {*ignored.unpriced, *ignored.unknown, *(key for keys in ignored.no_cost.values() for key in keys)}
    data = published(name)
    section = next(iter(config.section), None)
    given = {*data} - {section} | ({f"{section}.{key}" for key in data[section]} if section else set())
    priced = {key: spec for key, spec in config.family.keys.items() if key not in config.family.unpriced}
    read = {spelt for key, spec in priced.items() for spelt in (key, *spec.also)}
    read |= {f"{section}.{key}" for key in read} if section else set()  # the whole config states what a section lacks
    assert {key for key in given - read if not key.endswith("model_type")} == listed
    assert ignored.unknown == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_loses_a_topic_that_it_shares(family):
    topics = load_family(family).no_cost
    known = {key for keys in topics.values() for key in keys}
    assert {"label2id", "torch_dtype", "use_cache", "hidden_act", "initializer_range", "rms_norm_eps"} <= known
    assert {"pretraining_tp", "rope_theta", "eos_token_id", "transformers_version"} <= known


@pytest.mark.parametrize("family", FAMILIES)
def test_no_key_is_in_two_groups(family):
    spec = load_family(family)
    listed = [key for keys in spec.no_cost.values() for key in keys] + [*spec.unpriced]
    assert len(listed) == len(set(listed))


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
