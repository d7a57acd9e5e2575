"""The models that come with dsx: shapes that fit together, a source each, published counts."""

import subprocess
import sys

import pytest

from dsx.spec.locate import names
from dsx.spec.model import load_model


@pytest.mark.parametrize("name", names("models", ".yaml"))
def test_a_packaged_model_fits_together(name):
    model = load_model(name)
    sizes = model.dimensions
    assert model.name == name
    assert len(model.source) > 10
    assert sizes["h"] * sizes["k"] == sizes["e"]
    assert sizes["h"] % sizes["g"] == 0


@pytest.mark.parametrize(
    ("name", "sequence_length", "sizes", "layers"),
    [
        ("gpt3-1t", 2048, {"e": 25600, "h": 160, "g": 160, "k": 160, "f": 102400}, ("transformer", 128)),
        ("vit-era5", 64800, {"e": 12288, "h": 64, "g": 64, "k": 192, "f": 49152}, ("transformer", 48)),
    ],
)
def test_the_models_of_the_performance_model_paper(name, sequence_length, sizes, layers):
    model = load_model(name)
    assert model.default_sequence_length == sequence_length
    assert model.dimensions == sizes
    assert [(layer.kind, layer.count) for layer in model.layers] == [layers]


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b"])
def test_the_published_parameters_are_those_of_the_tensors(name):
    model = load_model(name)
    e, h, g, k, f, v = (model.dimensions[letter] for letter in "ehgkfv")
    of_a_layer = e * (h + 2 * g) * k + h * k * e + 3 * e * f + 2 * e
    assert model.parameters == 2 * v * e + sum(layer.count for layer in model.layers) * of_a_layer + e


def test_the_specs_do_not_import_jax():
    code = "import sys, dsx.units, dsx.spec.sweep, dsx.spec.model, dsx.spec.cluster, dsx.spec.assumptions\n"
    code += "sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
