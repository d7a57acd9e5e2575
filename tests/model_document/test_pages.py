"""Each page of docs/model begins with an example that comes out: commands print what is shown, and sums are right."""

import contextlib
import io
import re

import pytest
from model_document.arithmetic import read
from model_document.commands import printed
from model_document.pages import PAGES, blocks, sections

# What these pages show takes seconds to compile; the numbers in their arithmetic are held by the quick tests.
SLOW = {"pipeline", "layouts", "placement", "space"}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_an_example(page):
    first, *_ = sections(page)
    assert first == "Example"
    example = sections(page)["Example"]
    assert "```console\n$ dsx " in example or "```python\n" in example
    assert "```text\n" in example


def test_the_index_lists_every_page():
    listed = re.findall(r"^\| \[(\S+)\.md\]\((\S+)\.md\) \|", PAGES["README"], re.MULTILINE)
    assert all(name == target for name, target in listed)
    assert {name for name, _ in listed} == PAGES.keys() - {"README"}


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
