"""Published runs, and the document of their columns."""

import dataclasses
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

from dsx.config.search_path import packaged_data
from dsx.runs.complete import DEFAULTS
from dsx.runs.setups import Setup, count_rows_by, measured_bytes, measured_step_time, setups
from dsx.runs.table import COLUMNS, REQUIRED, read_runs
from dsx.schedules.schedules import SCHEDULES

RUNS = read_runs(packaged_data() / "validation" / "runs.csv")


@functools.cache  # not where tests are collected, which each process does
def resolved():
    return setups(RUNS)


@functools.cache
def modelled():
    return [setup for setup in resolved() if isinstance(setup, Setup)]


@functools.cache
def measured():
    return [measured_step_time(setup) for setup in modelled()]


@pytest.mark.slow
def test_published_rows_that_state_too_little_and_their_software_and_memory():
    assert len(resolved()) == 3387
    assert Counter(made.rule for made in resolved() if not isinstance(made, Setup)) == {
        "a column without a default is blank": 36,
        "microbatch * dp does not divide global_batch": 10,
        "ep does not divide tp * cp * dp": 1,
    }
    # Every setup has seconds or ran out of memory.
    assert [setup.run.oom for setup in modelled()] == [not isinstance(seconds, float) for seconds in measured()]
    # The software that no stack names.
    unknown = Counter(setup.run.framework for setup in modelled() if setup.remark)
    assert unknown == {"InternEvo": 54, "OneFlow-GPT": 16, "Meta in-house": 3}
    # Memory is counted in three ways.
    known = [setup.counted for setup in modelled() if measured_bytes(setup.run)]
    assert Counter(known) == {"allocated": 105, "reserved": 20, "device": 16}


@pytest.mark.slow
def test_machines_precisions_and_schedules():
    families = Counter(setup.cluster.name.partition(",")[0] for setup in modelled())
    assert families == {
        "a100-80-nvs8": 2568, "h100-nvs8": 449, "h100-96-nvs8": 30, "h200-141-nvs8": 5, "v100-16-nvs8": 32,
        "gb200-nvl72": 87, "b200-180-nvs8": 85, "gaudi2-eth8": 3, "tpu-v4": 6, "tpu-v5e": 24, "tpu-v5p": 22,
        "tpu-v6e": 29,
    }  # fmt: skip
    assert Counter(setup.precision for setup in modelled()) == {"bf16": 2976, "fp8": 352, "fp4": 9, "int8": 3}
    assert Counter(setup.plan["schedule"] for setup in modelled()) == {"1f1b": 3316, "zb-h1": 12, "zb-h2": 12}


@pytest.mark.slow
def test_the_defaults_that_are_used():
    assert count_rows_by(modelled(), "filled") == {
        "kernels": 2166,
        "vocab": 1488,
        "precision": 1440,
        "recompute": 585,
        "sp": 323,
        "flash": 81,
        "etp": 48,
        "microbatch": 39,
        "zero_stage": 33,
        "vpp": 31,
        **dict.fromkeys(("tp", "pp", "dp"), 4),
    }
    read = {"kernels": 964, "zero_replicas": 162, "node_network": 61, "cross_entropy": 43, "etp": 11}
    assert count_rows_by(modelled(), "from_notes") == read | {"microbatch": 22, "sp": 22}


@pytest.mark.sampled(3)
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
    for setup, seconds in zip(modelled(), measured(), strict=True):
        run = dataclasses.replace(setup.run, **dict.fromkeys(without))
        again = measured_step_time(dataclasses.replace(setup, run=run))
        # Of long sequences and experts some tables count half of the attention, or the windows of it.
        usual = (setup.run.seq or 0) < 8192 and not setup.run.experts
        if seconds and again and usual:
            ratios.append(again / seconds)
    assert len(ratios) > 400
    # Two rows of fine-tuning count their FLOP/s in another way.
    assert least < min(ratios) < sorted(ratios)[-3] < most


ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "measured-runs.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def table(section):
    rows = [line.strip("|").split("|") for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_columns_defaults_and_schedules_are_stated():
    names = [name for row in table("Columns") for name in re.findall(r"\w+", row[0])]
    bold = [name for row in table("Columns") for part in re.findall(r"\*\*(.*?)\*\*", row[0]) for name in part.split()]
    assert sorted(names) == sorted(COLUMNS)
    assert sorted(bold) == sorted(REQUIRED)
    # Every default is stated.
    stated = {row[0].strip("`"): row[1] for row in table("Missing values")}
    assert stated == {column: default.rule for column, default in DEFAULTS.items()}
    assert [*stated] == [*DEFAULTS]
    # Schedules are named.
    for schedule in SCHEDULES:
        assert f"`{schedule.name}`" in SECTIONS["Columns"]
