"""Features of plans, and values of recomputation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.errors import SpecError
from dsx.plans.choices import BY_NAME, CHOICES, CODES, FULL_CODE, PLAN_COLUMNS, VALUES, regions_of, value_of
from dsx.plans.enumerate import candidate_ids
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
    uneven_of,
)
from dsx.plans.layer_layout import listed
from dsx.plans.placement import ORDERS, axes_in
from dsx.plans.plan import Plan, Setting, fixed_settings
from dsx.plans.rules import Limits

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
        ({"pp": 4, "pp_nvs": 4, "stage_layers": (9, 8, 8, 9)}, ("pp",)),
        ({"pp": 4, "pp_nvs": 4, "stage_layers": (10, 8, 8, 8)}, ("pp", UNEVEN)),
    ],
)
def test_what_counts(settings, features):
    assert tuple(features_of(Plan({**PLAIN, **settings}))) == features


def costs(**settings):
    return sum(features_of(Plan({**PLAIN, **settings})).values())


def test_costs_of_features_are_of_choices_and_have_reasons():
    """Each costs more than a pipeline of virtual stages with tp in a node and recomputation."""
    usual = costs(tp=8, tp_nvs=8, pp=8, vpp=4, recompute="full")
    assert costs(tp=16, tp_nvs=8) > usual and costs(offload="activations", dp=1024) > usual
    assert costs(pp=8) < costs(pp=8, stage_layers=(5, 4, 4, 4, 4, 3, 4, 4)) and costs(pp=8) < costs(offload="optimizer")
    assert costs(recompute="full") < costs(recompute="norms+experts")
    # Every cost has a reason and is of a choice.
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
    assert is_uneven(listed(layers)) == uneven


def test_bounds_of_costs_and_sets_of_regions():
    for length in range(2, 12):
        for ends in np.ndindex(*(2,) * (length - 1)):
            sizes = np.diff([0, *(np.flatnonzero(ends) + 1), length])
            if must_be_uneven(len(sizes), 1, length):
                assert is_uneven(sizes.tolist())
    # Of many rows as of one; after its last chunk a row has zeros.
    rows = np.random.default_rng(0).integers(1, 4, (200, 5)) * (np.arange(5) < np.arange(200)[:, None] % 5 + 1)
    assert uneven_of(rows).tolist() == [is_uneven([*filter(None, row)]) for row in rows.tolist()]
    # The least cost of values is a bound.
    offload, replicas = BY_NAME["offload"], BY_NAME["zero_replicas"]
    assert least_costs(offload, (0, 1)) == (0, 4) and least_costs(offload, (1, 2)) == (4, 4)
    assert least_costs(replicas, ()) == (0, 2) and least_costs(replicas, (1,)) == (0, np.inf)
    # Seven regions: two to the fourth sets of the independent ones, times five of experts and their two parts.
    sets = [regions_of(code) for code in range(len(VALUES)) if code != FULL_CODE]
    assert len(set(sets)) == len(sets) == 2**4 * 5
    assert regions_of(FULL_CODE) is None
    assert VALUES[:3] == ("none", "selective", "full")
    assert len(VALUES) <= 128  # codes of a result set have eight bits


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
    named = [features_of(Plan({**PLAIN, **plan})) for plan in some]
    assert costs.tolist() == [sum(one.values()) for one in named]
    assert [PLACEMENT in one for one in named] == [off_rank_order({**PLAIN, **plan}) for plan in some]


# Ids of a plan before regions had names of their own, under none, selective and full.
IDS = {"none": 3952044016793229837, "selective": 2420509336676708417, "full": 3793218349042827189}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("norms", "norms"),
        ("feed-forward+norms", "norms+feed-forward"),
        ("core-attention", "selective"),
        ("selective", "selective"),
        ("norms+core-attention", "core-attention+norms"),
    ],
)
def test_regions_may_be_in_any_order(text, value):
    assert value_of(text) == value
    assert BY_NAME["recompute"].code(text) == VALUES.index(value)
    assert fixed_settings([Setting.of(f"recompute=full,{text}")], 8, Limits(4, 8)) == {"recompute": ["full", value]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("norm", ["recompute = 'norm' is not known; did you mean 'norms'?", "none, selective, full"]),
        ("moe_act", ["did you mean 'expert-activation'?"]),
        ("norms+mlp", ["'norms+mlp': 'mlp' is not known; did you mean 'feed-forward'?"]),
        ("norms+norms", ["'norms' is there twice"]),
        ("full+norms", ["'full' stands alone", "core-attention"]),
        ("experts+expert-activation", ["'expert-activation' is a part of 'experts'", "leave it out"]),
        ("norms+", ["'' is not known"]),
    ],
)
def test_what_is_no_value(text, words):
    with pytest.raises(SpecError) as caught:
        BY_NAME["recompute"].code(text)
    for word in words:
        assert word in str(caught.value)


def test_plans_without_regions_keep_their_ids():
    columns = {
        choice.name: np.zeros(1, dtype=np.int64) + (not choice.names and choice.name != "strategy")
        for choice in CHOICES
    }
    names = {"strategy": ("1d",), **CODES}
    found = {
        value: int(candidate_ids(columns | {"recompute": np.array([code])}, names)[0])
        for code, value in enumerate(VALUES)
    }
    assert {value: found[value] for value in IDS} == IDS
    assert len(set(found.values())) == len(VALUES)
