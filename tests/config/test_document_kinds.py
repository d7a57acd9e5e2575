"""A document of another kind is told by its keys; one of the wanted kind keeps the messages of its faults."""

from pathlib import Path

import pytest
from verbs.small import MODEL, SWEEP

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.cluster_file import ClusterSpec, load_cluster
from dsx.config.documents import load_document, merged, stated_in_code
from dsx.config.framework_file import FrameworkSpec
from dsx.config.load import statements
from dsx.config.model_file import ModelSpec, load_model
from dsx.config.schema import wrong_kind
from dsx.config.search_path import names
from dsx.config.stack import StackSpec
from dsx.config.sweep_file import SweepSpec
from dsx.errors import SpecError

SPECS = {
    "models": ModelSpec,
    "clusters": ClusterSpec,
    "assumptions": AssumptionsSpec,
    "frameworks": FrameworkSpec,
    "stacks": StackSpec,
}
SWEEPS = Path(__file__).parents[2] / "sweeps"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096}


def packaged(kind):
    """Some documents of a kind, whole."""
    if kind == "sweeps":
        return [load_document(file) for file in sorted(SWEEPS.glob("*.yaml"))[:3]]
    return [merged(statements(SPECS[kind], name)) for name in names(kind, ".yaml")[:3]]


@pytest.mark.parametrize("kind", [*SPECS, "sweeps"])
def test_packaged_documents_are_of_their_kind_and_of_no_other(kind):
    own = (SPECS | {"sweeps": SweepSpec})[kind]
    for document in packaged(kind):
        assert wrong_kind(document, own) == ""
        for other in {*SPECS.values(), SweepSpec} - {own}:
            assert ": is a" in wrong_kind(document, other)


@pytest.mark.parametrize("wanted", [*SPECS.values(), SweepSpec])
def test_a_config_of_hugging_face_is_told(wanted):
    said = wrong_kind(stated_in_code(CONFIG, "some/Qwen3 32B.json:1"), wanted)
    assert said.startswith("some/Qwen3 32B.json: is a config of Hugging Face, no ")
    assert "dsx import-hf 'some/Qwen3 32B.json' -o 'qwen3 32b.yaml' makes a model of it" in said
    assert "dsx import-hf config.json -o config.yaml" in wrong_kind(stated_in_code(CONFIG, "model"), wanted)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            {key: MODEL[key] for key in ("name", "source", "layers", "dimensions")},
            "default_sequence_length: is required",
        ),
        (MODEL | SWEEP, "num_gpus: unknown key"),
        (MODEL | CONFIG, "model_type: unknown key"),
        ({"name": "small"}, "dimensions: is required"),
        ({"name": "small", "price": "2 USD/h"}, "price: unknown key"),
    ],
)
def test_a_model_with_faults_keeps_their_messages(content, says):
    with pytest.raises(SpecError, match=f"model: {says}"):
        load_model(content)


def test_what_extends_another_kind_is_of_that_kind(tmp_path):
    file = tmp_path / "ours.yaml"
    file.write_text("extends: h100-nvs8\nname: ours\nprice: 2.5 USD/h\n")
    said = "ours.yaml: extends h100-nvs8, a cluster, so it is one too: give it to --cluster"
    for load in (load_model, load_assumptions):
        with pytest.raises(SpecError, match=said):
            load(file)
    assert wrong_kind(load_document(file), SweepSpec).endswith(said)
    assert load_cluster(file).price
    file.write_text("extends: h100-nvs9\nname: ours\n")
    with pytest.raises(SpecError, match="unknown model 'h100-nvs9'"):
        load_model(file)
