"""The margin of memory is a share, in every form that people state it."""

import pytest

from dsx.errors import InputError
from dsx.spec.memory_margin import FIELD, margin_setting


@pytest.mark.parametrize("margin", [0.1, "0.1"])
def test_a_share_sets_the_field_of_the_assumption_set(margin):
    assert margin_setting(margin, "") == {FIELD: 0.1}
    assert margin_setting(None, "") == {}


@pytest.mark.parametrize("margin", [-0.1, 1.1, "ten", True, float("nan"), [0.1]])
def test_anything_else_is_refused(margin):
    with pytest.raises(InputError, match=r"^memory_margin: a share from 0 to 1 is wanted"):
        margin_setting(margin, "memory_margin")
