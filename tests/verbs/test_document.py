"""docs/api.md is what its script makes of the code, and has every public name."""

import re
from pathlib import Path

import pytest

import dsx

DOCUMENT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### (.*)$", DOCUMENT.replace("\\", ""), re.MULTILINE)


@pytest.fixture(scope="module")
def script(benchmark_script):
    return benchmark_script("reference")


def test_the_document_is_what_the_script_makes(script):
    written = DOCUMENT.partition("<!-- benchmarks/reference.py -->\n")[2].partition("\n\n<!-- end -->")[0]
    assert written == script.text(), "run: python benchmarks/reference.py --write docs/api.md"


def test_every_public_name_has_one_entry(script):
    names = [heading.removeprefix("dsx.").removesuffix("()") for heading in HEADINGS]
    assert len(names) == len(set(names))
    assert {*names} - {*script.NOT_IN_DSX} == {*dsx.__all__}


def test_every_entry_says_something():
    entries = re.split(r"^#{3,4} ", DOCUMENT, flags=re.MULTILINE)[1:]
    for entry in entries:
        prose = re.sub(r"^```.*?^```$", "", entry, flags=re.MULTILINE | re.DOTALL).split("\n", 1)[1]
        assert len(prose.split()) >= 4, entry


def test_every_word_of_a_signature_is_explained(script):
    """A type is of Python, NumPy or pandas, has an entry, or is in the list of words."""
    signatures = "\n".join(
        re.findall(r"^```python\n(?:dsx)?\.[a-zA-Z_.]+\(.*?^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    )
    types = {*re.findall(r"(?<![\"\w.])[A-Z]\w+", re.sub(r"\"[^\"]*\"", "", signatures))}
    known = {
        "Callable",
        "Literal",
        "Any",
        "Mapping",
        "Sequence",
        "Iterable",
        "Path",
        "None",
        "False",
        "True",
        "DataFrame",
        "Axes",
    }
    assert {*script.TYPES} - {"Counts", "Flag", "Row"} <= types
    assert types - known - {*HEADINGS} == {*script.TYPES} - {"Counts", "Flag"}
