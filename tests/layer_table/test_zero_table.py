"""ZeRO where plans are infeasible without it: the layers of a published table, and the plans of dsx for them."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = json.loads((ROOT / "tests" / "data" / "partition" / "zero_table7.json").read_text(encoding="utf-8"))


@pytest.fixture
def zero_table(benchmark_script):
    return benchmark_script("zero_table")


def test_the_memory_gives_the_degrees_of_the_table(zero_table):
    entries = zero_table.degrees_of(TABLE)
    assert len(entries) == 7
    for model, kind, optimizer, expected in entries:
        row = TABLE[model]
        found = zero_table.least_degree(row[kind], row["hbm_bytes"], row["bound"], optimizer)
        assert found == expected, zero_table.report(TABLE)


@pytest.mark.parametrize("model", ["llama3", "bertlarge"])
def test_with_zero_a_plan_fits_in_fewer_devices_than_published(zero_table, model):
    row = TABLE[model]
    assert zero_table.plan(row, (0,)) is None
    made = zero_table.plan(row, (0, 1, 2, 3))
    assert made.zero_stage == 3, zero_table.report(TABLE)
    assert max(stage.memory_bytes for stage in made.stages) <= row["hbm_bytes"]
    assert len(made.stages) * made.num_replicas <= row["paper"]["devices"]
    assert sum(stage.num_layers for stage in made.stages) == row["bound"]
