"""Which plan to take: against all plans, for any goal."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.results.ranked_by import Goal, cheapest, chosen, days_between, fastest, price_column

AMOUNT = st.floats(1.0, 1e3)
PLANS = st.lists(st.tuples(AMOUNT, AMOUNT), min_size=1, max_size=6)


def plans_of(amounts, priced=True):
    return [
        {"training_days": days, "gpu_hours": hours, "cost_usd": 2 * hours if priced else math.nan}
        for days, hours in amounts
    ]


@given(PLANS, AMOUNT)
def test_a_deadline_takes_the_cheapest_in_time(amounts, deadline):
    plans = plans_of(amounts)
    in_time = [plan for plan in plans if plan["training_days"] <= deadline]
    found = chosen(plans, Goal(deadline))
    assert (found is None) == (not in_time)
    assert found is None or found["cost_usd"] == min(plan["cost_usd"] for plan in in_time)


@given(PLANS, AMOUNT)
def test_a_budget_takes_the_fastest_that_is_paid_for(amounts, budget):
    plans = plans_of(amounts)
    paid_for = [plan for plan in plans if plan["cost_usd"] <= budget]
    found = chosen(plans, Goal(None, budget))
    assert (found is None) == (not paid_for)
    assert found is None or found["training_days"] == min(plan["training_days"] for plan in paid_for)


@given(PLANS, AMOUNT, AMOUNT)
def test_both_are_kept_to(amounts, deadline, budget):
    found = chosen(plans_of(amounts), Goal(deadline, budget))
    assert found is None or (found["training_days"] <= deadline and found["cost_usd"] <= budget)


@given(PLANS)
def test_without_a_goal_it_is_the_cheapest(amounts):
    plans = plans_of(amounts)
    assert chosen(plans, Goal())["cost_usd"] == cheapest(plans)["cost_usd"]
    assert fastest(plans)["training_days"] == min(days for days, _ in amounts)


def test_without_a_price_gpu_hours_are_paid():
    plans = plans_of([(10.0, 5.0), (5.0, 6.0)], priced=False)
    assert price_column(plans) == "gpu_hours"
    assert chosen(plans, Goal(20.0)) is plans[0]


def test_the_days_have_the_interval_of_the_step():
    plan = {"training_days": 40.0, "step_time_s": 2.0, "step_time_s_low": 1.0, "step_time_s_high": 3.0}
    assert days_between(plan) == pytest.approx((20.0, 60.0))
