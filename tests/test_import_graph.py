"""Data flows one way: a module imports from its own package, from earlier ones, or from the root.

Imports are read from the syntax tree, so one inside a function counts too.
"""

import ast
import functools
from pathlib import Path

import pytest

DSX = Path(__file__).parents[1] / "dsx"
ROOT = {"arrays", "errors", "files", "forked", "progress", "records", "text", "units"}

# Each package with those it may import from. `traces`, `measure` and `placement` hang on the cost model.
_MODEL = {"config", "notation", "schedules", "plans", "cost"}
ALLOWED = {
    "config": set(),
    "notation": {"config"},
    "schedules": set(),
    "plans": {"config", "notation", "schedules"},
    "cost": _MODEL - {"cost"},
    "pricing": _MODEL,
    "search": _MODEL | {"pricing"},
    "traces": _MODEL,
    "measuring": _MODEL,
    "placement": _MODEL | {"measuring"},
    "results": _MODEL | {"pricing", "search"},
    "launching": _MODEL | {"pricing"},
    "runs": _MODEL | {"pricing"},
    "layer_table": {"config", "cost", "pricing"},
    "tables": _MODEL | {"pricing", "results"},
    "pictures": _MODEL | {"pricing", "search", "results", "tables"},
    "verbs": _MODEL
    | {"pricing", "search", "traces", "measuring", "placement", "results", "runs"}
    | {"layer_table", "launching", "tables", "pictures"},
    "cli": set(),
    "__main__.py": {"verbs"},
}
WITHOUT_JAX = ("config", "notation", "schedules", "plans", "cost", "units.py", "errors.py", "files.py")

FILES = sorted(DSX.rglob("*.py"))
MODULES = [path for path in FILES if path != DSX / "__init__.py"]


def name_of(path: Path) -> str:
    return path.relative_to(DSX).as_posix()


@functools.cache
def imports(path: Path) -> list[str]:
    """Absolute dotted names of everything that a file imports, at any depth."""
    found: list[str] = []
    package = ["dsx", *path.relative_to(DSX).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found += (f"{source}.{alias.name}" for alias in node.names)
    return found


def test_imports_go_one_way():
    sealed = {path.stem for path in (DSX / "placement").glob("*.py")}  # others take what the package exports
    wrong: dict[str, list[str]] = {}
    for path in MODULES:
        here = path.relative_to(DSX).parts[0]
        may = ROOT | {here, "__version__"} | (ALLOWED.get(here, set()) if path.parent == DSX else ALLOWED[here])
        parts = [name.split(".") for name in imports(path)]
        found = [".".join(p) for p in parts if p[0] == "dsx" and len(p) > 1 and p[1] not in may]
        if here != "placement":
            found += [".".join(p) for p in parts if p[:2] == ["dsx", "placement"] and {*p[2:3]} & sealed]
        if found:
            wrong[name_of(path)] = found
    assert wrong == {}


@pytest.mark.parametrize("start", WITHOUT_JAX)
def test_these_never_import_jax(start: str):
    heavy = ("jax", "jaxlib")
    found = {
        name_of(path): name
        for path in FILES
        if path.relative_to(DSX).parts[0] == start
        for name in imports(path)
        if any(name == module or name.startswith(f"{module}.") for module in heavy)
    }
    assert not found


def test_shapes_cost_nothing_where_they_are_not_checked():
    """What checks annotations is the tests' alone (`tests/shapes.py`)."""
    assert not {name_of(path) for path in FILES if any(name.startswith("jaxtyping") for name in imports(path))}


def test_folders_are_packages_and_plans_are_priced_in_two_places():
    folders = {path.parent for path in MODULES} - {DSX}
    assert {folder.relative_to(DSX).parts[0] for folder in folders} <= set(ALLOWED)
    assert [str(f.relative_to(DSX)) for f in folders if not (f / "__init__.py").exists()] == []
    # Plans are priced in two places.
    callers = {name_of(path) for path in FILES if "dsx.cost.step.step_costs" in imports(path)}
    # Plans that are given, and the kernel of a search.
    assert callers == {"pricing/problem.py", "search/tiles/hot.py"}


def test_relative_and_lazy_imports_are_seen(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "DSX", tmp_path)
    (tmp_path / "cost").mkdir()
    file = tmp_path / "cost" / "step.py"
    file.write_text("def f():\n    from ..results import store\n    from .layer import g\n    import jax\n")
    assert imports(file) == ["dsx.results.store", "dsx.cost.layer.g", "jax"]


def test_the_command_line_has_the_api_alone():
    """What the shell can do, Python can: a verb parses, calls one function of `dsx` and prints its answer."""
    shell = ("cli", "command", "job_commands", "options", "process")
    may = (
        *(f"dsx.verbs.{name}" for name in shell),
        "dsx.errors.",
        "dsx.units.parse_count",
        "dsx.units.parse_share",
        "dsx.text.",
        "dsx.launching.LAUNCHED",  # names that an option lists
    )
    found = {
        name_of(path): name
        for path in FILES
        if path.parent.name == "verbs" and path.stem in shell
        for name in imports(path)
        if name.startswith("dsx.") and not name.startswith(may) and name != "dsx.verbs.arguments.Answer"
    }
    assert not found
