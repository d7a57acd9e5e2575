"""The record of an assumption set follows from its spec."""

import jax
import pytest

from dsx.cost.assumptions import Assumptions, alternatives, assumptions_from_spec
from dsx.records import leaves
from dsx.spec.assumptions import AssumptionsSpec, load_assumptions

SETS = {name: load_assumptions(name) for name in ("default", "uncalibrated", "paper-2410.00273")}


def test_each_leaf_is_a_number_of_the_spec_and_each_number_that_prices_a_plan_a_leaf():
    fields = AssumptionsSpec.model_fields
    words = {name for name in leaves(Assumptions) if isinstance(getattr(SETS["default"], name), str)}
    assert {fields[name].annotation for name in {*leaves(Assumptions)} - words} == {float, int}
    real = [name for name, info in fields.items() if info.annotation is float]
    assert {*real} <= {*leaves(Assumptions)}


@pytest.mark.parametrize("name", SETS)
def test_a_leaf_is_the_float_that_the_spec_states(name):
    spec, record = SETS[name], assumptions_from_spec(SETS[name])
    found = jax.tree.leaves(record)
    stated = [getattr(spec, field) for field in leaves(Assumptions)]
    assert found == [
        alternatives(field).index(value) if isinstance(value, str) else value
        for field, value in zip(leaves(Assumptions), stated, strict=True)
    ]
    assert {type(leaf) for leaf in found} == {float}


def test_what_is_no_leaf_is_structure_that_can_be_hashed():
    spec = SETS["default"].model_copy(update={"tiles": [(128, 256)]})
    record = assumptions_from_spec(spec)
    assert (record.tiles, record.protocols) == (((128, 256),), tuple(spec.protocols))
    assert dict(record.algorithms)["all-gather"] == tuple(spec.algorithms.all_gather)
    for name in {*Assumptions.__dataclass_fields__}.difference(leaves(Assumptions)):
        hash(getattr(record, name))


def test_a_word_is_its_position_among_the_alternatives():
    spec = SETS["uncalibrated"]
    words = {name: spec.model_copy(update={"dispatcher": name}) for name in alternatives("dispatcher")}
    found = {name: assumptions_from_spec(one).dispatcher for name, one in words.items()}
    assert found == {"once_per_copy": 0.0, "once_per_domain": 1.0}
