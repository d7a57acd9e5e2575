"""The features of a plan: choices off their defaults, and a placement off the rank order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.plans.choices import BY_NAME, CHOICES, CODES, PLAN_COLUMNS
from dsx.plans.features import (
    PLACEMENT,
    READ,
    UNEVEN,
    feature_costs,
    features_of,
    is_uneven,
    least_costs,
    must_be_uneven,
    of_choices,
    of_keys,
    total_cost,
)
from dsx.plans.placement import ORDERS, axes_in

PLAIN = {name: BY_NAME[name].default for name in PLAN_COLUMNS}


@pytest.mark.parametrize(
    ("settings", "features"),
    [
        ({}, ()),
        ({"dp": 8, "dp_nvs": 8, "microbatch_size": 2}, ()),
        ({"tp": 8, "tp_nvs": 8, "dp": 4, "zero_stage": 3}, ("tp", "zero_stage")),
        # dp in the domain, tp not wholly
        ({"tp": 8, "tp_nvs": 4, "dp": 2, "dp_nvs": 2}, ("tp", "tp across domains", PLACEMENT)),
        ({"tp": 16, "tp_nvs": 8, "dp": 2}, ("tp", "tp across domains")),
        ({"tp": 2, "cp": 4, "cp_nvs": 4}, ("tp", "tp across domains", "cp", PLACEMENT)),
        ({"pp": 4, "dp": 2, "pp_nvs": 4, "dp_nvs": 2}, ("pp",)),
        ({"pp": 4, "dp": 4, "pp_nvs": 4, "dp_nvs": 2}, ("pp", PLACEMENT)),
        ({"pp": 4, "dp": 4, "pp_nvs": 4, "order": ORDERS[1]}, ("pp", "order")),  # where pp comes first
        ({"ep": 8, "dp": 8, "dp_nvs": 4, "ep_nvs": 4, "recompute": "full"}, ("ep", "ep across domains", "recompute")),
        ({"zero_stage": 0}, ()),
        ({"pp": 4, "pp_nvs": 4, "stage_layers": "9,8,8,9"}, ("pp",)),
        ({"pp": 4, "pp_nvs": 4, "stage_layers": "10,8,8,8"}, ("pp", UNEVEN)),
    ],
)
def test_what_counts(settings, features):
    assert tuple(features_of({**PLAIN, **settings})) == features


def costs(**settings):
    return sum(features_of({**PLAIN, **settings}).values())


def test_an_engineer_pays_for_offload_tp_over_nodes_and_uneven_cuts():
    """Each costs more than a pipeline of virtual stages with tp in a node and recomputation."""
    usual = costs(tp=8, tp_nvs=8, pp=8, vpp=4, recompute="full")
    assert costs(tp=16, tp_nvs=8) > usual and costs(offload="activations", dp=1024) > usual
    assert costs(pp=8) < costs(pp=8, stage_layers="5,4,4,4,4,3,4,4") and costs(pp=8) < costs(offload="optimizer")
    assert costs(recompute="full") < costs(recompute="norms+experts")


def test_every_cost_has_a_reason_and_is_of_a_choice():
    known = {one.name for one in CHOICES} | {PLACEMENT, "stage_layers"}
    for name, cost in feature_costs().items():
        assert name in known and cost.source.startswith("assumption: ")
        if isinstance(cost.cost, dict):
            assert {*cost.cost} <= {*map(str, BY_NAME[name].values), "other"}


@pytest.mark.parametrize(
    ("layers", "uneven"),
    [("34", 0), ("17,17", 0), ("16,18", 1), ("17,16,16,17", 0), ("1,1,1,1", 0), ("8,9,9,8", 1), ("9,8,9,8", 1)],
)
def test_embedding_and_head_make_no_cut_uneven(layers, uneven):
    assert is_uneven(layers) == uneven


def test_no_cut_is_more_even_than_its_bound():
    for length in range(2, 12):
        for ends in np.ndindex(*(2,) * (length - 1)):
            sizes = np.diff([0, *(np.flatnonzero(ends) + 1), length])
            if must_be_uneven(len(sizes), 1, length):
                assert is_uneven(",".join(map(str, sizes)))


def test_the_least_cost_of_values_is_a_bound():
    offload, replicas = BY_NAME["offload"], BY_NAME["zero_replicas"]
    assert least_costs(offload, (0, 1)) == (0, 4) and least_costs(offload, (1, 2)) == (4, 4)
    assert least_costs(replicas, ()) == (0, 2) and least_costs(replicas, (1,)) == (0, np.inf)


def off_rank_order(plan):
    """Walk the axes as ranks are numbered: nobody shares a domain outside a group that is not wholly inside it."""
    whole = True
    for axis in axes_in(plan["order"]):
        if plan[f"{axis}_nvs"] > 1 and not whole:
            return True
        whole = whole and plan[f"{axis}_nvs"] == plan[axis]
    return False


def value(choice):
    return st.sampled_from(choice.values) if choice.values else st.integers(max(choice.least, 1), 4)


plans = st.fixed_dictionaries({one.name: value(one) for one in CHOICES if one.name in READ})


@given(st.lists(plans, min_size=1, max_size=8))
def test_rows_have_the_features_of_their_plans(some):
    codes = {
        name: np.array([BY_NAME[name].code(plan[name]) if name in CODES else plan[name] for plan in some])
        for name in READ
    }
    costs = total_cost(of_keys(codes), of_choices(codes))
    named = [features_of({**PLAIN, **plan}) for plan in some]
    assert costs.tolist() == [sum(one.values()) for one in named]
    assert [PLACEMENT in one for one in named] == [off_rank_order({**PLAIN, **plan}) for plan in some]
