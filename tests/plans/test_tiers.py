"""The placement of ranks on tiers, against ranks that are numbered one by one."""

from collections import Counter
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsx.config.cluster_file import Network, Tier
from dsx.plans.placement import (
    ORDERS,
    Replica,
    axes_in,
    choice_shares,
    distinct_order,
    key_shares,
    replica_of,
    shares_on_tiers,
    straddling,
)

AXES = ("tp", "tp2", "cp", "pp", "dp")
degrees = st.sampled_from([1, 2, 3, 4, 6, 8])
shares = st.sampled_from([1, 2, 3])
unit_sizes = st.sampled_from([2, 3, 4, 6, 8, 12, 24, 48])


def made(beyond, inside, order=0, ep=1, ep_nvs=1):
    """A plan of `beyond` domains and `inside` members of each along each axis."""
    plan = {axis: outer * inner for axis, outer, inner in zip(AXES, beyond, inside, strict=True)}
    plan |= {f"{axis}_nvs": inner for axis, inner in zip(AXES, inside, strict=True)}
    return plan | {"order": order, "ep": ep, "ep_nvs": ep_nvs}


def on_units(plan, unit):
    found = key_shares(plan, unit, ()) | choice_shares(plan, replica_of(plan), unit)
    return {axis: int(share) for axis, share in found.items()}


def numbered(plan, unit):
    """For each axis, how many members of its groups are in each unit: domains numbered one by one."""
    order = axes_in(ORDERS[plan["order"]])
    counts = [plan[axis] // plan[f"{axis}_nvs"] for axis in order]
    found = {axis: set() for axis in order}
    groups = {axis: {} for axis in order}
    # The first axis changes fastest.
    for number, place in enumerate(product(*(range(count) for count in reversed(counts)))):
        at = dict(zip(reversed(order), place, strict=True))
        for axis in order:
            others = tuple(value for name, value in at.items() if name != axis)
            groups[axis].setdefault(others, []).append(number // unit)
    for axis in order:
        for members in groups[axis].values():
            found[axis] |= {*Counter(members).values()}
    return found


@given(st.tuples(*[degrees] * 5), st.tuples(*[shares] * 5), unit_sizes, st.sampled_from([0, 1]))
def test_shares_are_those_of_ranks_that_are_numbered(beyond, inside, unit, order):
    assume(prod(beyond) <= 2048)
    plan = made(beyond, inside, order)
    network = Network(tiers=(Tier(1, 1, "nvs", 8), Tier(1, 1, "leaf", 8 * unit), Tier(1, 1, "spine", 0)))
    uneven = {axis for axis, _ in straddling(plan, network)}
    found, true = on_units(plan, unit), numbered(plan, unit)
    for axis in AXES:
        assert plan[axis] % found[axis] == 0 == found[axis] % plan[f"{axis}_nvs"]
        if axis not in uneven:
            assert true[axis] == {found[axis] // plan[f"{axis}_nvs"]}, axis
        # A group that straddles units never counts as better than its best unit.
        assert found[axis] // plan[f"{axis}_nvs"] <= max(true[axis])
    domains = prod(found[axis] // plan[f"{axis}_nvs"] for axis in AXES)
    assert domains <= unit


@given(
    st.tuples(*[degrees] * 5), st.tuples(*[shares] * 5), unit_sizes, st.sampled_from([2, 3]), st.sampled_from([0, 1])
)
def test_an_outer_tier_holds_whole_units_of_the_inner_one(beyond, inside, unit, times, order):
    plan = made(beyond, inside, order)
    near, far = on_units(plan, unit), on_units(plan, times * unit)
    assert all(far[axis] % near[axis] == 0 for axis in near)


@pytest.mark.parametrize(
    ("ep", "ep_nvs", "unit", "share"),
    [
        (16, 4, 4, 16),  # four of each domain, which the next four hold
        (16, 4, 2, 8),
        (64, 4, 8, 32),
        (8, 8, 4, 8),  # all in a domain
        (12, 4, 4, 4),  # three domains do not divide four: as many as any unit has
    ],
)
def test_experts_nest_in_consecutive_ranks(ep, ep_nvs, unit, share):
    plan = made((1, 1, 2, 2, 48), (2, 1, 2, 1, 2), ep=ep, ep_nvs=ep_nvs)
    assert key_shares(plan, unit, ())["ep"] == share


@pytest.mark.parametrize("order", [0, 1])
def test_a_job_that_fits_into_a_unit_has_all_its_stages_and_replicas_there(order):
    """Nine stages of two replicas each: eighteen domains, which divide no unit."""
    plan = made((1, 1, 1, 9, 2), (8, 1, 1, 1, 1), order)
    assert on_units(plan, 32)["pp"] == 9
    assert on_units(plan, 18) == on_units(plan, 32)
    assert on_units(plan, 16)["pp"] == 1
    network = Network(tiers=(Tier(1, 1, "nvs", 8), Tier(1, 1, "leaf", 8 * 32), Tier(1, 1, "spine", 0)))
    assert straddling(plan, network) == []


def test_a_search_tries_no_order_that_changes_nothing():
    plans = {
        "pp": np.array([4, 4, 1, 4, 4, 2]),
        "dp": np.array([8, 8, 8, 8, 8, 4]),
        "pp_nvs": np.array([1, 1, 1, 4, 1, 1]),
        "dp_nvs": np.array([2, 2, 2, 2, 8, 2]),
        "order": np.array([0, 1, 1, 1, 1, 1]),  # the last has four domains, which share the unit
    }
    assert distinct_order(plans, (0, 1), Replica(1, 1, True), (4,)).tolist() == [True, True, False, False, False, False]
    assert distinct_order(plans, (0, 1), Replica(1, 1, True), (2,)).tolist() == [True, True, False, False, False, True]
    assert distinct_order(plans, (0, 1), Replica(4, 1, True), (4,)).tolist() == [True] + 5 * [
        False
    ]  # a stage fills the unit
    assert distinct_order(plans, (0, 1), Replica(1, 1, True), ()).tolist() == [True] + 5 * [False]  # two tiers
    assert distinct_order(plans | {"order": np.ones(6, dtype=int)}, (1,), Replica(1, 1, True), (4,)).all()


def test_the_columns_of_a_plan():
    tiers = (Tier(1, 1, "nvs", 8), Tier(1, 1, "leaf", 32), Tier(1, 1, "pod", 128), Tier(1, 1, "core", 0))
    plan = made((1, 1, 1, 4, 8), (8, 1, 1, 1, 1))
    assert shares_on_tiers(plan, Network(tiers=tiers), ()) == {
        "tp_leaf": 8, "tp2_leaf": 1, "cp_leaf": 1, "ep_leaf": 1, "pp_leaf": 1, "dp_leaf": 4, "tp_pod": 8,
        "tp2_pod": 1, "cp_pod": 1, "ep_pod": 1, "pp_pod": 2, "dp_pod": 8,
    }  # fmt: skip
    other = shares_on_tiers(plan | {"order": 1}, Network(tiers=tiers), ())
    assert (other["pp_leaf"], other["dp_leaf"], other["pp_pod"], other["dp_pod"]) == (4, 1, 4, 4)
    assert shares_on_tiers(plan, Network(tiers=tiers[:2]), ()) == {}


def test_groups_that_straddle_units_are_named():
    tiers = (Tier(1, 1, "nvs", 8), Tier(1, 1, "leaf", 32), Tier(1, 1, "spine", 0))
    assert straddling(made((1, 1, 1, 1, 6), (8, 1, 1, 1, 1)), Network(tiers=tiers)) == [("dp", "leaf")]
    assert straddling(made((3, 1, 1, 1, 4), (8, 1, 1, 1, 1)), Network(tiers=tiers)) == [("tp", "leaf"), ("dp", "leaf")]
    assert straddling(made((2, 1, 1, 4, 8), (8, 1, 1, 1, 1)), Network(tiers=tiers)) == []
