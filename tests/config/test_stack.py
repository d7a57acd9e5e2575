"""Stacks: overlays of an assumption set, that extend each other."""

import pytest

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.search_path import names
from dsx.config.stack import load_stack, months
from dsx.config.what_if import varied_field
from dsx.errors import InputError, SpecError

OWN = """\
name: own
extends: {base}
description: A stack of a test.
source: a test
software: {{words: [own], since: 2024-02}}
assume:
  tp_overlap: {{value: {overlap}, source: a test}}
"""


def stack(folder, monkeypatch, name="own", base="generic-2024", overlap=0.55):
    (folder / "stacks").mkdir(exist_ok=True)
    (folder / "stacks" / f"{name}.yaml").write_text(OWN.format(base=base, overlap=overlap))
    monkeypatch.setenv("DSX_PATH", str(folder))


def test_a_stack_extends_another_and_wins_over_the_base_of_a_set(tmp_path, monkeypatch):
    stack(tmp_path, monkeypatch)
    own, base = load_stack("own"), load_stack("generic-2024")
    assert own.software.since == months(2024, 2)
    assert own.assume["tp_overlap"]["value"] == 0.55
    assert own.assume["fsdp_overlap"] == base.assume["fsdp_overlap"]
    # A stack wins over what the set extends and loses to the set.
    stack(tmp_path, monkeypatch)
    assert load_assumptions({"extends": "software-neutral", "stack": "own"}).tp_overlap == 0.55
    assert load_assumptions({"extends": "software-neutral", "stack": "own", "tp_overlap": 0.1}).tp_overlap == 0.1
    assert load_assumptions("uncalibrated", [("stack", "own")]).tp_overlap == 0.55
    assert load_assumptions("uncalibrated", [("stack", "own"), ("tp_overlap", "0.2")]).tp_overlap == 0.2
    # A set has the fields of another stack.
    stack(tmp_path, monkeypatch)
    spec = load_assumptions("uncalibrated")
    assert spec.of_stack(spec.stack) == spec
    other = spec.of_stack("own")
    assert (other.stack, other.tp_overlap) == ("own", 0.55)
    assert other.of_stack(spec.stack) == spec
    changed = load_assumptions("uncalibrated", [("tp_overlap", "0.2")])
    assert changed.of_stack("own").tp_overlap == 0.2


def test_sets_without_a_stack_and_copies():
    paper = load_assumptions("paper-2410.00273")
    assert paper.stack is None
    assert paper.of_stack("megatron-2019") is paper
    with pytest.raises(SpecError, match=r"--set assumptions.stack: the assumption set names no stack"):
        load_assumptions("paper-2410.00273", [("stack", "megatron-2019")])
    # What a copy changes holds with every stack.
    copied = load_assumptions("uncalibrated").model_copy(update={"tp_overlap": 0.25, "overhead": 3e9})
    other = copied.of_stack("megatron-2019")
    assert (other.tp_overlap, other.overhead) == (0.25, 3e9)
    assert other.of_stack("megatron-2024").tp_overlap == 0.25
    assert other.dp_overlap == load_assumptions("uncalibrated").of_stack("megatron-2019").dp_overlap


def test_faults_in_a_stack_have_their_place(tmp_path, monkeypatch):
    stack(tmp_path, monkeypatch, base="other")
    stack(tmp_path, monkeypatch, name="other", base="own")
    with pytest.raises(SpecError, match=r"stack: .*other\.yaml:2: extends: a file cannot extend itself: "):
        load_assumptions("uncalibrated", [("stack", "own")])
    # A fault in a stack has its file and line.
    stack(tmp_path, monkeypatch, overlap=1.5)
    with pytest.raises(SpecError, match=r"own\.yaml:7: tp_overlap: input should be less than or equal to 1"):
        load_assumptions("uncalibrated", [("stack", "own")])
    (tmp_path / "stacks" / "own.yaml").write_text(OWN.format(base="generic-2024", overlap=0.5) + "  tp_overlp: 1\n")
    with pytest.raises(SpecError, match=r"own\.yaml:8: tp_overlp: unknown key; did you mean 'tp_overlap'"):
        load_assumptions("uncalibrated", [("stack", "own")])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "megatron-2O24",
            "--set assumptions.stack: stack: unknown stack 'megatron-2O24'; did you mean 'megatron-2024'",
        ),
        ("12", "--set assumptions.stack: stack: unknown stack '12'"),
    ],
)
def test_an_unknown_stack_has_its_place_and_the_nearest_name(given, message):
    with pytest.raises(InputError, match=message):
        load_assumptions("uncalibrated", [("stack", given)])


@pytest.mark.parametrize("name", names("stacks", ".yaml"))
def test_a_packaged_stack_states_known_fields_with_sources(name):
    fields = load_stack(name).assume
    assert fields.keys() <= AssumptionsSpec.model_fields.keys()
    load_assumptions("uncalibrated", [("stack", name)])
    numbers = {key: value for key, value in fields.items() if AssumptionsSpec.model_fields[key].annotation is float}
    assert all(value["source"] for value in numbers.values())


def test_no_field_is_both_fitted_and_stated_by_a_stack():
    from dsx.config.assumption_set import load_fitted

    _, bounds = load_fitted("software-neutral")
    stated = {key for name in names("stacks", ".yaml") for key in load_stack(name).assume}
    assert not bounds.keys() & stated
    assert all(varied_field(f"assumptions.{name}") for name in bounds)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ("{values: megatron-2024, source: x}", "unknown key 'values'; did you mean 'value'"),
        ("12", "expected the name of a stack, got 12"),
    ],
)
def test_a_wrong_statement_of_the_stack_has_its_line(tmp_path, stated, says):
    file = tmp_path / "own.yaml"
    file.write_text(f"extends: default\nname: own\nstack: {stated}\n")
    with pytest.raises(SpecError, match=rf"own\.yaml:3: stack: .*{says}"):
        load_assumptions(str(file))
