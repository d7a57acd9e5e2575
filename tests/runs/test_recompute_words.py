"""Words of frameworks for recomputation: each names values that plans have, and gives the nearest plan."""

import pytest
from runs.tables import write

from dsx.plans.choices import BY_NAME, value_of
from dsx.runs.notes import recompute_words
from dsx.runs.setups import Setup, setups
from dsx.runs.table import read_runs


def made(tmp_path, **cells) -> Setup:
    (found,) = setups(read_runs(write(tmp_path / "runs.csv", cells)))
    assert isinstance(found, Setup)
    return found


def test_each_word_names_values_of_a_plan():
    for word, meant in recompute_words().items():
        assert word == word.lower() and len(meant.source) > 20
        assert meant.recompute is None or value_of(meant.recompute) == meant.recompute
        BY_NAME["offload"].code(meant.offload)


@pytest.mark.parametrize(
    ("word", "recompute", "stored", "offload"),
    [
        ("minimal", "core-attention+norms", 0, "none"),
        ("Custom-Offload", "full", 0, "activations"),
        # 16 layers of a stage.
        ("selective op", "full", 6, "none"),
        ("selective layer", "full", 8, "none"),
    ],
)
def test_a_word_gives_the_nearest_plan(tmp_path, word, recompute, stored, offload):
    setup = made(tmp_path, recompute=word)
    plan = setup.plan
    assert (plan["recompute"], plan["stored_layers"], plan["offload"]) == (recompute, stored, offload)
    assert "recompute" not in setup.filled


def test_a_word_that_names_no_policy_is_a_blank_cell(tmp_path):
    assert "recompute" in made(tmp_path, recompute="custom").filled


def test_selective_of_a_fully_sharded_recipe_is_the_recipe_of_single_operators(tmp_path):
    sharded = {"zero_stage": "3", "tp": "1", "pp": "1", "dp": "16", "sp": "0"}
    of_words = [made(tmp_path, recompute=word, **sharded).plan for word in ("selective", "selective op")]
    assert of_words[0] == of_words[1]
    assert (of_words[0]["recompute"], of_words[0]["stored_layers"]) == ("full", 12)
    assert made(tmp_path, recompute="selective").plan["recompute"] == "selective"


@pytest.mark.parametrize(
    ("precision", "multiplies"),
    [("NVFP4", "fp4"), ("MXFP8", "fp8"), ("amp_fp8", "fp8"), ("amp_bf16", "bf16"), ("int8", "int8")],
)
def test_the_precision_of_the_multiplies(tmp_path, precision, multiplies):
    assert made(tmp_path, precision=precision).precision == multiplies
