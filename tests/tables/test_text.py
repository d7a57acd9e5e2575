"""Tables, plans and stated values as text."""

import json
import math
import re

import pytest

import dsx
from dsx.cost.context import StepCosts
from dsx.plans.choices import CHOICES
from dsx.plans.plan import Plan
from dsx.progress import rate_text
from dsx.tables.format import quantity, share, shares, stated_text, table
from dsx.tables.plans import (
    SHARES,
    interval_text,
    mfu_of_peaks,
    plans_text,
    precision_text,
    roles_of,
    selection_text,
    three_plans_text,
    tied_text,
)
from dsx.text import versioned
from dsx.units import counted
from dsx.verbs.cli import print_json
from dsx.verbs.evaluate import as_row


def test_tables_titles_and_json(capsys):
    made = table(["name", "step", "plan"], [["a", "3.00 s", "tp=8"], ["bcdefg", "12.1 s", "dp=16"]], text=(0, 2))
    assert made == "name      step  plan\na       3.00 s  tp=8\nbcdefg  12.1 s  dp=16"
    # An empty header is left out.
    assert table(["", ""], [["mfu", "38.8 %"]]) == "mfu  38.8 %"
    # A title of several lines ends where the others do.
    assert table(["plan", "device.\nhbm_capacity", "step"], [["tp=8", "80.0 GB", "3.00 s"]]).splitlines() == [
        "           device.",
        "plan  hbm_capacity    step",
        "tp=8       80.0 GB  3.00 s",
    ]
    # Nothing is no table.
    assert table(["", ""], []) == ""
    # Json has a version and only numbers.
    print_json(versioned({"a": [math.nan, {"b": math.inf}, 1.5]}))
    assert json.loads(capsys.readouterr().out) == {"schema_version": 1, "a": [None, {"b": None}, 1.5]}


@pytest.mark.parametrize(("number", "text"), [(0, "0 rows"), (1, "1 row"), (2027, "2,027 rows")])
def test_counts(number, text):
    assert counted(number, "row") == text


@pytest.mark.parametrize(
    ("part", "whole", "text"), [(1, 3, "33 %"), (0, 3, "0 %"), (1, 0, "-"), (1, math.inf, "-"), (math.nan, 1, "-")]
)
def test_shares(part, whole, text):
    assert share(part, whole) == text


@pytest.mark.parametrize(("rate", "text"), [(0, "0/s"), (502.4, "502/s"), (19530, "19.5 k/s"), (2.314e6, "2.31 M/s")])
def test_rates(rate, text):
    assert rate_text(rate) == text


def test_quantities_and_plans_as_text():
    assert quantity("mfu", 0.3881) == "38.8 %"
    assert quantity("step_time_s", 3.0) == "3.00 s"
    assert quantity("training_days", math.nan) == "-"
    # A plan reads as it is written.
    ones = Plan({choice.name: choice.default for choice in CHOICES}) | {"zero_stage": 1}
    assert ones.text == "microbatch_size=1"
    plan = ones | {"tp": 8, "dp": 4, "panels": 16, "dp_nvs": 2}
    assert plan.text == "tp=8 dp=4 panels=16 microbatch_size=1 nvs.dp=2"
    plan = ones | {"dp": 4, "zero_replicas": 2, "stored_layers": 3, "offload": "both"}
    assert plan.text == "dp=4 microbatch_size=1 zero_replicas=2 stored_layers=3 offload=both"
    plan = ones | {"dp": 4, "vpp": 2, "zero_stage": 3, "recompute": "full", "schedule": "gpipe"}
    assert plan.text == "dp=4 microbatch_size=1 vpp=2 zero_stage=3 recompute=full schedule=gpipe"


@pytest.mark.parametrize(
    ("parts", "whole", "said"),
    [
        ((1.0, 1.0, 1.0), 3.0, [34, 33, 33]),
        ((93.2, 6.2, 0.6), 100.0, [93, 6, 1]),
        ((99.6, 0.2, 0.2), 100.0, [100, 0, 0]),
        ((0.5, 0.0, 0.0), 0.5, [100, 0, 0]),
        ((12.5, 12.5, 12.5, 62.5), 100.0, [13, 13, 12, 62]),
    ],
)
def test_shares_add_up(parts, whole, said):
    assert shares(parts, whole) == [f"{value} %" for value in said]
    assert sum(said) == 100


@pytest.mark.parametrize(("parts", "whole"), [((math.nan, 1.0), 1.0), ((1.0, 1.0), math.inf), ((0.0, 0.0), 0.0)])
def test_shares_of_no_number_are_dashes(parts, whole):
    assert shares(parts, whole) == ["-", "-"]


@pytest.mark.slow
def test_plans_of_one_price_are_settings_that_tie():
    columns = {one.name: one.default if one.names else 1 for one in CHOICES} | {"strategy": "1d", "dp": 8}
    costs = {"step_time_s": 2.0, "mfu": 0.5, "peak_bytes": 1e9, "compute_s": 2.0}
    costs |= {f"{part}_s": 0.0 for part in ("memory", "recompute", "bubble", "optimizer")}
    costs |= {f"{axis}_comm_s": 0.0 for axis in ("tp", "cp", "ep", "pp", "dp")}
    plans = [{**costs, "plan": Plan(columns | {"dp_nvs": share})} for share in (8, 4)]
    assert "plan 2 costs the same as plan 1, with nvs.dp=4" in plans_text(plans, width=100)
    # A ring of context parallelism hides its sends, so that it takes as long as more data parallelism.
    found = dsx.best(
        dsx.Job("llama-3-8b", "h100-nvs8", 16, 64), 5, fix="tp=2 pp=1 recompute=none offload=none zero_stage=1"
    )
    assert tied_text(found.priced).startswith("plans 1 to 3 tie")
    assert tied_text(found.priced) in str(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("8e10 B", "80.0 GB"),
        (["1d", "2d"], "1d, 2d"),  # strategies, no days
        (None, "-"),
        (["80 GB", "1.6e12 B/s"], "80.0 GB, 1.60 TB/s"),
        (4096, "4096"),
    ],
)
def test_quantities_have_a_prefix_and_names_stay(value, text):
    assert stated_text(value) == text


PLANS = {
    "dense": ("llama-3-8b", "tp=2 dp=4 nvs.tp=2 nvs.dp=4", "pp=8 zero_stage=3 offload=optimizer nvs.pp=8"),
    "experts": (
        "mixtral-8x7b",
        "ep=8 dp=8 zero_stage=3 nvs.dp=8",
        "tp=4 dp=2 ep=8 recompute=norms+feed-forward offload=optimizer nvs.tp=4 nvs.dp=2",
    ),
    "long layout": (
        "llama-3-70b",
        "pp=8 nvs.pp=8 recompute=full vpp=2 stage_layers=4,5,6,5,6,5,4,5,5,6,5,4,5,6,5,6",
        "pp=8 nvs.pp=8 recompute=norms",
    ),
}


@pytest.mark.parametrize("of", PLANS)
def test_no_line_is_over_100_columns(of):
    model, *texts = PLANS[of]
    job = dsx.Job(model, "h100-nvs8", 8, 64)
    plans = [as_row(dsx.evaluate(job, f"{text} microbatch_size=1").priced, job.cluster.name) for text in texts]
    named = dict(zip(("fastest", "simplest", "leanest"), (plans[0], *plans), strict=True))
    lines = three_plans_text(named, job.cluster.device, job.assumptions).splitlines()
    assert max(map(len, lines)) <= 100
    assert [*roles_of(named)] == ["fastest, simplest", "leanest"]
    assert lines[0].split() == ["fastest,", "simplest", "leanest"]
    assert sum(line.startswith("    features: ") for line in lines) == 2
    assert any(line.startswith("MFU of BF16 peak") for line in lines)
    # As a plan takes it.
    assert ("    stage_layers=4,5,6,5,6,5,4,5*2,6,5,4,5,6,5,6" in lines) is (of == "long layout")


def test_shares_of_a_step_add_up():
    job = dsx.Job("mixtral-8x7b", "h100-nvs8", 8, 64)
    for choices, titles in (("", "compute communication"), ("recompute=full", "compute recompute communication")):
        plan = as_row(dsx.evaluate(job, f"ep=8 pp=2 dp=4 {choices}").priced, job.cluster.name)
        header, row = plans_text([plan]).splitlines()
        assert f" {titles} bubble " in " ".join(header.split())
        assert sum(map(int, re.findall(r" (\d+) %", row))) == 100
    # Every part of a step is in one share.
    parts = [name for name in StepCosts.__dataclass_fields__ if name.endswith("_s") and not name.endswith("_per_s")]
    assert sorted(name for names in SHARES.values() for name in names) == sorted({*parts} - {"step_time_s"})


def test_what_is_said_of_narrow_types():
    device = dsx.Job("llama-3-8b", "h100-nvs8", 8, 64).cluster.device
    assert mfu_of_peaks(0.4, device, "bf16") == {"MFU of BF16 peak": 0.4}
    older = dsx.Job("llama-3-8b", "v100-32-nvs8", 8, 64).cluster.device
    assert mfu_of_peaks(0.4, older, "bf16") == {"MFU of FP16 peak": 0.4}
    assert mfu_of_peaks(0.4, device, "fp8") == {
        "MFU of BF16 peak": 0.4,
        "MFU of FP8 peak": pytest.approx(0.2, rel=1e-3),
    }
    # What prices 8 bits is said where it is faster.
    devices = {name: dsx.Job("llama-3-8b", name, 8, 64).cluster.device for name in ("h100-nvs8", "a100-80-nvs8")}
    assert "--set assumptions.linear_dtype=fp8" in precision_text(devices["h100-nvs8"], "bf16")
    assert precision_text(devices["h100-nvs8"], "fp8") == precision_text(devices["a100-80-nvs8"], "bf16") == ""
    # What is not known is not said.
    assert interval_text(math.nan, math.nan) == ""
    assert interval_text(5.21, 6.88) == "5.21 s to 6.88 s"
    assert "measurements" not in selection_text(None, 3, as_launched=False)
    said = (selection_text(0.18, 3, as_launched=some).replace("\n", " ") for some in (False, True))
    for text, which in zip(
        said, ("plans", "plans placed as launched, on the fewest nodes and fast domains, and"), strict=True
    ):
        assert f"Of the {which} within 18 % of the fastest, which measurements do not" in text


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([1.0, 1.002], ""),
        ([1.0, 1.0005, 1.002], "plans 1 and 2 tie: differences of up to 0.1 % count as equal"),
        ([1.0, 1.0, 1.0009, 1.0011], "plans 1 to 3 tie: differences of up to 0.1 % count as equal"),
        (
            [1.0005, 1.0, 1.2],
            "plans 1 and 2 tie: differences of up to 0.1 % count as equal; those launched as they are come first",
        ),
    ],
)
def test_a_list_says_which_plans_tie(times, said):
    assert tied_text([{"step_time_s": time} for time in times]) == said
