"""Plans and their variants are all candidates, each once."""

import numpy as np
import pytest
from laws.spaces import SYSTEM
from validation.cases import cluster_spec
from verbs.small import model_of

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import ModelSpec, has_experts
from dsx.plans.choices import CHOICE_COLUMNS, KEY_COLUMNS
from dsx.plans.frameworks import read_framework
from dsx.pricing.problem import ProblemOptions, make_problem
from dsx.search.fastest import spaces_of
from dsx.search.spaces import Space
from dsx.search.variants import VARIED, Variants, varied_last

EXPERTS = {"kind": "transformer", "options": ["rotary"], "ffn": "experts", "count": 4}
MODEL = model_of(
    [EXPERTS],
    {"e": 1024, "h": 8, "g": 4, "k": 128, "f": 4096, "v": 50000}
    | {"x": 4, "topk": 2, "fx": 1024, "capacity_percent": 100},
)


def problem_of(framework):
    frame = read_framework(framework)
    return make_problem(
        ModelSpec.model_validate(MODEL),
        cluster_spec(SYSTEM),
        load_assumptions("default"),
        ["1d"],
        ProblemOptions(framework=frame),
    )


def candidates(keys, positions, choices):
    columns = [*(keys[name][positions] for name in KEY_COLUMNS), *(choices[name] for name in CHOICE_COLUMNS)]
    return [tuple(row) for row in np.stack(columns, axis=1).tolist()]


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "any"])
def test_plans_and_variants_are_the_space(framework):
    problem = problem_of(framework)
    whole = Space(problem, [8], [16])
    expected = candidates(whole.keys, *whole.blocks.rows(0, whole.size))
    spaces = spaces_of([problem], 8, 16, {})
    (space,) = spaces.spaces
    every = np.arange(space.size)
    found = candidates(space.keys, *space.blocks.rows_at(every))
    assert spaces.varied and len(found) < len(expected)
    variants = Variants(space.blocks, space.bounds, spaces.varied, problem.workload.searched)
    origin, columns = variants.of(space.blocks.places_of(every).placement)
    positions, choices = space.blocks.rows_at(every[origin])
    found += candidates(space.keys, positions, choices | columns)
    assert sorted(found) == sorted(expected)
    assert spaces.counted.candidates == len(expected)


def test_a_choice_whose_default_the_framework_does_not_run_is_not_searched_last():
    problem = problem_of("megatron")
    searched = problem.workload.searched
    boxes = problem.framework.boxes(has_experts(problem.model.dimensions))
    assert varied_last(searched, [], boxes) == VARIED
    assert [choice.name for choice in varied_last(searched, ["offload"], boxes)] == ["zero_replicas", "stored_layers"]
    host = [box.model_copy(update={"fix": {"offload": ["optimizer"]}}) for box in boxes[:1]]
    assert varied_last(searched, [], host) == ()
