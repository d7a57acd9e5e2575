"""The values of `recompute`: their names, how people may write them, and the ids of plans that have them."""

import numpy as np
import pytest

from dsx.errors import SpecError
from dsx.plans.choices import BY_NAME, CHOICES, CODES, FULL_CODE, VALUES, regions_of, value_of
from dsx.plans.codes import candidate_ids
from dsx.plans.plan import fixed_settings
from dsx.plans.rules import Limits

# Ids of a plan before regions had names of their own, under none, selective and full.
IDS = {"none": 3952044016793229837, "selective": 2420509336676708417, "full": 3793218349042827189}


def test_every_set_of_regions_is_one_value():
    """Seven regions: two to the fourth sets of the independent ones, times five of experts and their two parts."""
    sets = [regions_of(code) for code in range(len(VALUES)) if code != FULL_CODE]
    assert len(set(sets)) == len(sets) == 2**4 * 5
    assert regions_of(FULL_CODE) is None
    assert VALUES[:3] == ("none", "selective", "full")
    assert len(VALUES) <= 128  # codes of a result set have eight bits


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
    assert fixed_settings([f"recompute=full,{text}"], 8, Limits(4, 8)) == {"recompute": ["full", value]}


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
