"""Tables, counts, shares and rates as people see them."""

import json
import math

import pytest

from dsx.plans.choices import CHOICES
from dsx.plans.plan import Plan
from dsx.progress import rate_text
from dsx.tables.format import quantity, share, shares, table
from dsx.tables.plans import plans_text
from dsx.text import versioned
from dsx.units import counted
from dsx.verbs.cli import print_json


def test_tables_align_text_left_and_numbers_right():
    made = table(["name", "step", "plan"], [["a", "3.00 s", "tp=8"], ["bcdefg", "12.1 s", "dp=16"]], text=(0, 2))
    assert made == "name      step  plan\na       3.00 s  tp=8\nbcdefg  12.1 s  dp=16"


def test_an_empty_header_is_left_out():
    assert table(["", ""], [["mfu", "38.8 %"]]) == "mfu  38.8 %"


def test_a_title_of_several_lines_ends_where_the_others_do():
    assert table(["plan", "device.\nhbm_capacity", "step"], [["tp=8", "80.0 GB", "3.00 s"]]).splitlines() == [
        "           device.",
        "plan  hbm_capacity    step",
        "tp=8       80.0 GB  3.00 s",
    ]


def test_nothing_is_no_table():
    assert table(["", ""], []) == ""


def test_json_has_a_version_and_only_numbers(capsys):
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


def test_quantities_by_column():
    assert quantity("mfu", 0.3881) == "38.8 %"
    assert quantity("step_time_s", 3.0) == "3.00 s"
    assert quantity("training_days", math.nan) == "-"


def test_a_plan_reads_as_it_is_written():
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


def test_plans_of_one_price_differ_in_settings_as_users_write_them():
    columns = {one.name: one.default if one.names else 1 for one in CHOICES} | {"strategy": "1d", "dp": 8}
    costs = {"step_time_s": 2.0, "mfu": 0.5, "peak_bytes": 1e9, "compute_s": 2.0}
    costs |= {f"{part}_s": 0.0 for part in ("memory", "recompute", "bubble", "optimizer")}
    costs |= {f"{axis}_comm_s": 0.0 for axis in ("tp", "cp", "ep", "pp", "dp")}
    plans = [{**costs, "plan": Plan(columns | {"dp_nvs": share})} for share in (8, 4)]
    assert "plan 2 costs the same as plan 1, with nvs.dp=4" in plans_text(plans, width=100)
