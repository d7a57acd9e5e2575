"""The house stays small enough to know: few files, each one idea; names that say what they hold; short signatures.

A file states one idea; past 600 lines it states several, and one of a few lines with a single reader belongs to its
reader. The counts below are at most what they were when this was written: lower them when they fall.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

DSX = Path(__file__).parents[1] / "dsx"
TREES = {path: ast.parse(path.read_text()) for path in sorted(DSX.rglob("*.py"))}
LINES = {path: len(path.read_text().splitlines()) for path in TREES}

# Words that hold anything.
VAGUE = {
    *("found given known made there here each one many own few told said wanted stated others alike asked".split()),
    *("mine left rest both these those whole some none again beyond after before".split()),
}
SAME_NAME = {"__init__.py", "read.py", "write.py", "replay.py"}  # files that several packages may have
MOST_LINES, FEW_LINES, MEDIAN_LINES = 600, 60, 130
MOST_FILES, MOST_OVER_SIX, MOST_OVER_TEN, MOST_ANY, MOST_VAGUE = 230, 15, 8, 105, 0.002


def name_of(path: Path) -> str:
    return path.relative_to(DSX).as_posix()


def in_several(where: dict[str, set[str]]) -> dict[str, set[str]]:
    return {name: places for name, places in where.items() if len(places) > 1}


def bindings() -> Iterator[str]:
    """The names of assignments, loop variables and parameters."""
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id.strip("_")
            elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
                yield node.arg


def test_no_file_is_long():
    assert not {name_of(path): lines for path, lines in LINES.items() if lines > MOST_LINES}


def test_files_are_few_and_no_shreds():
    # A file with an idea of its own may raise the limit, in the commit that says why no other one has that idea.
    assert len(LINES) <= MOST_FILES, "put the code into the file that has its idea, or merge two that have one"
    packages: dict[str, list[int]] = defaultdict(list)
    for path, lines in LINES.items():
        if path.name != "__init__.py" and path.parent != DSX:
            packages[name_of(path.parent)].append(lines)
    assert not {name: lines for name, lines in packages.items() if median(lines) < MEDIAN_LINES}


def test_a_short_file_has_several_readers():
    readers: Counter[str] = Counter()
    for tree in TREES.values():
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        readers.update(imported | {
            f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        })  # fmt: skip
    short = [path for path, lines in LINES.items() if lines < FEW_LINES and path.parent.name not in (DSX.name, "verbs")]
    assert not [name_of(path) for path in short if readers[module_of(path)] == 1]  # a verb is one file


def module_of(path: Path) -> str:
    return ".".join(("dsx", *path.relative_to(DSX).with_suffix("").parts))


def test_a_class_has_a_name_of_its_own():
    modules: dict[str, set[str]] = defaultdict(set)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(name_of(path))
    assert not in_several(modules)


def test_a_file_has_a_name_of_its_own():
    """A verb has the name of its command, whatever else is called so."""
    folders: dict[str, set[str]] = defaultdict(set)
    for path in TREES:
        if path.name not in SAME_NAME and path.parent.name != "verbs":
            folders[path.name].add(name_of(path.parent))
    assert not in_several(folders)


def test_signatures_are_short():
    counts = [
        len([a for a in (*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs) if a.arg not in ("self", "cls")])
        for tree in TREES.values()
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert sum(count > 6 for count in counts) <= MOST_OVER_SIX
    assert sum(count > 10 for count in counts) <= MOST_OVER_TEN


def test_types_say_something():
    nodes = (node for tree in TREES.values() for node in ast.walk(tree))
    assert sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes) <= MOST_ANY


def test_bindings_say_what_they_hold():
    names = list(bindings())
    assert sum(name in VAGUE for name in names) / len(names) <= MOST_VAGUE
