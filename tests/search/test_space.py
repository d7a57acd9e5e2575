"""Fixing and limiting columns of a space."""

from functools import cache

import numpy as np
import pytest
from laws.spaces import candidates_of, problem_of

from dsx.config.sweep_fields import Limit
from dsx.errors import SpecError
from dsx.plans.choices import CHOICE_COLUMNS, KEY_COLUMNS, SEARCHED_COLUMNS
from dsx.pricing.cuts import candidate_columns
from dsx.search.spaces import Space

SEARCHED = (*KEY_COLUMNS, *CHOICE_COLUMNS)


@cache
def every_row():
    return ids()


def ids(**options):
    problem = problem_of("default")
    space = Space(problem, [12, 24], [24, 36], **options)
    rows = candidate_columns(problem, space.keys, *candidates_of(space))
    assert space.size == len(rows["candidate"])
    return rows


def names(rows, where):
    return set(rows["candidate"][where].tolist())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("column", [column for column in SEARCHED if column not in ("ep", *SEARCHED_COLUMNS)])
def test_fix_keeps_the_values_that_are_named(column):
    rows = every_row()
    for values in ([1], [2], [1, 3], [2, 1000], [0, 24], [12, 36, 6]):
        kept = names(rows, [value in values for value in rows[column].tolist()])
        assert names(ids(fix={column: values}), ...) == kept
    assert ids(fix={column: [1000]})["candidate"].tolist() == []


@pytest.mark.sampled(9)
@pytest.mark.parametrize("column", SEARCHED)
@pytest.mark.parametrize("relation", ["<=", ">=", "<", ">", "=="])
def test_limit_keeps_the_values_within(column, relation):
    rows = every_row()
    holds = {"<=": int.__le__, ">=": int.__ge__, "<": int.__lt__, ">": int.__gt__, "==": int.__eq__}[relation]
    for bound in {2, int(np.median(rows[column]))}:
        kept = names(rows, [holds(value, bound) for value in rows[column].tolist()])
        assert names(ids(limit={column: [Limit(relation, bound)]}), ...) == kept


def test_every_column_varies_and_may_be_fixed_and_limited():
    """Otherwise the tests of fixing and limiting would show little. A model without experts has ep = 1."""
    rows = every_row()
    assert {column for column in SEARCHED if len(set(rows[column].tolist())) == 1} == {
        "ep",
        "ep_nvs",
        *SEARCHED_COLUMNS,
    }
    # Fix and limits hold together.
    rows = ids(fix={"tp": [1, 2, 4]}, limit={"tp": [Limit(">=", 2), Limit("<", 4)], "pp": [Limit(">", 1)]})
    assert set(rows["tp"].tolist()) == {2}
    assert 1 not in rows["pp"]
    assert len(rows["pp"]) > 0
    # A column may be fixed to the value that it has.
    assert names(ids(fix={"zero_stage": [1], "recompute": ["none"], "vpp": [1], "ep": [1]}), ...) == names(
        every_row(), ...
    )


def test_fix_varies_fixed_choices_of_an_assumption_set():
    fix = {"zero_stage": [1, 3], "recompute": ["none", "full"], "schedule": ["1f1b", "gpipe"], "vpp": [1, 2]}
    fix |= {"zero_replicas": [1, 2], "stored_layers": [0, 3], "offload": ["none", "both"]}
    problem = problem_of("default")
    space = Space(problem.searching(fix), [24], [48, 96], fix)
    positions, choices = space.blocks.rows(0, space.size)
    assert len(positions) > 0
    assert {name: sorted(set(choices[name].tolist())) for name in fix} == {
        "zero_stage": [1, 3], "recompute": [0, 2], "schedule": [0, 1], "vpp": [1, 2],
        "zero_replicas": [1, 2], "stored_layers": [0, 3], "offload": [0, 3],
    }  # fmt: skip
    one = Space(problem, [24], [48, 96])
    both = Space(problem.searching({"zero_stage": [1, 3]}), [24], [48, 96])
    assert both.size == 2 * one.size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fix": {"zero_stage": [1, 3]}}, "fix: zero_stage = 3 is not a choice of this problem"),
        ({"fix": {"schedule": ["zb-h3"]}}, "schedule = 'zb-h3' is not known; did you mean 'zb-h"),
        ({"fix": {"ep": [2]}}, "fix: ep = 2 is not a choice of this problem"),
        ({"fix": {"tp": [2, "many"]}}, "fix: tp = 'many' must be a whole number"),
        ({"fix": {"sequence_length": [2048]}}, "fix: 'sequence_length' is not a searched choice"),
        ({"limit": {"sequence_length": [Limit("<=", 1)]}}, "limit: 'sequence_length' is not a searched choice"),
    ],
)
def test_what_cannot_be_fixed_or_limited(options, message):
    with pytest.raises(SpecError) as caught:
        Space(problem_of("default"), [8], [8], **options)
    assert message in str(caught.value)
