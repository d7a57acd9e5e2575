"""The published runs in data/validation: all can be setups, and times printed in two ways agree."""

import dataclasses
from collections import Counter

import pytest

from dsx.runs.measured_memory import counted_bytes, measured_bytes
from dsx.runs.run_table import read_runs
from dsx.runs.setups import Setup, count_filled, count_from_notes, setups
from dsx.runs.step_time import measured_step_time
from dsx.spec.locate import packaged_data

RUNS = read_runs(packaged_data() / "validation" / "runs.csv")
MADE = setups(RUNS)
SECONDS = [measured_step_time(setup) for setup in MADE if isinstance(setup, Setup)]


def test_every_row_is_a_setup():
    assert [setup for setup in MADE if not isinstance(setup, Setup)] == []
    assert len(MADE) == 2882


def test_every_row_has_seconds_or_ran_out_of_memory():
    timed = [isinstance(seconds, float) for seconds in SECONDS]
    assert [run.oom for run in RUNS] == [not seconds for seconds in timed]


def test_machines_precisions_and_schedules():
    assert Counter(setup.cluster.name for setup in MADE) == {
        "a100-80-nvs8": 2511,
        "a100-80-nvs8, 50.0 GB/s to a node": 32,
        "h100-nvs8": 277,
        "h100-nvs8, 100 GB/s to a node": 4,
        "v100-16-nvs8": 12,
        "v100-16-nvs8, 12.5 GB/s to a node": 20,
        "h100-96-nvs8": 24,
        "h200-141-nvs8, 400 GB/s to a node": 2,
    }
    assert Counter(setup.precision for setup in MADE) == {"bf16": 2720, "fp8": 162}
    assert Counter(setup.plan["schedule"] for setup in MADE) == {"1f1b": 2858, "zb-h1": 12, "zb-h2": 12}


def test_the_defaults_that_are_used():
    assert count_filled(MADE) == {
        "kernels": 1811,
        "vocab": 1488,
        "precision": 1440,
        "recompute": 325,
        "sp": 237,
        "flash": 48,
        "etp": 36,
        "vpp": 12,
        "microbatch": 10,
    }
    assert count_from_notes(MADE) == {"kernels": 964, "zero_replicas": 78, "node_network": 58, "etp": 3}


def test_memory_is_counted_in_three_ways():
    known = [run for run in RUNS if measured_bytes(run)]
    assert Counter(map(counted_bytes, known)) == {"allocated": 50, "reserved": 14, "device": 16}


@pytest.mark.parametrize(
    ("without", "least", "most"),
    [
        (("measured_iter_s",), 0.97, 1.01),
        (("measured_iter_s", "measured_tokens_per_s_per_gpu"), 0.97, 1.08),
        (("measured_iter_s", "measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu"), 0.93, 1.08),
    ],
)
def test_times_printed_in_several_ways_agree(without, least, most):
    ratios = []
    for setup, seconds in zip(MADE, SECONDS, strict=True):
        run = dataclasses.replace(setup.run, **dict.fromkeys(without))
        again = measured_step_time(dataclasses.replace(setup, run=run))
        if seconds and again:
            ratios.append(again / seconds)
    assert len(ratios) > 400
    assert least < min(ratios) < max(ratios) < most
