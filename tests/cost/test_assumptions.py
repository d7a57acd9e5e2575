"""The record of an assumption set follows from its spec."""

import math

import jax
import pytest

from dsx.config.assumption_set import AssumptionsSpec, EffectsSpec, load_assumptions
from dsx.cost.context import Assumptions, alternatives, assumptions_from_spec, kernel_effect
from dsx.records import leaves

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
    of_stack = kernel_effect(spec.effects, spec.stack, None)
    stated = [getattr(spec, field) for field in leaves(Assumptions)]
    stated[leaves(Assumptions).index("kernel_slowdown")] *= of_stack
    assert found == [
        alternatives(field).index(value) if isinstance(value, str) else value
        for field, value in zip(leaves(Assumptions), stated, strict=True)
    ]
    assert {type(leaf) for leaf in found} == {float}


def test_words_effects_and_structure_of_a_set():
    effects = EffectsSpec(stack={"known": 0.1}, generation={"hopper": -0.3})
    spec = SETS["default"].model_copy(update={"effects": effects, "kernel_slowdown": 2.0, "stack": "known"})
    assert assumptions_from_spec(spec, "hopper").kernel_slowdown == pytest.approx(2.0 * math.exp(-0.2))
    assert assumptions_from_spec(spec, "volta").kernel_slowdown == pytest.approx(2.0 * math.exp(0.1))
    other = spec.model_copy(update={"stack": "unknown"})
    assert assumptions_from_spec(other).kernel_slowdown == 2.0
    # What is no leaf is structure that can be hashed.
    spec = SETS["default"].model_copy(update={"tiles": [(128, 256)]})
    record = assumptions_from_spec(spec)
    assert (record.tiles, record.protocols) == (((128, 256),), tuple(spec.protocols))
    assert dict(record.algorithms)["all-gather"] == tuple(spec.algorithms.all_gather)
    for name in {*Assumptions.__dataclass_fields__}.difference(leaves(Assumptions)):
        hash(getattr(record, name))
    # A word is its position among the alternatives.
    spec = SETS["uncalibrated"]
    words = {name: spec.model_copy(update={"dispatcher": name}) for name in alternatives("dispatcher")}
    found = {name: assumptions_from_spec(one).dispatcher for name, one in words.items()}
    assert found == {"once_per_copy": 0.0, "once_per_domain": 1.0}
