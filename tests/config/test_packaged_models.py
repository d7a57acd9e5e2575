"""The models that come with dsx: shapes that fit together, a source each, counts of parameters that are published."""

import subprocess
import sys
from dataclasses import fields, replace
from decimal import Decimal

import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import load_model
from dsx.config.search_path import names
from dsx.notation.model import build_model, parameters

NAMES = names("models", ".yaml")
DEFAULT = load_assumptions("default")
PAPER_MODELS = ("gpt3-1t", "vit-era5")


@pytest.mark.parametrize("name", NAMES)
def test_a_packaged_model_fits_together(name):
    model = load_model(name)
    sizes = model.dimensions
    assert model.name == name
    assert len(model.source) > 10
    assert sizes["h"] % sizes.get("g", 1) == 0


@pytest.mark.parametrize(
    ("name", "sequence_length", "sizes", "count"),
    [
        ("gpt3-1t", 2048, {"e": 25600, "h": 160, "g": 160, "k": 160, "f": 102400}, 128),
        ("vit-era5", 64800, {"e": 12288, "h": 64, "g": 64, "k": 192, "f": 49152}, 48),
    ],
)
def test_the_models_of_the_performance_model_paper(name, sequence_length, sizes, count):
    model = load_model(name)
    assert model.default_sequence_length == sequence_length
    assert sizes.items() <= model.dimensions.items()
    (body,) = build_model(model, load_assumptions("paper-2410.00273"), "1d").layers  # neither embedding nor head
    assert (body[0].name.split("[")[0], body[1]) == ("transformer-2410.00273", count)


@pytest.mark.slow
def test_parameters_and_layers_of_packaged_models():
    paper = load_assumptions("paper-2410.00273")
    (with_dropout,), (with_a_full_mask,) = (build_model(load_model(name), paper, "1d").kinds for name in PAPER_MODELS)
    one, other = (
        {field.name: getattr(layer, field.name) for field in fields(layer)} | {"name": "", "options": {}}
        for layer in (with_dropout, with_a_full_mask)
    )
    assert one == other
    # With the layer that predicts a second token, and without embedding and head (arXiv 2508.06471, table 1).
    built = build_model(load_model("glm-4.5"), DEFAULT, "2d")
    one = replace(built, layers=((built.body[-1][0], 1),), leading=0, trailing=0)
    sizes = built.dimensions
    joined = 2 * sizes["e"] ** 2  # the multiply of the hidden state and the embedding of the next token
    tables = 2 * sizes["v"] * sizes["e"]
    assert round((parameters(built) + parameters(one) + joined - tables) / 1e9) == 355
    # A tied table counts once.
    model = load_model("mpt-125m")
    tied = parameters(build_model(model, DEFAULT, "1d"))
    layers = [*model.layers[:-1], model.layers[-1].model_copy(update={"options": ["layernorm"]})]
    apart = parameters(build_model(model.model_copy(update={"layers": layers}), DEFAULT, "1d"))
    assert apart - tied == model.dimensions["v"] * model.dimensions["e"]
    # The specs do not import jax.
    files = ("sweep_file", "model_file", "cluster_file", "assumption_set")
    code = f"import sys, dsx.units, {', '.join(f'dsx.config.{file}' for file in files)}\n"
    code += "sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "left_out", "published"),
    [
        ("llama-4-scout", 0, 17e9),
        ("llama-4-maverick", 0, 17e9),
        ("qwen3-235b-a22b", 0, 22e9),
        ("deepseek-v3", 0, 37e9),
        ("glm-4.5", 2, 32e9),  # without embedding and head (arXiv 2508.06471, table 1)
        ("glm-4.5-air", 2, 12e9),
        ("qwen3-next-80b-a3b", 2, 3e9),
    ],
)
def test_the_active_parameters_are_those_published(name, left_out, published):
    """With as many experts as a token passes; `left_out` tables of the vocabulary do not count."""
    model = load_model(name)
    sizes = model.dimensions | {"x": model.dimensions["topk"]}
    active = parameters(build_model(model.model_copy(update={"dimensions": sizes}), DEFAULT, "2d"))
    assert round((active - left_out * sizes["v"] * sizes["e"]) / 1e9) == published / 1e9


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in NAMES if load_model(name).parameters])
@pytest.mark.parametrize("strategy", ["2d", "summa"])
def test_the_published_parameters_are_those_of_the_tensors(name, strategy):
    """To the parameter, or within one unit of the last digit of a rounded figure."""
    model = load_model(name)
    count = parameters(build_model(model, DEFAULT, strategy))
    published = Decimal(model.parameters)
    last_digit = Decimal(10) ** published.normalize().as_tuple().exponent
    assert count == published if last_digit < 10**6 else abs(count - published) < last_digit


@pytest.mark.parametrize(("name", "layers", "experts"), [("gpt-oss-120b", 36, 128), ("gpt-oss-20b", 24, 32)])
def test_a_sink_of_each_head_counts(name, layers, experts):
    """By hand: biases of all multiplies and of the router, and a learned score of each of 64 heads."""
    e, heads, f = 2880, 64 * 64, 2880
    attention = (e + 1) * (heads + 2 * 8 * 64) + (heads + 1) * e + 64
    ffn = (e + 1) * experts + experts * ((e + 1) * 2 * f + (f + 1) * e)
    total = layers * (attention + 2 * e + ffn) + 2 * 201_088 * e + e
    assert total == {"gpt-oss-120b": 116_829_156_672, "gpt-oss-20b": 20_914_757_184}[name]
    assert parameters(build_model(load_model(name), load_assumptions("default"), "2d")) == total
