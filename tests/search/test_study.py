"""Studies: varying a field in a sweep equals `--set`, and each integer value has a space of its own."""

from functools import cache

import jax
import numpy as np
import pytest
from laws.spaces import USUAL, assert_rows_equal, hardware, on, problem_of
from search.sweeps import everything
from validation.cases import priced

from dsx.config.what_if import WhatIf, _numbers, value_type, varied_field
from dsx.search import spaces as study_module
from dsx.search.spaces import Space, at_points, make_studies, points_of
from dsx.verbs.job import load_inputs, split_overrides

FIELDS = sorted(_numbers())
REAL = [path for path in FIELDS if not varied_field(path).integer]
INPUTS = ("llama-3-8b", "h100-nvs8", "default")
GPUS, BATCHES = [8, 16], [16]
# Some candidates use the link to the host, gather weights and recompute: all facts count, and the space is small.
CHOICES = USUAL | {"zero_stage": [1, 3], "recompute": ["none", "full"], "offload": ["none", "both"]}


@cache
def problem_with(*assignments):
    """The problem under `--set`."""
    return load_inputs(*INPUTS, split_overrides(assignments)).problem(["1d"], 2048).searching(CHOICES)


def stated(path):
    """The value in the files at a path."""
    inputs = load_inputs(*INPUTS, split_overrides([]))
    value = inputs if path.startswith("assumptions.") else inputs.cluster
    for name in path.split("."):
        value = getattr(value, name)
    return value


def assignment(path, value):
    target = path if path.startswith("assumptions.") else f"cluster.{path}"
    return f"{target}={value_type(path).dump_python(value, mode='json')}"


def leaves(problem):
    return dict(jax.tree_util.tree_leaves_with_path((problem.hardware, problem.assumptions)))


def test_the_fields_are_the_facts_of_the_cost_functions():
    """All leaves except sizes of elements can be varied, and the size of a fast domain."""
    varied = {"".join(map(str, path)) for path in leaves(problem_with())}
    shares = {f"[0].device.attention_{way}[{n}]" for way in ("forward", "backward") for n in range(4)}
    others = (
        "sustained_share", "fp8_flops", "fp4_flops", "int8_flops", "fp8_sustained_share", "power_share",
        "host_bandwidth", "num_sms",
    )  # fmt: skip
    held = shares | {f"[0].device.{name}" for name in others}
    held |= {"[0].node.gpus", "[0].node.gpus_per_host_link"}
    held |= {f"[0].operation.{name}" for name in ("price", "site_power", "mtbf", "restart", "checkpoint")}
    held |= {f"[1].{name}" for name in ("weight_bytes", "gradient_bytes", "dispatcher")}
    assert held < varied
    assert len(varied - held) == len(REAL)
    assert set(FIELDS) - set(REAL) == {"network.nvs.size", "node.gpus", "node.gpus_per_host_link"}


SLOWDOWN = "assumptions.kernel_slowdown"  # beside which a set has effects of the stack and of the devices


@pytest.mark.parametrize(
    "path", [SLOWDOWN, *(pytest.param(path, marks=pytest.mark.sampled(20)) for path in REAL if path != SLOWDOWN)]
)
def test_a_real_field_equals_set(path):
    base = stated(path) or 1e-6
    values = np.array([base, base - 1 if path.endswith("attention_kernels") else base * 0.5])
    (made,) = make_studies([problem_with()], WhatIf((path,), tuple((v,) for v in values.tolist())), GPUS, BATCHES)
    np.testing.assert_array_equal(made.values[path], values)
    assert made.problem.num_points == 2
    together = leaves(made.problem)
    for point, value in enumerate(values.tolist()):
        alone = problem_with(assignment(path, value))
        assert {at: leaf[point] for at, leaf in together.items()} == {at: leaf[0] for at, leaf in leaves(alone).items()}
        one = points_of(made, point, point + 1)
        assert_rows_equal(priced(one.problem, made.space), priced(alone, Space(alone, GPUS, BATCHES)), 1e-13)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("path", REAL)
def test_every_real_field_changes_a_cost_or_what_fits(path):
    """The plan must use what the field is about: 8 bits, offload, gathers, ZeRO 3, experts.

    Shares that a device states apply in place of those of the set.
    """
    name = path.rpartition(".")[2]
    dtype = "fp8" if name in ("fp8_efficiency", "cast_traffic") else "bf16"
    model = "mixtral-8x7b" if name in ("grouped_efficiency", "ep_overlap") else INPUTS[0]
    cluster = {"clock_exponent": "h100-96-nvs8", "sustained_share": "mi250x-xgmi8"}.get(name, INPUTS[1])
    changes = [f"assumptions.linear_dtype={dtype}"]
    if name.startswith("attention_") and name != "attention_kernels":
        changes.append("assumptions.attention_kernels=none")
    inputs = load_inputs(model, cluster, INPUTS[2], split_overrides(changes))
    strategy = {"tp_overlap": "1d", "cp_overlap": "2d"}.get(name, "1d-no-sp")
    choices = USUAL | {
        "offload": ["both" if "host" in path else "none"],
        "zero_stage": [3 if name == "fsdp_overlap" else 1],
    }
    problem = inputs.problem([strategy], 2048).searching(choices)
    base = priced(problem, Space(problem, GPUS, BATCHES))
    default = stated(path) or 1e-6
    for value in (default * 0.1, default * 10):
        other = at_points(problem, {path: np.array([value])})
        rows = priced(other, Space(other, GPUS, BATCHES))
        if any((rows[name] != base[name]).any() for name in base if name != "training_days"):
            return
    pytest.fail(f"{path} has no effect")


def test_the_size_of_a_fast_domain_decides_the_space():
    what_if = WhatIf(("network.nvs.size",), ((4,), (8,), (64,)))
    studies = make_studies([problem_with()], what_if, GPUS, BATCHES)
    assert [study.values["network.nvs.size"].tolist() for study in studies] == [[4], [8], [64]]
    sizes = []
    for study, size in zip(studies, (4, 8, 64), strict=True):
        alone = problem_with(assignment("network.nvs.size", size))
        assert study.problem.nvs_size == alone.nvs_size == size
        space = Space(alone, GPUS, BATCHES)
        assert_rows_equal(priced(study.problem, study.space), priced(alone, space), 1e-13)
        assert study.values["network.nvs.size"].dtype.kind == "i"
        sizes.append(space.size)
    assert len(set(sizes)) == 3


GRID = WhatIf(
    ("device.hbm_capacity", "network.nvs.size", "network.nvs.bandwidth"),
    ((8e10, 4, 1e11), (8e10, 4, 2e11), (8e10, 8, 1e11), (8e10, 8, 2e11), (1.6e11, 4, 1e11), (1.6e11, 8, 3e11)),
)


def test_points_keep_the_order_of_the_grid_within_a_size():
    problems = [problem_of("default"), on(problem_of("default"), hardware(hbm_bandwidth=1e12))]
    studies = make_studies(problems, GRID, [8], [16])
    assert [(study.cluster, study.problem.nvs_size) for study in studies] == [(0, 4), (0, 8), (1, 4), (1, 8)]
    for study in studies:
        points = [point for point in GRID.points if point[1] == study.problem.nvs_size]
        for path, column in zip(GRID.fields, zip(*points, strict=True), strict=True):
            np.testing.assert_array_equal(study.values[path], column)
        capacity, _, bandwidth = zip(*points, strict=True)
        np.testing.assert_array_equal(study.problem.hardware.device.hbm_capacity, capacity)
        np.testing.assert_array_equal(study.problem.hardware.network.nvs.bandwidth, bandwidth)
        assert study.problem.num_points == 3
        assert study.size == 3 * study.space.size
        rate = {0: 4.8e12, 1: 1e12}[study.cluster]
        np.testing.assert_array_equal(study.problem.hardware.device.hbm_bandwidth, [rate] * 3)


def test_studies_of_clusters_and_points():
    problems = [problem_of("default"), on(problem_of("default"), hardware(fast_size=4))]
    first, second = make_studies(problems, WhatIf(), [8], [16], fix={"tp": [2]})
    assert (first.values, second.values) == ({}, {})
    assert leaves(first.problem) == leaves(problems[0])
    assert (first.problem.nvs_size, second.problem.nvs_size) == (8, 4)
    for study in (first, second):
        assert set(study.space.keys["tp"].tolist()) == {2}
        assert study.size == study.space.size > 0
    # Some points of a study.
    (study, _) = make_studies([problem_of("default")], GRID, [8], [16])
    part = points_of(study, 1, 3)
    assert part.problem.num_points == 2
    for path, column in study.values.items():
        np.testing.assert_array_equal(part.values[path], column[1:3])
    whole, some = leaves(study.problem), leaves(part.problem)
    assert {at: leaf.tolist() for at, leaf in some.items()} == {at: leaf[1:3].tolist() for at, leaf in whole.items()}
    assert (part.space, part.cluster) == (study.space, study.cluster)
    # Rows of a study are those of its space point by point.
    (study, _) = make_studies([problem_of("default")], GRID, [8], [4, 8], fix={"tp": [2, 4]})
    positions, choices = study.space.blocks.rows(0, study.space.size)
    one = list(zip(positions.tolist(), *(column.tolist() for column in choices.values()), strict=True))
    whole = [(point, *row) for point in range(3) for row in one]
    size = study.space.size
    assert rows_of(study, 0, study.size) == whole
    for start in (0, 1, size - 1, size, size + 1, 2 * size):
        for stop in (start + 1, size, size + 1, 2 * size, 2 * size + 5, study.size):
            if start < stop:
                assert rows_of(study, start, stop) == whole[start:stop]
    # Parts of a space whose blocks are known.
    space = Space(problem_of("default"), [8], [8])
    assert space.size > 0
    parts = space.split(10)
    assert sum(part.size for part in parts) == space.size
    assert all(part.blocks.keys.max(initial=0) < 10 for part in parts)


def rows_of(study, start, stop):
    points, positions, choices = study.rows(start, stop)
    return list(zip(points.tolist(), positions.tolist(), *(c.tolist() for c in choices.values()), strict=True))


def test_a_large_space_is_several_studies_with_the_same_candidates(monkeypatch):
    problem = problem_of("default")
    (whole,) = make_studies([problem], WhatIf(), [8, 24], [24])
    count = len(whole.space.keys["tp"])
    for most in (1 + count // 3, count - 1):
        monkeypatch.setattr(study_module, "_KEYS", most)
        several = make_studies([problem], WhatIf(("network.nvs.size",), ((8,), (4,))), [8, 24], [24])
        there = [study for study in several if study.problem.nvs_size == 8]
        assert len(there) == -(-count // most)
        assert all(len(study.space.keys["tp"]) <= most for study in several)
        names = everything(there)["candidate"].tolist()
        assert len(names) == whole.size
        assert set(names) == set(everything([whole])["candidate"].tolist())
