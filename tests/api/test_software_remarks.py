"""A framework whose plans are priced with the software of another one is said, with the stack that is its own."""

import pytest

from dsx.api.software_remarks import other_software, warn_of_unknown
from dsx.spec.assumptions import load_assumptions


def said(framework, *changes):
    return other_software(framework, load_assumptions("default", changes))


@pytest.mark.parametrize(("framework", "own"), [("torchtitan", "torchtitan-2025"), ("deepspeed", "deepspeed-2023")])
def test_the_own_stack_of_a_framework_is_named(framework, own):
    (remark,) = said(framework)
    assert remark.startswith(f"plans of {framework} are priced with the software of megatron-bridge-2026: ")
    assert remark.endswith(f"--set assumptions.stack={own} prices its own")
    assert said(framework, ("stack", own)) == []


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "any", "zero-bubble"])
def test_nothing_is_said_of_the_same_software_and_of_none(framework):
    assert said(framework) == []


def test_a_set_without_software_prices_every_framework_alike():
    assert other_software("torchtitan", load_assumptions("paper-2410.00273")) == []


def test_a_few_names_of_unknown_software_are_said(caplog):
    warn_of_unknown({f"software {number}": number for number in range(5, 0, -1)})
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "software 5 (5 rows)"
    assert lines[3:] == ["and 2 more names of software are not known (3 rows)"]
