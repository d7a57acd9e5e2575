"""Overlaps of a step, which conditions give to some plans only."""

from types import SimpleNamespace

import numpy as np
import pytest
from cost.records import WORKLOAD, machine

from dsx.config.assumption_set import load_assumptions
from dsx.cost.context import StepPlans, assumptions_from_spec
from dsx.plans.enumerate import SearchedCodes
from dsx.schedules.schedules import SCHEDULES

DEFAULT = assumptions_from_spec(load_assumptions("default"))
CODES = {schedule.name: code for code, schedule in enumerate(SCHEDULES)}


@pytest.mark.parametrize(
    ("vpp", "schedules", "known"),
    [((1,), ("1f1b",), True), ((1, 2), ("1f1b",), False), ((1,), ("1f1b", "gpipe"), False)],
)
def test_an_overlap_that_no_plan_of_a_search_can_have_is_known_to_be_none(vpp, schedules, known):
    searched = SearchedCodes(vpp=vpp, schedule=tuple(CODES[name] for name in schedules))
    plans = np.array([[chunks, code] for chunks in vpp for code in searched.schedule], dtype=float).T
    chosen = SimpleNamespace(vpp=plans[0], schedule=plans[1])
    found = StepPlans(chosen, searched, WORKLOAD.stack, machine(), DEFAULT).overlap("pp_overlap")
    expected = np.where((plans[0] > 1) | (plans[1] != CODES["1f1b"]), DEFAULT.pp_overlap, 0.0)
    assert np.broadcast_to(found, expected.shape).tolist() == expected.tolist()
    assert isinstance(found, float) == known
