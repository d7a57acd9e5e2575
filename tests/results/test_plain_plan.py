"""The plain plan fills the NVLink domain with tensor parallelism, and has as few stages as fit."""

import pandas as pd

from dsx.plans.choices import BY_NAME
from dsx.results.frames import PLAIN_PLAN_COLUMNS, plain_plan


def rows(*plans):
    """Plans with the defaults of all choices but those given; feasible, and the slower the later."""
    plain = {name: BY_NAME[name].default for name in PLAIN_PLAN_COLUMNS}
    return pd.DataFrame(
        [
            plain | {"tp_nvs": plan.get("tp", 1), "step_time_s": 1.0 + i, "reject": 0} | plan
            for i, plan in enumerate(plans)
        ]
    )


def test_the_largest_tp_of_a_domain_with_the_fewest_stages():
    assert plain_plan(rows({"tp": 4}, {"tp": 8, "pp": 4}, {"tp": 8, "pp": 2}, {"tp": 16, "tp_nvs": 8})) == 2
    assert plain_plan(rows({"tp": 8, "pp": 2}, {"tp": 8, "reject": 1})) == 0


def test_all_else_is_as_it_is_by_default():
    other = [
        {"cp": 2},
        {"vpp": 2},
        {"recompute": "full"},
        {"microbatch_size": 2},
        {"zero_stage": 3},
        {"offload": "both"},
    ]
    assert plain_plan(rows(*({"tp": 8} | one for one in other))) is None
    assert plain_plan(rows(*({"tp": 8} | one for one in other), {"tp": 1})) == len(other)


def test_a_frame_without_the_columns_has_none():
    assert plain_plan(rows({"tp": 8}).drop(columns="schedule")) is None
    assert plain_plan(rows({"tp": 8})[:0]) is None
