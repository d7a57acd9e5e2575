"""The reference of the API, docs/api.md, from the signatures, docstrings and comments of the code.

python benchmarks/reference.py --write docs/api.md
"""

import argparse
import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sections import table, write_section

import dsx
from dsx.launching.request import LaunchSettings
from dsx.verbs.arguments import Answer
from dsx.verbs.place import OperatorPlacement
from dsx.verbs.trace_inspect import TraceSummary
from dsx.verbs.trace_replay import TraceReplay
from dsx.verbs.trace_write import WrittenTrace

# What a user wants, and the names for it in the order in which they are read: a function, then its answer.
GROUPS = {
    "Ask for a plan": (
        *("Job", "best", "BestPlans", "evaluate", "Evaluation", "why", "Explanation", "partition", "Partition"),
        *("several_jobs", "SeveralJobs", "training_run", "TrainingRun", "launch", "check_launch", "LaunchFiles"),
        *("Plan", "LaunchSettings"),
    ),
    "Sweeps and result sets": (
        *("sweep", "Swept", "sweep_shard", "SweptShard", "finish_sweep", "load", "pareto", "compare", "plot"),
        *("show", "ShownSet", "front", "Front", "compare_sets", "Comparison", "why_row", "draw", "image_format"),
        *("report", "Report"),
    ),
    "Execution traces": ("trace", "WrittenTrace", "TraceSummary", "TraceReplay"),
    "Operators on devices": ("place", "OperatorPlacement"),
    "Measured kernels": ("measure", "Measured"),
    "Measured runs": ("validate", "Validation", "calibrate", "Calibrated"),
    "Models, layers and clusters": (
        *("names", "parameters", "import_hf", "Imported", "layer", "LayerDescription"),
        *("cluster_times", "ClusterTimes", "partition_table", "TablePartition"),
    ),
    "The process": ("keep_compiled", "errors", "__version__"),
}
# What functions return, which users need no name for.
NOT_IN_DSX = {
    "OperatorPlacement": OperatorPlacement,
    "LaunchSettings": LaunchSettings,
    "WrittenTrace": WrittenTrace,
    "TraceSummary": TraceSummary,
    "TraceReplay": TraceReplay,
}
# Words of signatures, and what they stand for.
TYPES = {
    "Given": "a name, the path of a YAML file, its content as a mapping (which may say what it `extends`), or a "
    "spec such as `job.cluster`",
    "Fields": 'fields that are changed: a mapping such as `{"cluster.device.hbm_capacity": "141 GB"}`, or texts '
    'such as `["cluster.device.hbm_capacity=141 GB"]`; quantities have their units',
    "PlanLike": "a text such as `tp=8 dp=64`, its settings one by one, a mapping of columns, a `Plan`, or a `Row`",
    "LimitLike": "a text such as `tp<=8 pp>=2`, such texts, or a mapping such as "
    '`{"tp": "<=8", "pp": [">=2", "<=16"]}`; '
    "a share of a fast domain is `nvs.tp` or `tp_nvs`",
    "Conditions": 'values that columns must have: a mapping such as `{"num_gpus": 1024}`',
    "Row": "a row of a DataFrame, as `frame.iloc[0]` is",
    "Hardware": 'a mapping such as `{"device.hbm_capacity": 80e9}`, or texts such as `["device.hbm_capacity=80 GB"]`',
    "GraphLike": "a graph of `dsx.place`, the path of a JSON file, its content as a mapping, or `FILE.py:NAME`",
    "OpGraph": "the graph of the operators of a step: `ids`, `kinds`, `seconds`, `memory_bytes`, `edges`",
    "Watch": "a function of three arguments: how much is done, of how much, and of what",
    "Shard": "a pair of integers, (i, n) for the i-th of n",
    "Predict": "a function of setups, a model and an assumption set, which returns predictions",
    "Ranks": '`"all"`, `"stages"` for one rank of each stage, or a list of ranks; `"0,5,9"` is a list too',
    "Slow": "a text such as `0-7=1.3` (ranks and a factor), such texts, or a mapping such as `{3: 1.3}`",
    "Flag": "a pair of a flag and its value, which is empty for a flag without one",
    "Counts": "a record: of all `candidates`, how many were `skipped` or `bounded` by bounds, `cut` and `feasible`",
    "EllipsisType": "`...`, which leaves the argument as it is",
}
_LONGEST = 100  # characters of a signature on one line
_WIDTH = 118
# Fields that answers are made from: what of them users want is said by properties and `to_data`.
_INNER = {
    *(
        "inputs",
        "problem",
        "searched",
        "priced",
        "manifest",
        "manifests",
        "idle",
        "answers",
        "found",
        "described",
        "observations",
        "placed",
        "between",
        "query",
        "objective",
    ),
    *("figures", "config", "published", "ignored", "calibration", "layers", "loaded", "data", "without_slow"),
}


class Member(NamedTuple):
    """A field or property of a class."""

    name: str
    kind: str  # its type
    said: str


def text() -> str:
    """Return the reference."""
    parts = [contents()]
    for title, names in GROUPS.items():
        parts += [f"## {title}", *map(entry, names)]
    words = table(["word", "stands for"], [[f"`{name}`", said] for name, said in TYPES.items()])
    return "\n\n".join([*parts, "## Words of the signatures", words.strip()])


def contents() -> str:
    """Return a line for each group, with links to its names."""
    lines = [f"* {title}: {', '.join(map(link, names))}" for title, names in GROUPS.items()]
    return wrapped([*lines, "* [Words of the signatures](#words-of-the-signatures)"])


def thing_of(name: str) -> Any:
    """Return what has a name."""
    return NOT_IN_DSX[name] if name in NOT_IN_DSX else getattr(dsx, name)


def heading(name: str) -> str:
    """Return the heading of a name; those of a function and of its answer differ by more than a capital."""
    thing = thing_of(name)
    return f"dsx.{name}()" if is_called(thing) else name if inspect.isclass(thing) else f"dsx.{name}"


def is_called(thing: Any) -> bool:
    """Return whether something is a function, or an object that is called like one."""
    return inspect.isfunction(thing) or (callable(thing) and not inspect.isclass(thing))


def link(name: str) -> str:
    """Return a name as a link to its entry."""
    return f"[`{name}`](#{re.sub(r'[^a-z0-9_]', '', heading(name).lower())})"


def entry(name: str) -> str:
    """Return what there is to say of a name."""
    thing = thing_of(name)
    plain = heading(name).replace("__", r"\_\_")  # two underscores would make it bold
    parts = [f"### {plain}"]
    if inspect.isclass(thing):
        parts += of_class(thing, f"dsx.{name}")
    elif inspect.isfunction(thing):
        parts += of_function(thing, f"dsx.{name}")
    elif inspect.ismodule(thing):
        parts.append(documented(inspect.getdoc(thing) or ""))
        functions = {each: getattr(thing, each) for each in getattr(thing, "__all__", ())}
        for each, function in functions.items():
            if inspect.isfunction(function):
                parts += [f"#### dsx.{name}.{each}()", *of_function(function, f"dsx.{name}.{each}")]
    elif callable(thing):
        parts += of_function(type(thing).__call__, f"dsx.{name}")
        for each, value in vars(type(thing)).items():
            if isinstance(value, staticmethod):
                parts += [f"#### dsx.{name}.{each}()", *of_function(value.__func__, f"dsx.{name}.{each}")]
    else:
        parts.append(f"The version, as in `{thing}`.")
    return "\n\n".join(parts)


def of_function(function: Any, shown: str) -> list[str]:
    """Return the signature and the docstring of a function, and a link to its answer."""
    returns = ast.unparse(definition(function).returns or ast.Constant(None))
    answers = [link(name) for names in GROUPS.values() for name in names if re.search(rf"\b{name}\b", returns)]
    parts = [signature(function, shown), documented(inspect.getdoc(function) or "")]
    return [*parts, *([f"Returns {' or '.join(answers)}."] if answers else [])]


def of_class(kind: type, shown: str) -> list[str]:
    """Return what a class is, how it is made if users make it, its fields, properties and methods."""
    made = [signature(vars(kind)["__init__"], shown)] if kind is dsx.Job else []
    parts = [*made, documented(inspect.getdoc(kind) or "")]
    members = [[f"`{m.name}`", f"`{m.kind}`", m.said] for m in (*fields(kind), *properties(kind))]
    if members:
        parts.append(table(["has", "of type", "which is"], members).strip())
    for name, method in methods(kind):
        parts += of_function(method, f".{name}")
    return parts


def fields(kind: type) -> Iterator[Member]:
    """Yield the fields of a dataclass, with the comments behind them."""
    source = textwrap.dedent(inspect.getsource(kind))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.parse(source).body[0].body:  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id not in _INNER:
            yield member(node.target.id, node.annotation, comments[node.lineno])


def properties(kind: type) -> Iterator[Member]:
    """Yield the public properties of a class and of those of dsx that it extends, each as the class has it."""
    for base in reversed([base for base in kind.__mro__ if base.__module__.startswith("dsx.")]):
        for name, value in vars(base).items():
            function = getattr(value, "fget", None) or getattr(value, "func", None)
            if function is not None and not name.startswith("_") and getattr(kind, name) is value:
                returns = definition(function).returns
                assert returns is not None, function
                yield member(name, returns, inspect.getdoc(function) or "")


def member(name: str, annotation: ast.expr, said: str) -> Member:
    """Return a field or property as the cells of a table."""
    words = " ".join(said.split()).replace("|", "\\|").rstrip(".")
    starts = words if words[1].isupper() or words.startswith("None") else words[0].lower() + words[1:]
    return Member(name, written(annotation).replace("|", "\\|"), starts)


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods of a class beside those that every answer has."""
    for name, value in vars(kind).items():
        if inspect.isfunction(value) and not (name.startswith("_") or name in vars(Answer) or name in _INNER):
            yield name, value


def definition(function: Any) -> ast.FunctionDef:
    """Return a function as its source has it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(tree, ast.FunctionDef)
    return tree


def signature(function: Any, shown: str) -> str:
    """Return a signature as a block of code, with types as the source writes them."""
    node = definition(function)
    listed = [*arguments_of(node, inspect.unwrap(function).__globals__)]
    returns = f" -> {written(node.returns)}" if node.returns and ast.unparse(node.returns) != "None" else ""
    line = f"{shown}({', '.join(listed)}){returns}"
    if len(line) > _LONGEST:
        line = "\n".join([f"{shown}(", *(f"    {each}," for each in listed), f"){returns}"])
    return f"```python\n{line}\n```"


def arguments_of(node: ast.FunctionDef, names: dict[str, Any]) -> Iterator[str]:
    """Yield the arguments of a function as they are written; a default that is a constant is its value."""
    found = node.args
    of_position = [*found.posonlyargs, *found.args]
    defaults = [None] * (len(of_position) - len(found.defaults)) + [*found.defaults]
    for each, default in zip(of_position, defaults, strict=True):
        if each.arg != "self":
            yield argument(each, default, names)
    if found.vararg or found.kwonlyargs:
        yield f"*{argument(found.vararg, None, names)}" if found.vararg else "*"
    for each, default in zip(found.kwonlyargs, found.kw_defaults, strict=True):
        yield argument(each, default, names)
    if found.kwarg:
        yield f"**{argument(found.kwarg, None, names)}"


def argument(each: ast.arg, default: ast.expr | None, names: dict[str, Any]) -> str:
    """Return an argument with its type and default."""
    kind = f": {written(each.annotation)}" if each.annotation else ""
    if default is None:
        return f"{each.arg}{kind}"
    value = names.get(default.id) if isinstance(default, ast.Name) else None
    plain = ast.unparse(default) if value is None or callable(value) else repr(value)
    return f"{each.arg}{kind} = {quoted(plain)}"


def written(annotation: ast.expr) -> str:
    """Return a type without what only Python needs: the quotes around one that is not imported, and its module."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.replace("pd.", "")
    return quoted(ast.unparse(annotation)).replace("pd.", "")


def quoted(code: str) -> str:
    """Return code with the quotes that its source has."""
    return code.replace("'", '"')


def documented(docstring: str) -> str:
    """Return a docstring as Markdown: indented examples as code, arguments as a list."""
    parts: list[str] = []
    for block in re.split(r"\n\n+", docstring.strip()):
        if block.startswith("Args:"):
            parts.append(arguments_text(block))
        elif block.startswith("    "):
            language = "python" if re.search(r"[=(]", block) else "text"
            parts.append(f"```{language}\n{textwrap.dedent(block)}\n```")
        elif re.search(r"^ {4}\S", block, re.MULTILINE) or block.startswith("|"):
            parts.append(definitions(block))
        else:
            parts.append(textwrap.fill(block, _WIDTH, break_on_hyphens=False))
    return "\n\n".join(parts)


def definitions(block: str) -> str:
    """Return lines with indented ones below each as a list; a table stays as it is."""
    if block.startswith("|"):
        return block
    lines: list[str] = []
    for line in block.splitlines():
        if line.startswith(" "):
            lines[-1] += f"{' ' if ':' in lines[-1] else ': '}{line.strip()}"
        else:
            lines.append(f"* `{line}`")
    return wrapped(lines)


def arguments_text(block: str) -> str:
    """Return the section of arguments as a list."""
    lines: list[str] = []
    for line in textwrap.dedent(block.partition("\n")[2]).splitlines():
        if line.startswith(" "):
            lines[-1] += f" {line.strip()}"
        else:
            names, _, said = line.partition(": ")
            lines.append(f"* {', '.join(f'`{name}`' for name in names.split(', '))}: {said}")
    return wrapped(lines)


def wrapped(lines: list[str]) -> str:
    """Return the lines of a list, none too long."""
    broken = [textwrap.wrap(line, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in lines]
    return "\n".join("\n".join(line) for line in broken)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put it into the section of this document")
    document = parser.parse_args().write
    if document:
        write_section(document, "reference", text())
    else:
        print(text())
