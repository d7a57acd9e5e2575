"""No code knows a paper, a strategy, an assumption set or a model by its name: they are data.

The names are those of the files under data/. Looked at are identifiers and strings, not docstrings and
comments, which may give examples.
"""

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
FILES = sorted((REPO / "dsx").rglob("*.py"))

# A name that is also the word for "what you get if you say nothing" may be used as that, not compared.
DEFAULT = "default"

ARXIV = re.compile(r"\b\d{4}[._]\d{5}\b")
WORD = re.compile(r"[\w.-]*\w")


def stems(pattern: str) -> set[str]:
    return {path.stem for path in (REPO / "data").glob(pattern)}


NAMES = stems("models/*.yaml") | stems("assumptions/*.yaml") | stems("layers/strategies/*.layer")
SPELT = {name.lower() for name in NAMES} | {re.sub(r"[-.]", "_", name.lower()) for name in NAMES}


def docstrings(tree: ast.AST) -> set[int]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, owners) and node.body]
    return {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}


def mentions(node: ast.AST) -> Iterator[str]:
    """The words of one node: its identifiers, and the words of its strings."""
    for field in ("id", "attr", "arg", "name", "asname"):
        if isinstance(word := getattr(node, field, None), str):
            yield word.lower()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.lower()
        yield from WORD.findall(node.value.lower())


def is_named(word: str) -> bool:
    return (word in SPELT and word != DEFAULT) or bool(ARXIV.search(word))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text()))]


def names_in(path: Path) -> list[str]:
    docs = docstrings(nodes_of(path)[0])
    return [
        f"line {getattr(node, 'lineno', '?')}: {word}"
        for node in nodes_of(path)
        if id(node) not in docs
        for word in dict.fromkeys(mentions(node))
        if is_named(word)
    ]


def branches_in(path: Path) -> list[str]:
    conditions = []
    for node in nodes_of(path):
        if isinstance(node, ast.Compare | ast.pattern):
            conditions.append(node)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            conditions.append(node.test)
        elif isinstance(node, ast.comprehension):
            conditions += node.ifs
    strings = [
        inner
        for condition in conditions
        for inner in ast.walk(condition)
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
    ]
    return [f"line {s.lineno}: {s.value}" for s in strings if s.value.lower() in SPELT]


def by_file(found_in: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What is found, by the file that has it: a test each of a thousand files takes longer than to read them."""
    return {path.relative_to(REPO).as_posix(): found for path in FILES if (found := found_in(path))}


def test_no_name_in_code_and_no_branch_on_one():
    assert DEFAULT in NAMES
    # No name in code.
    assert by_file(names_in) == {}
    # No branch on a name.
    assert by_file(branches_in) == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""A 1d docstring."""\nx = 1', 0),
        ('x = "1d"', 1),
        ('x = f"strategies/{y}/1d of it"', 1),
        ("paper_2410_00273 = 1", 1),
        ('def f(strategy="1d"): ...', 1),
        ('class A:\n    strategy: str = Field(default="1d")', 1),
        ('x = "default"', 0),
        ('x = "gpt"', 0),
    ],
)
def test_names_are_found(tmp_path: Path, text: str, found: int):
    (tmp_path / "spec").mkdir()
    file = tmp_path / "spec" / "a.py"
    file.write_text(text)
    assert len(names_in(file)) == found


@pytest.mark.parametrize(
    "text",
    [
        'if x == "default": ...',
        'y = 1 if x in ("1d", "other") else 2',
        'match x:\n    case "1d": ...',
        'y = [z for z in x if z.startswith("summa")]',
    ],
)
def test_branches_are_found(tmp_path: Path, text: str):
    file = tmp_path / "a.py"
    file.write_text(text)
    assert branches_in(file)
