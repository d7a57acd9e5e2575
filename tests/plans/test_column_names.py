"""A column has one name; under the names that it has elsewhere it is recognised, and refused with its own."""

import pytest

from dsx.config.sweep_fields import column_limits
from dsx.errors import InputError
from dsx.plans.choices import BY_NAME, CHOICES, column_called, nearest_column
from dsx.plans.plan import Plan
from dsx.results.set_columns import MENTIONED
from dsx.runs.table import IN_PLANS


def test_no_name_means_two_columns():
    words = [word for choice in CHOICES for word in (choice.name, *choice.also_called)]
    assert len(words) == len({*words}) and all(word == word.lower().replace("-", "_") for word in words)
    assert {column_called(name) for name in IN_PLANS.values()} == {*IN_PLANS}


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
def test_a_column_is_recognised_in_any_case(choice):
    for word in (choice.name, *choice.also_called):
        for written in (word, word.upper(), f"--{word.replace('_', '-')}"):
            assert column_called(written) == choice.name
            assert nearest_column(written, BY_NAME) == f"; did you mean {choice.name!r}?"


def test_what_cannot_be_meant_is_not_advised():
    assert column_called("hidden") is None
    assert nearest_column("mbs", ["tp", "pp"]) == "" and nearest_column("ppp", ["tp", "pp"]) == "; did you mean 'pp'?"


def test_all_that_read_columns_advise_alike():
    with pytest.raises(InputError, match=r"unknown candidate column 'mbs'; did you mean 'microbatch_size'\?"):
        column_limits("mbs<=4", MENTIONED, "limit")
    with pytest.raises(InputError, match=r"unknown setting 'MBS'; did you mean 'microbatch_size'\?"):
        Plan({}) | {"MBS": 4}
