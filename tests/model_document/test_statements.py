"""What the document says of the model is what the code does, on pages of their own."""

import contextlib
import dataclasses
import io
import re

import pytest
import yaml
from model_document.arithmetic import read
from model_document.commands import printed
from model_document.pages import PAGES, ROOT, TEXT, blocks, cells, rows, sections

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import Device, Tier, load_cluster
from dsx.config.model_file import load_model
from dsx.config.sweep_file import SweepSpec
from dsx.config.what_if import _numbers as what_if_fields
from dsx.config.what_if import varied_field
from dsx.cost.context import Assumptions, StepCosts
from dsx.cost.interval import StepInterval
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


def test_fields_and_columns_are_mentioned_with_their_units():
    for name in type(load_assumptions("default")).model_fields:
        assert name in ("name", "description", "source") or f"`{name}`" in TEXT, name
    # Every column of a step has its unit.
    stated = [*rows("step", "Formulas"), *rows("memory", "Formulas")]
    documented = {row[0].strip("`"): row[1] for row in stated if row[0].startswith("`")}
    assert documented == {name: unit for name, (unit, _) in columns(StepCosts).items()}
    # Every column of an interval has its unit.
    documented = {row[0].strip("`"): row[1] for row in rows("intervals", "Intervals") if "_s_" in row[0]}
    assert documented == {name: unit for name, (unit, _) in columns(StepInterval).items()}
    # What operators do inside a kernel is said.
    operators = yaml.safe_load((ROOT / "data" / "operators" / "standard.yaml").read_text(encoding="utf-8"))
    inside = {name: entry["in_kernel"] for name, entry in operators.items() if "in_kernel" in entry}
    assert inside.keys() == {"softmax", "dropout", "carry"}
    fused = sections("work")["Fused kernels"]
    for entry in inside.values():
        stated = [saved["bytes"] for saved in entry["saved"] if isinstance(saved, dict)]
        assert all(f"`{size}`" in fused for size in [*stated, *([entry["writes"]] if "writes" in entry else [])])


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


def test_constants_and_deviations_are_those_of_the_sets():
    files = [constants(name) for name in SETS]
    documented = {row[0].strip("`"): row[1:] for row in rows("assumptions", "Parameters")[1:]}
    assert documented.keys() == files[0].keys()

    def text(value):
        return str(value).lower() if isinstance(value, bool) else str(value)

    for name, values in documented.items():
        assert values == [text(file[name]) for file in files], name
    # The deviations of effects are those of the default set.
    documented = {row[0].strip("`"): float(row[1]) for row in rows("intervals", "Effects")[1:]}
    effects = load_assumptions("default").effects
    assert documented == {name: getattr(effects, name) for name in documented}
    assert documented.keys() == {name for name in type(effects).model_fields if name.endswith("_deviation")}
    # Every what if field is listed with its kind.
    documented = {path: row[1] for row in rows("what-ifs", "Fields") for path in re.findall(r"`([\w.]+)`", row[0])}
    assert documented == {path: "integer" if varied_field(path).integer else "real" for path in what_if_fields()}
    # The precision is what a sweep takes where it says nothing.
    assert SweepSpec.model_fields["precision"].default == "float32"
    assert "float32 unless it says `float64`" in PAGES["precision"]


def test_choices_counts_and_pages_are_those_of_their_records(benchmark_script):
    document = (ROOT / "docs" / "choices.md").read_text(encoding="utf-8")
    assert benchmark_script("choices").text().strip() in document
    # The space has the counts of its table.
    numbers = {name: [int(count.replace(",", "")) for count in counts] for name, *counts in rows("space", "Keys")[-4:]}
    strategies = {"1d": ["1d"], "2d": ["2d"], "summa": ["summa"], "all three": ["1d", "2d", "summa"]}
    assert numbers.keys() == strategies.keys()
    model, cluster, assumptions = load_model("gpt3-1t"), load_cluster("b200-nvs8"), load_assumptions(SETS[-1])
    for name, used in strategies.items():
        problem = make_problem(model, cluster, assumptions, used)
        one, five = (Space(problem, counts, [4096]) for counts in ([16384], [1024, 2048, 4096, 8192, 16384]))
        assert numbers[name] == [len(one.keys["tp"]), one.size, five.size]
        assert len(five.keys["tp"]) == len(one.keys["tp"])
    # The index lists every page.
    listed = re.findall(r"^\| \[(\S+)\.md\]\((\S+)\.md\) \|", PAGES["README"], re.MULTILINE)
    assert all(name == target for name, target in listed)
    assert {name for name, _ in listed} == PAGES.keys() - {"README"}


# What these pages show takes seconds to compile; the numbers in their arithmetic are held by the quick tests.
SLOW = {"pipeline", "layouts", "placement", "space"}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_an_example(page):
    first, *_ = sections(page)
    assert first == "Example"
    example = sections(page)["Example"]
    assert "```console\n$ dsx " in example or "```python\n" in example
    assert "```text\n" in example


@pytest.mark.parametrize("page", PAGES)
def test_the_arithmetic_of_a_page_comes_out(page):
    for block in blocks(page, "text"):
        for line in read(block):
            assert line.expression is None or line.shows(line.value()), (line, line.value())


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in PAGES])
def test_commands_print_what_a_page_shows(benchmark_script, page):
    assert all(block.startswith("$ dsx ") for block in blocks(page, "console"))
    assert benchmark_script("model_pages").renewed(PAGES[page], printed) == PAGES[page]


@pytest.mark.parametrize("page", PAGES)
def test_python_prints_what_a_page_shows(page):
    for block in blocks(page, "python"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, page, "exec"), {})
        assert out.getvalue().splitlines() == re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
