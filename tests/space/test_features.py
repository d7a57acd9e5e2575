"""The features of a plan: choices off their defaults, and a placement off the rank order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.space.choices import BY_NAME, CHOICES, CODES, PLAN_COLUMNS
from dsx.space.features import PLACEMENT, READ, features_of, num_features, of_choices, of_keys
from dsx.space.tiers import ORDERS, axes_in

PLAIN = {name: BY_NAME[name].default for name in PLAN_COLUMNS}


@pytest.mark.parametrize(
    ("settings", "features"),
    [
        ({}, ()),
        ({"dp": 8, "dp_nvs": 8, "microbatch_size": 2}, ()),
        ({"tp": 8, "tp_nvs": 8, "dp": 4, "zero_stage": 3}, ("tp", "zero_stage")),
        ({"tp": 8, "tp_nvs": 4, "dp": 2, "dp_nvs": 2}, ("tp", PLACEMENT)),  # dp in the domain, tp not wholly
        ({"tp": 16, "tp_nvs": 8, "dp": 2}, ("tp",)),
        ({"tp": 2, "cp": 4, "cp_nvs": 4}, ("tp", "cp", PLACEMENT)),
        ({"pp": 4, "dp": 2, "pp_nvs": 4, "dp_nvs": 2}, ("pp",)),
        ({"pp": 4, "dp": 4, "pp_nvs": 4, "dp_nvs": 2}, ("pp", PLACEMENT)),
        ({"pp": 4, "dp": 4, "pp_nvs": 4, "order": ORDERS[1]}, ("pp", "order")),  # where pp comes first
        ({"ep": 8, "dp": 8, "dp_nvs": 4, "ep_nvs": 4, "recompute": "full"}, ("ep", "recompute")),
    ],
)
def test_what_counts(settings, features):
    assert features_of({**PLAIN, **settings}) == features


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
    counted = num_features(of_keys(codes), of_choices(codes))
    named = [features_of({**PLAIN, **plan}) for plan in some]
    assert counted.tolist() == [*map(len, named)]
    assert [PLACEMENT in one for one in named] == [off_rank_order({**PLAIN, **plan}) for plan in some]
