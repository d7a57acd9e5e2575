"""The pages of docs/model say what the code computes: its names, units, operator formulas, constants and counts."""

import dataclasses
import re

import pytest
import yaml
from model_document.pages import PAGES, ROOT, TEXT, cells, rows, sections

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import load_model
from dsx.config.sweep_file import SweepSpec
from dsx.config.what_if import _numbers as what_if_fields
from dsx.config.what_if import varied_field
from dsx.cost.context import Assumptions, StepCosts
from dsx.cost.interval import StepInterval
from dsx.hardware.cluster import Device, Tier
from dsx.pricing.problem import make_problem
from dsx.records import columns
from dsx.search.spaces import Space

TABLES = ("standard", "unfused-norm", "unfused-softmax", "arxiv-2410.00273")
SETS = ("default", "software-neutral", "paper-2410.00273")


def leaves(record):
    return [f.name for f in dataclasses.fields(record) if f.name != "name"]


@pytest.mark.parametrize(
    "record", [StepCosts, StepInterval, Assumptions, Device, Tier], ids=lambda record: record.__name__
)
def test_every_field_of_a_record_is_mentioned(record):
    for name in leaves(record):
        assert f"`{name}`" in TEXT, name


def test_every_field_of_an_assumption_set_is_mentioned():
    for name in type(load_assumptions("default")).model_fields:
        assert name in ("name", "description", "source") or f"`{name}`" in TEXT, name


def test_every_column_of_a_step_has_its_unit():
    stated = [*rows("step", "Formulas"), *rows("memory", "Formulas")]
    documented = {row[0].strip("`"): row[1] for row in stated if row[0].startswith("`")}
    assert documented == {name: unit for name, (unit, _) in columns(StepCosts).items()}


def test_every_column_of_an_interval_has_its_unit():
    documented = {row[0].strip("`"): row[1] for row in rows("intervals", "Intervals") if "_s_" in row[0]}
    assert documented == {name: unit for name, (unit, _) in columns(StepInterval).items()}


def formulas(entry):
    """Yield every expression of an operator, with its column of the document."""
    places = {"forward": 2, "backward": 4, "gradient": 4}
    for direction, place in places.items():
        for unit, formula in entry.get(direction, {}).items():
            yield place + (unit in ("bytes", "unfused")), f"`{formula}`"
    for saved in entry.get("saved", []):
        yield 6, f"`{saved['bytes']}`" if isinstance(saved, dict) else saved
    if "statistics" in entry:
        yield 7, str(entry["statistics"])


@pytest.mark.parametrize("table", TABLES)
def test_every_operator_has_the_formulas_of_its_table(table):
    found = PAGES["work"].split("| operator |")[1 + TABLES.index(table)]
    documented = {}
    for line in found.splitlines():
        if name := re.match(r"\| `(\w+)` (in panels )?", line):
            documented[name[1], bool(name[2])] = cells(line)
    operators = yaml.safe_load((ROOT / "data" / "operators" / f"{table}.yaml").read_text(encoding="utf-8"))
    in_panels = {(name, True): entry | entry["panels"] for name, entry in operators.items() if "panels" in entry}
    expected = {(name, False): entry for name, entry in operators.items()} | in_panels
    assert documented.keys() == expected.keys()
    for key, entry in expected.items():
        assert documented[key][1] == entry.get("linear", "none"), key
        stated = list(formulas(entry))
        for place, formula in stated:
            assert formula in documented[key][place], (key, place)
        for place in range(2, 8):
            assert bool(documented[key][place]) == any(place == other for other, _ in stated), (key, place)


def test_what_operators_do_inside_a_kernel_is_said():
    operators = yaml.safe_load((ROOT / "data" / "operators" / "standard.yaml").read_text(encoding="utf-8"))
    inside = {name: entry["in_kernel"] for name, entry in operators.items() if "in_kernel" in entry}
    assert inside.keys() == {"softmax", "dropout", "carry"}
    fused = sections("work")["Fused kernels"]
    for entry in inside.values():
        stated = [saved["bytes"] for saved in entry["saved"] if isinstance(saved, dict)]
        assert all(f"`{size}`" in fused for size in [*stated, *([entry["writes"]] if "writes" in entry else [])])


def with_what_it_extends(kind, name):
    """A file, what it extends, and between the two the fields of the stack that it names."""
    own = yaml.safe_load((ROOT / "data" / kind / f"{name}.yaml").read_text("utf-8"))
    base = with_what_it_extends(kind, own["extends"]) if "extends" in own else {}
    if kind == "stacks":
        return base | own["assume"]
    return base | (with_what_it_extends("stacks", own["stack"]["value"]) if "stack" in own else {}) | own


def constants(name):
    """The values of an assumption set that have a source each, as they are written."""
    stated = with_what_it_extends("assumptions", name)
    sourced = {key: entry for key, entry in stated.items() if isinstance(entry, dict) and "value" in entry}
    return {key: entry["value"] for key, entry in sourced.items() if key != "stack"}


def test_the_constants_are_those_of_the_assumption_sets():
    files = [constants(name) for name in SETS]
    documented = {row[0].strip("`"): row[1:] for row in rows("assumptions", "Parameters")[1:]}
    assert documented.keys() == files[0].keys()

    def text(value):
        return str(value).lower() if isinstance(value, bool) else str(value)

    for name, values in documented.items():
        assert values == [text(file[name]) for file in files], name


def test_the_deviations_of_effects_are_those_of_the_default_set():
    documented = {row[0].strip("`"): float(row[1]) for row in rows("intervals", "Effects")[1:]}
    effects = load_assumptions("default").effects
    assert documented == {name: getattr(effects, name) for name in documented}
    assert documented.keys() == {name for name in type(effects).model_fields if name.endswith("_deviation")}


def test_every_what_if_field_is_listed_with_its_kind():
    documented = {path: row[1] for row in rows("what-ifs", "Fields") for path in re.findall(r"`([\w.]+)`", row[0])}
    assert documented == {path: "integer" if varied_field(path).integer else "real" for path in what_if_fields()}


def test_choices_schedules_and_rules_are_those_of_their_records(benchmark_script):
    document = (ROOT / "docs" / "choices.md").read_text(encoding="utf-8")
    assert benchmark_script("choices").text().strip() in document


def test_the_precision_is_what_a_sweep_takes_where_it_says_nothing():
    assert SweepSpec.model_fields["precision"].default == "float32"
    assert "float32 unless it says `float64`" in PAGES["precision"]


def test_the_space_has_the_counts_of_its_table():
    numbers = {name: [int(count.replace(",", "")) for count in counts] for name, *counts in rows("space", "Keys")[-4:]}
    strategies = {"1d": ["1d"], "2d": ["2d"], "summa": ["summa"], "all three": ["1d", "2d", "summa"]}
    assert numbers.keys() == strategies.keys()
    model, cluster, assumptions = load_model("gpt3-1t"), load_cluster("b200-nvs8"), load_assumptions(SETS[-1])
    for name, used in strategies.items():
        problem = make_problem(model, cluster, assumptions, used)
        one, five = (Space(problem, counts, [4096]) for counts in ([16384], [1024, 2048, 4096, 8192, 16384]))
        assert numbers[name] == [len(one.keys["tp"]), one.size, five.size]
        assert len(five.keys["tp"]) == len(one.keys["tp"])
