"""Names, counts of parameters, models of checkpoints, layers and clusters, asked in Python."""

import numpy as np
import pytest
from config.hf.configs import CONFIGS
from verbs.small import MODEL

import dsx
from dsx.errors import InputError, UnknownNameError


def test_names_are_listed_by_kind():
    assert "llama-3-8b" in dsx.names("models") and "h100-nvs8" in dsx.names("clusters")
    with pytest.raises(UnknownNameError, match=r"unknown kind of names 'model'; did you mean 'models'\?"):
        dsx.names("model")


def test_parameters_are_those_of_the_layers():
    assert dsx.parameters("llama-3-8b") == 8_030_261_248
    wider = {"extends": "llama-3-8b", "dimensions": {"f": 2 * 14336}}
    assert dsx.parameters(wider) - dsx.parameters("llama-3-8b") == 32 * 3 * 4096 * 14336
    deeper = {"extends": MODEL, "layers": [{"kind": "transformer", "count": 24}]}
    of_paper = "paper-2410.00273"
    assert dsx.parameters(deeper, of_paper) == 3 * dsx.parameters(MODEL, of_paper) > 24 * 12 * 1024**2


def test_layer_texts_lie_beside_the_model(tmp_path):
    (tmp_path / "own.layer").write_text("layer own\ninput x[b, s, e]\nweight g[e]\noutput[b, s, e] = norm(x, g)\n")
    (tmp_path / "own.yaml").write_text(
        "name: own\nsource: made up\ndefault_sequence_length: 8\ndimensions: {e: 16}\nlayers: [{kind: own, count: 3}]\n"
    )
    assert dsx.parameters(tmp_path / "own.yaml") == 3 * 16


def test_an_imported_model_is_a_model_of_a_job():
    imported = dsx.import_hf(CONFIGS / "llama-3-8b.json")
    job = dsx.Job(imported.model, "h100-nvs8", num_gpus=8, global_batch_size=8)
    assert job.model.dimensions["e"] == 4096 and imported.out is None
    assert imported.parameters == dsx.parameters(imported.model) == 8_030_261_248


@pytest.mark.parametrize("sizes", [{"tp": 8}, {"tp": np.int64(8)}, ["tp=8"], "tp=8"])
def test_sizes_of_a_layer_are_a_mapping_or_texts(sizes):
    described = dsx.layer("transformer", "gated", model="llama-3-8b", sizes=sizes)
    assert described == dsx.layer("transformer", "gated", model="llama-3-8b", sizes={"tp": 8})


def test_a_layer_or_size_that_there_is_not_is_refused():
    with pytest.raises(UnknownNameError, match="unknown layer 'transformr'; did you mean 'transformer'"):
        dsx.layer("transformr")
    with pytest.raises(InputError, match="tp=x: tp must be a whole number"):
        dsx.layer("transformer", sizes={"tp": "x"})


def test_a_cluster_may_be_content(tmp_path):
    wide = {"extends": "h100-nvs8", "name": "wide", "network": {"nvs": {"size": 16}}}
    times = dsx.cluster_times(wide, set={"assumptions.nvs_efficiency": 0.5})
    assert times.name == "wide" and times.network.nvs.size == 16
    times.plot(tmp_path / "times.png")
    assert (tmp_path / "times.png").stat().st_size > 5_000
    with pytest.raises(InputError, match="clusters show reads no model"):
        dsx.cluster_times(wide, set={"model.dimensions.e": 8})
