"""Conditions of effects: how a file states them, and which plans meet them."""

import numpy as np
import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.stack import stack_names
from dsx.errors import SpecError
from dsx.plans.choices import BY_NAME, PLAN_COLUMNS
from dsx.plans.frameworks import read_framework
from dsx.plans.violations import conditions_of, for_plan, on_platform

PLAN = {name: BY_NAME[name].default_code for name in PLAN_COLUMNS if name != "strategy"}


def stated(needs, field="ep_overlap", value=0.5, otherwise=0.1):
    """The default set with one effect of which all needs are stated here."""
    effect = {"value": value, "needs": needs, "otherwise": otherwise, "source": "a test"}
    return load_assumptions({"extends": "default", field: effect})


def effect(needs, **plan):
    codes = PLAN | {name: BY_NAME[name].code(value) for name, value in plan.items()}
    return for_plan(stated(needs), codes).ep_overlap


@pytest.mark.parametrize(
    ("need", "met", "unmet"),
    [
        ("num_microbatches >= 2", {"num_microbatches": 2}, {"num_microbatches": 1}),
        ("pp == 1 or vpp > 1", {"pp": 4, "vpp": 2}, {"pp": 4}),
        ("recompute != full", {"recompute": "selective"}, {"recompute": "full"}),
        ("recompute without full experts", {"recompute": "norms"}, {"recompute": "norms+experts"}),
        ("offload == none", {}, {"offload": "both"}),
        ("dp_nvs == dp", {"dp": 8, "dp_nvs": 8}, {"dp": 8, "dp_nvs": 4}),
    ],
)
def test_a_plan_has_an_effect_whose_needs_it_meets(need, met, unmet):
    assert effect([need], **met) == 0.5
    assert effect([need], **unmet) == 0.1
    assert effect([need, "zero_stage <= 1"], **met, zero_stage=3) == 0.1


def test_conditions_hold_elementwise():
    (condition,) = [one for one in conditions_of(stated(["pp == 1 or vpp > 1"])) if one.field == "ep_overlap"]
    assert condition.holds({"pp": np.array([1, 4, 4]), "vpp": np.array([1, 1, 2])}).tolist() == [True, False, True]


def test_the_platform_decides_for_all_plans():
    spec = stated(["tp_nvs == tp", "platform == cuda"], "tp_overlap")
    assert on_platform(spec, "rocm").tp_overlap == 0.1
    assert on_platform(spec, "cuda").tp_overlap == 0.5
    assert "tp_overlap" not in on_platform(spec, "rocm").conditions.stated
    (need,) = on_platform(spec, "cuda").conditions.stated["tp_overlap"].needs
    assert [str(comparison) for comparison in need] == ["tp_nvs == tp"]


def test_an_effect_never_makes_a_plan_slower():
    """A value that is worse than without the effect stays."""
    assert for_plan(stated(["zero_stage <= 1"], value=0.2, otherwise=0.6), PLAN | {"zero_stage": 3}).ep_overlap == 0.2
    slow = stated(["zero_stage <= 1"], "dispatch_latency", "50 us", "20 us")
    assert for_plan(slow, PLAN | {"zero_stage": 3}).dispatch_latency == 50e-6


def test_a_value_that_somebody_states_holds_for_every_plan():
    spec = load_assumptions("default", [("dispatch_latency", "3 us")])
    assert for_plan(spec, PLAN | {"zero_stage": 3}).dispatch_latency == 3e-6
    assert "ep_overlap" not in spec.model_copy(update={"ep_overlap": 0.7}).conditions.stated


def test_conditions_survive_the_file_of_a_result_set():
    spec = load_assumptions("default")
    assert load_assumptions(spec.model_dump(mode="json")).conditions == spec.conditions
    assert {*spec.conditions.stated} == {"tp_overlap", "ep_overlap", "pp_overlap", "dispatch_latency"}


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        (["zero <= 1"], "unknown column 'zero'"),
        (["zero_stage = 1"], "'zero_stage = 1' is no comparison"),
        (["recompute without norm"], "recompute has no 'norm'; did you mean 'norms'"),
        (["recompute == norm"], "did you mean"),
        (["pp <= many"], "expected a whole number or a column"),
        (["tp_nvs == tp", "pp == 1"], "either degrees and shares"),
        (["platform == cud"], "platform has no 'cud'; did you mean 'cuda'"),
        (["platform < cuda"], "compared with == or !="),
        ([], "has no entries"),
    ],
)
def test_needs_that_say_nothing_are_refused(needs, message):
    with pytest.raises(SpecError, match=message):
        conditions_of(stated(needs))


@pytest.mark.parametrize("need", ["vpq > 1", "vpp >> 1", "vpp > 1, tp > 2", "schedule == 2f2b", "platform == cud"])
@pytest.mark.parametrize("kind", ["framework", "stack", "set"])
def test_a_malformed_need_is_said_with_its_file_and_line(tmp_path, kind, need):
    file = tmp_path / "own.yaml"
    head = "name: own\ndescription: a test\nsource: a test\n"
    condition = f"{{needs: [{need}], otherwise: 0}}"
    value = f"{{value: 0.5, source: a test, needs: [{need}], otherwise: 0}}"
    with pytest.raises(SpecError, match=r"own\.yaml:5: conditions\.pp_overlap\.needs"):
        if kind == "framework":
            file.write_text(f"{head}assume:\n  conditions: {{pp_overlap: {condition}}}\nruns: [{{}}]\n")
            conditions_of(load_assumptions("default").run_by(read_framework(str(file))))
        elif kind == "stack":
            file.write_text(f"{head}assume:\n  pp_overlap: {value}\nsoftware: {{since: 2023}}\n")
            conditions_of(load_assumptions("default", [("stack", str(file))]))
        else:
            file.write_text(f"{head}extends: default\npp_overlap: {value}\n")
            conditions_of(load_assumptions(str(file)))


def test_a_field_without_conditions_says_so():
    with pytest.raises(SpecError, match="fsdp_overlap"):
        stated(["pp == 1"], "fsdp_overlap")


def test_the_needs_of_packaged_stacks_are_known_columns():
    for name in stack_names():
        conditions_of(load_assumptions("default", [("stack", name)]))


def test_what_a_framework_needs_holds_for_the_value_of_its_stack_alone():
    needs = {"tp_overlap": {"needs": ["tp == 1"], "otherwise": 0}, "pp_overlap": {"needs": ["vpp > 1"], "otherwise": 0}}
    named = {"name": "own", "description": "a test", "source": "a test", "runs": [{}], "assume": {"conditions": needs}}
    framework = read_framework(named)
    spec = load_assumptions("default").run_by(framework)
    assert spec.conditions.stated["tp_overlap"].text == "tp == 1"  # not what the stack needs
    stated = load_assumptions("default", [("pp_overlap", "0.7")]).run_by(framework)
    assert for_plan(stated, PLAN | {"pp": 4}).pp_overlap == 0.7


def test_a_section_of_conditions_is_read_as_any_other():
    with pytest.raises(SpecError, match="conditions: expected a section"):
        load_assumptions({"extends": "default", "conditions": 3})
    with pytest.raises(SpecError, match=r"^assumptions: conditions.tp_overlap: expected a section"):
        load_assumptions({"extends": "default", "conditions": {"tp_overlap": 4}})


def test_alternatives_are_in_brackets_beside_other_needs():
    text = stated(["num_microbatches >= 2", "pp == 1 or vpp > 1"]).conditions.stated["ep_overlap"].text
    assert text == "num_microbatches >= 2 and (pp == 1 or vpp > 1)"
    assert stated(["pp == 1 or vpp > 1"]).conditions.stated["ep_overlap"].text == "pp == 1 or vpp > 1"
