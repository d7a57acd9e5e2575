"""What the documents show is true: their examples build, their names exist, their links lead somewhere."""

import functools
import re
from pathlib import Path

import pytest

from dsx.config.model_file import load_model
from dsx.notation.build import build_layer
from dsx.notation.library import load_definition, load_operators, load_strategy
from dsx.notation.parse import parse
from dsx.notation.work import BACKWARD, FORWARD, derive

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NOTATION = (ROOT / "docs" / "notation.md").read_text(encoding="utf-8")


@functools.cache
def anchors(document):
    """Return the anchors that the headings of a document get: lower case, without punctuation, hyphens for blanks."""
    prose = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    found = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(found) == len(set(found)), f"{document}: headings of one name"
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", document.read_text(encoding="utf-8")):
        file = document.parent / target if target else document
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_examples_roles_and_sweeps_are_those_of_the_files():
    text = re.search(r"```\n(layer two-matrices.*?)```", NOTATION, re.DOTALL)[1]
    layer = derive(build_layer(parse(text), None, load_operators(["standard"]), lambda name, place: None))
    forward = [(c.kind, c.axis, c.tensor) for c in layer.collectives(FORWARD)]
    assert forward == [("all-gather", "tp", "x"), ("reduce-scatter", "tp", "y")]
    assert ("all-gather", "tp", "x") in [(c.kind, c.axis, c.tensor) for c in layer.collectives(BACKWARD)]
    # The roles of the notation are those of the strategies.
    table = NOTATION.split("| role | is |")[1].split("\n\n")[0]
    documented = {name for row in re.findall(r"^\| ([a-z, ]+) \|", table, re.MULTILINE) for name in row.split(", ")}
    of_blocks = load_definition("attention-core").roles
    for strategy in ("1d", "2d", "summa", "ulysses"):
        assert {*load_strategy(strategy).roles, *of_blocks} == documented
    # The sweep of the guide is the file that it names.
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    shown = re.search(r"```yaml\n(model: .*?)```", guide, re.DOTALL)[1]
    strip = re.compile(r"\s*#.*")
    lines = [strip.sub("", line) for line in shown.splitlines()]
    file = (ROOT / "sweeps" / "gpt3-1t-b200.yaml").read_text(encoding="utf-8")
    assert lines == [line for line in file.splitlines() if not line.startswith("#")]


def test_every_model_and_data_file_has_a_source_and_a_licence():
    for path in sorted((ROOT / "data" / "models").glob("*.yaml")):
        assert load_model(path.stem).source
    # Every data file has a source and a licence.
    data = ROOT / "data"
    patterns = [
        line.split()[0] for line in (data / "NOTICE").read_text(encoding="utf-8").splitlines() if "/" in line[:20]
    ]
    covered = {path for pattern in patterns for path in data.glob(pattern)}
    assert {path for path in data.rglob("*") if path.is_file() and path.name != "NOTICE"} == covered


PLACEMENT = ("reduction", "schemes", "answers", "seconds", "alpha", "bandwidth", "simulator", "claims")


@pytest.mark.parametrize(
    ("document", "script"),
    [
        ("performance", "throughput.py"),
        ("performance", "partition.py"),
        ("performance", "partition_sweep.py"),
        ("partition", "partition_gains.py"),
        ("partition", "nest.py"),
        ("partition", "zero_table.py"),
        ("performance", "trace.py"),
        ("traces", "trace_tables.py"),
        *(("placement", f"place.py {part}") for part in PLACEMENT),
    ],
)
def test_a_script_has_written_its_section(document, script):
    text = (ROOT / "docs" / f"{document}.md").read_text(encoding="utf-8")
    _, begun, rest = text.partition(f"<!-- benchmarks/{script} -->\n")
    assert begun and re.search(r"^\|[-:| ]+\|$", rest.partition("<!-- end -->")[0], re.M)
