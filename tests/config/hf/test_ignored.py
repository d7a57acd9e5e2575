"""Keys that were not used: none is lost, and those that matter are told from those that do not."""

import pytest
from config.hf.configs import CONFIGS, NAMES, published, write

from dsx.config.hf_config import ignored_keys, load_config
from dsx.config.hf_family import load_family
from dsx.config.search_path import names

FAMILIES = names("families", ".yaml")


def test_three_groups(tmp_path):
    changes = {"attention_dropout": 0.0, "quantization_config": {"bits": 4}, "quantum_layers": 3}
    ignored = ignored_keys(load_config(write(tmp_path, "llama-3-8b", **changes)))
    assert ignored.unpriced == {"quantization_config": "weights in fewer bits; the assumption set states the precision"}
    assert ignored.unknown == {"quantum_layers": 3}
    assert ignored.no_cost["values that change nothing"] == ["architectures", "attention_dropout"]
    assert ignored.no_cost["initial values"] == ["initializer_range"]


def test_what_a_read_key_changes_beyond_that_is_listed_too(tmp_path):
    """Falcon's alibi takes the place of rotary positions, which is priced, and adds to each score, which is not."""
    assert ignored_keys(load_config(write(tmp_path, "falcon-7b", alibi=True))).unpriced.keys() == {"alibi"}
    assert "alibi" in ignored_keys(load_config(CONFIGS / "falcon-7b.json")).no_cost["values that change nothing"]


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


def test_what_matters_of_published_configs():
    matters = {name: set(ignored_keys(load_config(CONFIGS / f"{name}.json")).unpriced) for name in NAMES}
    assert matters["llama-3-8b"] == set()
    assert matters["deepseek-v3"] == {"num_nextn_predict_layers", "quantization_config"}
    assert matters["gemma-3-4b"] == {"vision_config", "mm_tokens_per_image"}


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
