"""Names of what there is, and the document of public names."""

import re
from pathlib import Path

import numpy as np
import pytest
from config.hf.configs import CONFIGS
from verbs.small import MODEL

import dsx
from dsx.errors import InputError, UnknownNameError


def test_names_parameters_and_imported_models():
    assert "llama-3-8b" in dsx.names("models") and "h100-nvs8" in dsx.names("clusters")
    with pytest.raises(UnknownNameError, match=r"unknown kind of names 'model'; did you mean 'models'\?"):
        dsx.names("model")
    # Parameters are those of the layers.
    assert dsx.parameters("llama-3-8b") == 8_030_261_248
    wider = {"extends": "llama-3-8b", "dimensions": {"f": 2 * 14336}}
    assert dsx.parameters(wider) - dsx.parameters("llama-3-8b") == 32 * 3 * 4096 * 14336
    deeper = {"extends": MODEL, "layers": [{"kind": "transformer", "count": 24}]}
    of_paper = "paper-2410.00273"
    assert dsx.parameters(deeper, of_paper) == 3 * dsx.parameters(MODEL, of_paper) > 24 * 12 * 1024**2
    # An imported model is a model of a job.
    imported = dsx.import_hf(CONFIGS / "llama-3-8b.json")
    job = dsx.Job(imported.model, "h100-nvs8", num_gpus=8, global_batch_size=8)
    assert job.model.dimensions["e"] == 4096 and imported.out is None
    assert imported.parameters == dsx.parameters(imported.model) == 8_030_261_248


def test_layer_texts_lie_beside_the_model(tmp_path):
    (tmp_path / "own.layer").write_text("layer own\ninput x[b, s, e]\nweight g[e]\noutput[b, s, e] = norm(x, g)\n")
    (tmp_path / "own.yaml").write_text(
        "name: own\nsource: made up\ndefault_sequence_length: 8\ndimensions: {e: 16}\nlayers: [{kind: own, count: 3}]\n"
    )
    assert dsx.parameters(tmp_path / "own.yaml") == 3 * 16


@pytest.mark.parametrize("sizes", [{"tp": 8}, {"tp": np.int64(8)}, ["tp=8"], "tp=8"])
def test_sizes_of_a_layer_are_a_mapping_or_texts(sizes):
    described = dsx.layer("transformer", "gated", model="llama-3-8b", sizes=sizes)
    assert described == dsx.layer("transformer", "gated", model="llama-3-8b", sizes={"tp": 8})


def test_settings_of_a_layer():
    settings = ("rotary", "shared", "ffn=experts")
    described = dsx.layer("transformer", *settings)
    data = described.to_data()
    assert {name for name, is_set in data["options"].items() if is_set} == {"rotary", "shared"}
    assert {"layernorm", "corrected", "qk_norm"} < data["options"].keys()
    assert "gated" not in data["options"]  # of the block that is not used then
    assert data["blocks"] == {"attention": "self-attention", "ffn": "experts", "core": "attention-core"}
    lines = str(described).splitlines()
    assert lines[0].startswith(f"{data['layer']} under 1d; axes: ")
    assert lines[0].startswith("transformer[rotary shared ffn=experts]")
    assert sorted(lines[1].removeprefix("options set: ").split(", ")) == ["rotary", "shared"]
    assert lines[3] == "block parameters: attention = self-attention, ffn = experts, core = attention-core"
    # It says who holds the same experts.
    lines = [line.strip() for line in str(dsx.layer("transformer", *settings, strategy="2d")).splitlines()]
    (held,) = [line for line in lines if line.startswith("experts.wup:")]
    assert held.endswith("bytes; dp, tp, cp; one rank in ep has the same part")
    assert not any("not divided over" in line and line.startswith("experts.") for line in lines)
    # With and without numbers.
    formulas, numbers = dsx.layer("feed-forward"), dsx.layer("feed-forward", model="gpt3-1t", sizes={"tp": 8})
    assert formulas.to_data().keys() == numbers.to_data().keys()
    assert formulas.to_data()["saved_bytes"]["value"] is None and numbers.to_data()["saved_bytes"]["value"] > 0
    people = str(dsx.layer("feed-forward", sizes={"tp": 8}))
    assert "z[b, s, f/tp] = einsum" in people and "heads_not_divisible: h % tp == 0" in people


OWN = {"extends": "default", "name": "mine", "set": {"core": "unfused-attention-core", "rotary": True, "shared": True}}


@pytest.mark.parametrize(
    ("settings", "asked", "name", "options"),
    [
        ((), {}, "transformer", set()),
        ((), {"model": "llama-3-8b"}, "transformer[gated rotary]", {"gated", "rotary"}),
        (("full",), {"model": "llama-3-8b"}, "transformer[full]", {"full"}),
        ((), {"strategy": "2d-ring"}, "transformer", {"ring"}),
        (("gated",), {"assumptions": OWN}, "transformer[gated]", {"gated", "rotary"}),
    ],
)
def test_a_layer_is_as_a_model_or_a_set_has_it(settings, asked, name, options):
    data = dsx.layer("transformer", *settings, **asked).to_data()
    assert (data["layer"], {option for option, is_set in data["options"].items() if is_set}) == (name, options)
    assert data["blocks"]["core"] == ("unfused-attention-core" if "assumptions" in asked else "attention-core")


@pytest.mark.slow
def test_layers_and_clusters_are_found_or_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown layer 'transformr'; did you mean 'transformer'"):
        dsx.layer("transformr")
    with pytest.raises(InputError, match="tp=x: tp must be a whole number"):
        dsx.layer("transformer", sizes={"tp": "x"})
    # A cluster may be content.
    wide = {"extends": "h100-nvs8", "name": "wide", "network": {"nvs": {"size": 16}}}
    times = dsx.cluster_times(wide, set={"assumptions.nvs_efficiency": 0.5})
    assert times.name == "wide" and times.network.nvs.size == 16
    times.plot(tmp_path / "times.png")
    assert (tmp_path / "times.png").stat().st_size > 5_000
    tree = {"kind": "fat_tree", "levels": [{"name": "leaf", "units": 4, "oversubscription": 4}, {"name": "spine"}]}
    tiers = dsx.cluster_times("h100-nvs8", set={"cluster.network.topology": tree}).to_data()["tiers"]
    assert {tier["name"]: tier["oversubscription"] for tier in tiers} == {"nvs": 1.0, "leaf": 1.0, "spine": 4.0}
    data = dsx.cluster_times("h100-nvs8", assumptions="paper-2410.00273").to_data()
    assert data["assumptions"] == "paper-2410.00273"
    assert [(tier["name"], tier["size"]) for tier in data["tiers"]] == [("nvs", 8), ("net", None)]
    seconds = {(time["kind"], time["num_gpus"], time["bytes"]): time["time_s"] for time in data["collectives"]}
    assert len(seconds) == 2 * 7 * 4
    # A ring of eight at 0.7 of 450 GB/s, twice around.
    ring = 2 * (7 * 2.5e-6 + 7 / 8 * 1e9 / (0.7 * 450e9))
    assert seconds["all-reduce", 8, 1e9] == pytest.approx(ring, rel=1e-12)
    with pytest.raises(InputError, match="clusters show reads no model"):
        dsx.cluster_times(wide, set={"model.dimensions.e": 8})


DOCUMENT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### (.*)$", DOCUMENT.replace("\\", ""), re.MULTILINE)


@pytest.fixture(scope="module")
def script(benchmark_script):
    return benchmark_script("reference")


def test_the_document_has_one_entry_of_every_public_name(script):
    written = DOCUMENT.partition("<!-- benchmarks/reference.py -->\n")[2].partition("\n\n<!-- end -->")[0]
    assert written == script.text(), "run: python benchmarks/reference.py --write docs/api.md"
    # Every public name has one entry.
    names = [heading.removeprefix("dsx.").removesuffix("()") for heading in HEADINGS]
    assert len(names) == len(set(names))
    assert {*names} - {*script.NOT_IN_DSX} == {*dsx.__all__}
    # Every entry says something.
    entries = re.split(r"^#{3,4} ", DOCUMENT, flags=re.MULTILINE)[1:]
    for entry in entries:
        prose = re.sub(r"^```.*?^```$", "", entry, flags=re.MULTILINE | re.DOTALL).split("\n", 1)[1]
        assert len(prose.split()) >= 4, entry


def test_every_word_of_a_signature_is_explained(script):
    """A type is of Python, NumPy or pandas, has an entry, or is in the list of words."""
    signatures = "\n".join(
        re.findall(r"^```python\n(?:dsx)?\.[a-zA-Z_.]+\(.*?^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    )
    types = {*re.findall(r"(?<![\"\w.])[A-Z]\w+", re.sub(r"\"[^\"]*\"", "", signatures))}
    known = {
        "Callable", "Literal", "Any", "Mapping", "Sequence", "Iterable", "Path", "None", "False", "True", "DataFrame",
        "Axes",
    }  # fmt: skip
    assert {*script.TYPES} - {"Counts", "Flag", "Row"} <= types
    assert types - known - {*HEADINGS} == {*script.TYPES} - {"Counts", "Flag"}
