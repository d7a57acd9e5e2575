"""Rows by rank, and columns of result sets."""

import json
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx import records
from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.errors import UnknownNameError
from dsx.plans.choices import NAMED, PLAN_COLUMNS
from dsx.results.ranked_by import (
    OBJECTIVES,
    Goal,
    cheapest,
    chosen,
    days_between,
    fastest,
    launched_first,
    objective_named,
    price_column,
    ranked_by_count,
)
from dsx.results.set_columns import COLUMNS, NAME_COLUMNS, ExtraColumn, arrow_schema, columns_with, write_options

PLANS = [
    {"plan": {"num_gpus": gpus}, "tokens_per_s": rate, "step_time_s": step, "mfu": 0.4, "peak_bytes": size}
    | {"tokens_per_s_per_gpu": rate / gpus, "hardware": {"cluster": "b200-nvs8"}}
    for gpus, rate, step, size in [(8, 80.0, 4.0, 1), (16, 176.0, 5.0, 2), (8, 96.0, 7.0, 3), (16, 128.0, 3.0, 4)]
]


def order(name):
    return [PLANS.index(plan) for plan in ranked_by_count(PLANS, objective_named(name))]


def test_plans_that_are_launched_come_first_among_equally_fast_ones():
    hand = {"a", "b", "e", "h"}
    seconds = {"a": 1.0, "b": 1.0004, "c": 1.0009, "d": 1.001, "e": 1.2, "f": 1.2 * (1 + 1e-15), "g": 1.3, "h": 1.3001}
    plans = [{"name": name, "step_time_s": step_s} for name, step_s in seconds.items()]
    ordered = launched_first(plans, lambda plan: plan["name"] in hand)
    assert "".join(plan["name"] for plan in ordered) == "cdabfegh"
    assert launched_first([], lambda plan: True) == []


def test_groups_of_the_same_gpus_follow_their_best_plans():
    assert order("tokens_per_s_per_gpu") == [2, 0, 1, 3]
    assert order("tokens_per_s") == [1, 3, 2, 0]
    assert order("step_time_s") == [3, 1, 0, 2]
    assert order("peak_bytes") == [0, 2, 1, 3]
    assert order("mfu") == [0, 2, 1, 3]
    # The same number of GPUs of two clusters is two groups.
    two = [plan | {"hardware": {"cluster": name}} for plan, name in zip(PLANS, ("a", "b", "b", "a"), strict=True)]
    ranked = ranked_by_count(two, objective_named("tokens_per_s"))
    assert [(plan["hardware"]["cluster"], plan["plan"]["num_gpus"]) for plan in ranked] == [
        ("b", 16), ("a", 16), ("b", 8), ("a", 8),
    ]  # fmt: skip
    # Unknown names.
    assert {*OBJECTIVES} >= {"tokens_per_s_per_gpu", "step_time_s"}
    with pytest.raises(UnknownNameError, match=r"did you mean 'mfu'\?"):
        objective_named("mfus")


AMOUNT = st.floats(1.0, 1e3)
RUNS = st.lists(st.tuples(AMOUNT, AMOUNT), min_size=1, max_size=6)


def plans_of(amounts, priced=True):
    return [
        {"training_days": days, "gpu_hours": hours, "cost_usd": 2 * hours if priced else math.nan}
        for days, hours in amounts
    ]


@given(RUNS, AMOUNT)
def test_a_deadline_takes_the_cheapest_in_time(amounts, deadline):
    plans = plans_of(amounts)
    in_time = [plan for plan in plans if plan["training_days"] <= deadline]
    found = chosen(plans, Goal(deadline))
    assert (found is None) == (not in_time)
    assert found is None or found["cost_usd"] == min(plan["cost_usd"] for plan in in_time)


@given(RUNS, AMOUNT)
def test_a_budget_takes_the_fastest_that_is_paid_for(amounts, budget):
    plans = plans_of(amounts)
    paid_for = [plan for plan in plans if plan["cost_usd"] <= budget]
    found = chosen(plans, Goal(None, budget))
    assert (found is None) == (not paid_for)
    assert found is None or found["training_days"] == min(plan["training_days"] for plan in paid_for)


@given(RUNS, AMOUNT, AMOUNT)
def test_both_are_kept_to(amounts, deadline, budget):
    found = chosen(plans_of(amounts), Goal(deadline, budget))
    assert found is None or (found["training_days"] <= deadline and found["cost_usd"] <= budget)


@given(RUNS)
def test_without_a_goal_it_is_the_cheapest(amounts):
    plans = plans_of(amounts)
    assert chosen(plans, Goal())["cost_usd"] == cheapest(plans)["cost_usd"]
    assert fastest(plans)["training_days"] == min(days for days, _ in amounts)


def test_without_a_price_gpu_hours_are_paid():
    plans = plans_of([(10.0, 5.0), (5.0, 6.0)], priced=False)
    assert price_column(plans) == "gpu_hours"
    assert chosen(plans, Goal(20.0)) is plans[0]
    # The days have the interval of the step.
    plan = {"training_days": 40.0, "step_time_s": 2.0, "step_time_s_low": 1.0, "step_time_s_high": 3.0}
    assert days_between(plan) == pytest.approx((20.0, 60.0))


NAMES = {name: ("a", "b") for name in NAME_COLUMNS}
REAL = ExtraColumn("device.hbm_capacity", "bytes", "what it holds", integer=False)
INTEGER = ExtraColumn("network.nvs.size", "", "how many", integer=True)


def test_columns_are_those_of_the_records():
    choices = list(PLAN_COLUMNS)
    costs = [*records.columns(StepCosts), *records.columns(StepInterval)]
    assert [c.name for c in COLUMNS] == ["candidate", "cluster", *choices, *costs, "reject"]
    assert {c.name for c in COLUMNS if c.kind == "name"} == {"cluster", *NAMED} == set(NAME_COLUMNS)
    assert [c.name for c in COLUMNS if c.kind == "real"] == costs
    assert all(c.description for c in COLUMNS)
    # What if columns lie between choices and costs.
    assert columns_with(()) == COLUMNS
    names = [c.name for c in columns_with([REAL, INTEGER])]
    at = names.index("device.hbm_capacity")
    last, first = list(PLAN_COLUMNS)[-1], next(iter(records.columns(StepCosts)))
    assert names[at - 1 : at + 3] == [last, "device.hbm_capacity", "network.nvs.size", first]
    # Encodings.
    options = write_options(columns_with([REAL, INTEGER]))
    assert set(options["use_dictionary"]) == set(NAME_COLUMNS)
    assert set(options["column_encoding"]) == {
        "device.hbm_capacity",
        *records.columns(StepCosts),
        *records.columns(StepInterval),
    }
    assert set(options["column_encoding"].values()) == {"BYTE_STREAM_SPLIT"}
    assert {"tp", "reject", "network.nvs.size", "device.hbm_capacity"} <= set(options["write_statistics"])
    assert "candidate" not in options["write_statistics"]


@pytest.mark.parametrize(("precision", "real"), [("float32", pa.float32()), ("float64", pa.float64())])
def test_types_units_and_metadata(precision, real):
    schema = arrow_schema(columns_with([REAL, INTEGER]), NAMES, precision, {"schema_version": 2})
    assert schema.field("candidate").type == pa.int64()
    assert schema.field("reject").type == pa.int64()
    assert schema.field("tp").type == pa.int32()
    assert schema.field("strategy").type == schema.field("cluster").type == pa.dictionary(pa.int8(), pa.string())
    assert schema.field("step_time_s").type == real
    assert schema.field("device.hbm_capacity").type == pa.float64()
    assert schema.field("device.hbm_capacity").metadata == {b"unit": b"bytes", b"description": b"what it holds"}
    assert schema.field("network.nvs.size").type == pa.int32()
    assert schema.field("peak_bytes").metadata[b"unit"] == b"bytes"
    assert schema.field("peak_bytes").metadata[b"description"].startswith(b"memory of the worst stage")
    assert not any(field.nullable for field in schema)
    assert json.loads(schema.metadata[b"dsx"]) == {
        "schema_version": 2,
        "names": {name: ["a", "b"] for name in NAME_COLUMNS},
    }
