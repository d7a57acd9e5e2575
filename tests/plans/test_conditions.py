"""Conditions on plans, and advice on the names of columns."""

import numpy as np
import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.search_path import names
from dsx.config.sweep_fields import column_limits
from dsx.errors import InputError, SpecError
from dsx.plans.choices import BY_NAME, CHOICES, PLAN_COLUMNS, column_called, nearest_column
from dsx.plans.frameworks import read_framework
from dsx.plans.plan import Plan
from dsx.plans.violations import conditions_of, for_plan, on_platform
from dsx.results.set_columns import MENTIONED
from dsx.runs.table import IN_PLANS

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


def test_conditions_hold_elementwise_for_plans_and_platforms():
    (condition,) = [one for one in conditions_of(stated(["pp == 1 or vpp > 1"])) if one.field == "ep_overlap"]
    assert condition.holds({"pp": np.array([1, 4, 4]), "vpp": np.array([1, 1, 2])}).tolist() == [True, False, True]
    # The platform decides for all plans.
    spec = stated(["tp_nvs == tp", "platform == cuda"], "tp_overlap")
    assert on_platform(spec, "rocm").tp_overlap == 0.1
    assert on_platform(spec, "cuda").tp_overlap == 0.5
    assert "tp_overlap" not in on_platform(spec, "rocm").conditions.stated
    (need,) = on_platform(spec, "cuda").conditions.stated["tp_overlap"].needs
    assert [str(comparison) for comparison in need] == ["tp_nvs == tp"]
    # A value that is worse than without the effect stays.
    assert for_plan(stated(["zero_stage <= 1"], value=0.2, otherwise=0.6), PLAN | {"zero_stage": 3}).ep_overlap == 0.2
    slow = stated(["zero_stage <= 1"], "dispatch_latency", "50 us", "20 us")
    assert for_plan(slow, PLAN | {"zero_stage": 3}).dispatch_latency == 50e-6
    # A value that somebody states holds for every plan.
    spec = load_assumptions("default", [("dispatch_latency", "3 us")])
    assert for_plan(spec, PLAN | {"zero_stage": 3}).dispatch_latency == 3e-6
    assert "ep_overlap" not in spec.model_copy(update={"ep_overlap": 0.7}).conditions.stated
    # Conditions survive the file of a result set.
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


def test_conditions_of_packaged_stacks_and_frameworks():
    with pytest.raises(SpecError, match="fsdp_overlap"):
        stated(["pp == 1"], "fsdp_overlap")
    # The needs of packaged stacks are known columns.
    for name in names("stacks", ".yaml"):
        conditions_of(load_assumptions("default", [("stack", name)]))
    # What a framework needs holds for the value of its stack alone.
    needs = {"tp_overlap": {"needs": ["tp == 1"], "otherwise": 0}, "pp_overlap": {"needs": ["vpp > 1"], "otherwise": 0}}
    named = {"name": "own", "description": "a test", "source": "a test", "runs": [{}], "assume": {"conditions": needs}}
    framework = read_framework(named)
    spec = load_assumptions("default").run_by(framework)
    assert spec.conditions.stated["tp_overlap"].text == "tp == 1"  # not what the stack needs
    chosen = load_assumptions("default", [("pp_overlap", "0.7")]).run_by(framework)
    assert for_plan(chosen, PLAN | {"pp": 4}).pp_overlap == 0.7
    # A section of conditions is read as any other.
    with pytest.raises(SpecError, match="conditions: expected a section"):
        load_assumptions({"extends": "default", "conditions": 3})
    with pytest.raises(SpecError, match=r"^assumptions: conditions.tp_overlap: expected a section"):
        load_assumptions({"extends": "default", "conditions": {"tp_overlap": 4}})
    # Alternatives are in brackets beside other needs.
    text = stated(["num_microbatches >= 2", "pp == 1 or vpp > 1"]).conditions.stated["ep_overlap"].text
    assert text == "num_microbatches >= 2 and (pp == 1 or vpp > 1)"
    assert stated(["pp == 1 or vpp > 1"]).conditions.stated["ep_overlap"].text == "pp == 1 or vpp > 1"


def test_column_names_mean_one_column_and_are_advised_alike():
    words = [word for choice in CHOICES for word in (choice.name, *choice.also_called)]
    assert len(words) == len({*words}) and all(word == word.lower().replace("-", "_") for word in words)
    assert {column_called(name) for name in IN_PLANS.values()} == {*IN_PLANS}
    # All that read columns advise alike and not what cannot be meant.
    assert column_called("hidden") is None
    assert nearest_column("mbs", ["tp", "pp"]) == "" and nearest_column("ppp", ["tp", "pp"]) == "; did you mean 'pp'?"
    # All that read columns advise alike.
    with pytest.raises(InputError, match=r"unknown candidate column 'mbs'; did you mean 'microbatch_size'\?"):
        column_limits("mbs<=4", MENTIONED, "limit")
    with pytest.raises(InputError, match=r"unknown setting 'MBS'; did you mean 'microbatch_size'\?"):
        Plan({}) | {"MBS": 4}


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
def test_a_column_is_recognised_in_any_case(choice):
    for word in (choice.name, *choice.also_called):
        for written in (word, word.upper(), f"--{word.replace('_', '-')}"):
            assert column_called(written) == choice.name
            assert nearest_column(written, BY_NAME) == f"; did you mean {choice.name!r}?"
