"""Rules of strategies: which keys they allow, how they are named, and which do not apply."""

import numpy as np
import pytest
from plans.texts import EXPERTS, ONE_AXIS, PANELS, TWO_AXES, layer

from dsx.errors import NotationError
from dsx.plans.violations import allowed, applies, divided_away, rule_text, rule_values, strategy_reasons

DIMS = {"e": 8, "f": 16}


def keys(**columns):
    count = max(len(column) for column in columns.values())
    table = {name: np.ones(count, dtype=np.int64) for name in ("tp", "tp2", "cp", "ep", "panels", "microbatch_size")}
    return table | {name: np.array(column) for name, column in columns.items()}


def test_what_rules_allow():
    # 3 does not divide f; 8 leaves two columns.
    assert allowed(layer(ONE_AXIS), DIMS, 16, keys(tp=[1, 2, 3, 4, 8])).tolist() == [True, True, False, True, False]
    # Allowed depends on the microbatch.
    table = keys(tp=[4, 4, 4], microbatch_size=[1, 2, 4])
    assert allowed(layer(ONE_AXIS), DIMS, 6, table).tolist() == [False, True, True]
    # Panels.
    table = keys(panels=[1, 2, 3, 4, 8])
    assert allowed(layer(PANELS), DIMS, 16, table).tolist() == [True, True, False, True, False]
    # Divided away.
    made = layer(TWO_AXES)
    values = rule_values(made, DIMS, 16, keys(tp=[16, 32, 1], cp=[16, 1, 32]))
    assert divided_away(made, values).tolist() == [False, True, True]


def test_rules_apply_where_the_model_has_their_dimensions():
    made = layer(EXPERTS)
    (rule,) = made.rules
    assert not applies(rule, rule_values(made, DIMS, 16, keys(tp=[2])))
    values = rule_values(made, DIMS | {"x": 6}, 16, keys(tp=[2, 3, 4]))
    assert applies(rule, values)
    assert rule.holds(values).tolist() == [True, True, False]
    # A misspelt dimension is an error and not a rule that is dropped.
    made = layer(EXPERTS.replace("x % tp", "ff % tp"))
    with pytest.raises(NotationError, match=r"strategy\.layer:\d+:\d+: the rule uses 'ff'.*did you mean 'f'"):
        allowed(made, DIMS, 16, keys(tp=[1]))


@pytest.mark.parametrize("axis", ["pp", "dp"])
def test_a_strategy_cannot_limit_an_axis_outside_the_key(axis):
    made = layer(ONE_AXIS.replace("require f / tp >= 4   too_narrow", f"require {axis} <= 4 too_many"))
    with pytest.raises(
        NotationError, match=rf"strategy\.layer:\d+:\d+: .*cannot limit '{axis}'; use 'limit:' of a sweep"
    ):
        allowed(made, DIMS, 16, keys(tp=[1]))


def test_reasons_and_rules_as_text():
    twice = ONE_AXIS.replace("too_narrow", "width_not_divisible")
    assert [(reason.name, reason.description) for reason in strategy_reasons(layer(twice))] == [
        ("width_not_divisible", "f % tp == 0 and f / tp >= 4"),
        ("tokens_not_divisible", "b * s % tp == 0"),
    ]
    # Rules are written as in the strategy.
    assert [rule_text(rule) for rule in layer(ONE_AXIS).rules] == ["f % tp == 0", "f / tp >= 4", "b * s % tp == 0"]
