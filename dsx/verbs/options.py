"""Options of the command line, made from the signatures and docstrings of the API.

Signatures are read from the source of a verb, since to import it takes a second, and a help text or a misspelt option
none. Names, types, defaults and, from the section `Args`, help texts are those of the function; `OPTIONS` has what a
signature cannot say: other flags, metavars, and texts for the shell.
"""

import ast
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import typer

from dsx.errors import SpecError, did_you_mean
from dsx.units import parse_count, parse_share, parse_size

T = TypeVar("T")

DEFAULT_ASSUMPTIONS = "default"
_CONSTANTS = {
    "DEFAULT_ASSUMPTIONS": DEFAULT_ASSUMPTIONS,
    "ANY": "any",
    "DEFAULT_FRAMEWORK": "megatron",
}  # defaults of signatures, by their names
_OF_PYTHON = {"job", "choices", "watch", "predict", "durations", "self"}  # arguments that are no option


class CommandArgument(NamedTuple):
    """An argument of a function of the API."""

    annotation: str
    default: object  # `...` where the argument is required
    help: str


class Signature(NamedTuple):
    """The arguments of a function by name, and the first sentence and the other paragraphs of its docstring."""

    arguments: Mapping[str, CommandArgument]
    summary: str
    paragraphs: str


@cache
def signature_of(function: str) -> Signature:
    """Return the signature of a function of a module here, "best.best", or of a method, "job.Job.__init__"."""
    module, _, name = function.partition(".")
    owner, _, name = name.rpartition(".")
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    start = source.index(f"\nclass {owner}") if owner else 0
    pattern = rf'^ *def {name}(\(.*?\) -> [^\n]*:\n)(?: +r?"""(.*?)""")?'
    match = re.compile(pattern, re.MULTILINE | re.DOTALL).search(source, start)
    if match is None:
        raise LookupError(f"{module}.py has no function {name!r} with the types of its arguments")
    text = match[2] or source[start:].partition('"""')[2].partition('"""')[0]  # of a class
    (definition,) = ast.parse(f"def f{match[1]} pass").body
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError(f"{function} is no function")
    summary, *paragraphs = inspect.cleandoc(text).split("\n\n")
    described = next((part for part in paragraphs if part.startswith("Args:")), "")
    helps = {
        entry[1]: _sentence(entry[2])
        for entry in re.finditer(r"^    (\w+): (.*?)(?=\n    \w|\Z)", described, re.M | re.S)
    }
    about = paragraphs[: paragraphs.index(described)] if described else paragraphs
    return Signature(
        {name: CommandArgument(*typed, helps.get(name, "")) for name, typed in _arguments(definition.args)},
        " ".join(summary.split()),
        "\n\n".join(part for part in about if not part.startswith(" ") and "Raises " not in part),
    )


def _arguments(arguments: ast.arguments) -> list[tuple[str, tuple[str, object]]]:
    """Return the name, annotation and default of each argument but `self` and mappings of further ones."""
    positional = arguments.args
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    nodes = [*zip(positional, [*missing, *arguments.defaults], strict=True)]
    nodes += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    nodes += [(arguments.vararg, ast.Constant(None))] if arguments.vararg else []
    return [
        (node.arg, (ast.unparse(node.annotation).strip("'\""), ... if default is None else _default(default)))
        for node, default in nodes
        if node.annotation is not None
    ]


def _default(node: ast.expr) -> object:
    return _CONSTANTS.get(node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def _sentence(text: str) -> str:
    text = " ".join(text.split()).replace("`", "")
    return text[:1].upper() + text[1:]


def _read(read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except SpecError as error:
        raise typer.BadParameter(str(error)) from error


def count(text: str) -> int:
    """Return an option's value, such as "512" or "1M", as a whole number of at least 1."""
    return _read(parse_size, text)


def length(text: str) -> int:
    """Return an option's value as a whole number of at least 1, written out: 8k tokens may be 8000 or 8192."""
    return _read(parse_count, text)


def counts(text: str) -> list[int]:
    """Return an option's value, such as "512,1024", as whole numbers of at least 1."""
    # A zero after a comma is one of thousands, as in 1,024, which is refused as one number.
    return [count(part) for part in ([text] if re.search(",0[0-9]", text) else text.split(","))]


def names(text: str) -> list[str]:
    """Return an option's value, such as "h100-nvs8,b200-nvs8", as names or files."""
    parts = [part.strip() for part in text.split(",")]
    if "" in parts and (joined := ",".join(filter(None, parts))):
        raise typer.BadParameter(f"{text!r} has no name beside a comma; did you mean {joined!r}?")
    return parts


def share(text: str) -> float:
    """Return an option's value as a share from 0 to 1."""
    return _read(parse_share, text)


def shard(text: str) -> tuple[int, int]:
    """Return "2/8" as (2, 8)."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"{text!r} is not a shard: write the second of eight as 2/8")
    return int(match[1]), int(match[2])


def kind(text: str) -> str:
    """Return what ``dsx list`` lists."""
    if text not in KINDS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, KINDS))}{did_you_mean(text, KINDS)}")
    return text


def _literals(annotation: str) -> list[str]:
    return re.findall(r"'(\w+)'", annotation)


KINDS = _literals(signature_of("list.names").arguments["kind"].annotation)


@dataclass(frozen=True)
class CommandOption:
    """What the command line says of an argument beyond its signature; an empty field is that of the signature."""

    help: str = ""
    metavar: str = ""
    flags: tuple[str, ...] = ()  # by default "--name"
    type: object = None
    parser: Callable[[str], object] | None = None
    default: object = None  # `...`: required
    is_argument: bool = False  # not an option

    def flag(self, name: str) -> str:
        """Return how messages call the option."""
        return self.flags[-1].partition("/")[0] if self.flags else f"--{name.replace('_', '-')}"

    def at(self, metavar: str, help: str = "") -> "CommandOption":
        """Return the option with another metavar and, if it is stated, another help text."""
        return replace(self, metavar=metavar, help=help or self.help)

    def parameter(self, name: str, argument: CommandArgument, required: bool | None) -> inspect.Parameter:
        """Return the parameter of a command; `required` is None where the signature says it."""
        default = argument.default if self.default is None else self.default
        default = default if required is None else ... if required else None
        type_, parser = self.type or _type_of(argument.annotation), self.parser
        parser = count if type_ is int and parser is None and name != "seed" else parser
        type_ = Any if parser is not None else type_
        help, metavar = self.help or argument.help, self.metavar or _SHOWN.get(name) or _SHOWN_OF_TYPE.get(type_)
        metavar = "N" if metavar is None and parser in (count, length) else metavar
        if self.is_argument:
            info: object = typer.Argument(parser=parser, metavar=self.metavar or name.upper(), help=help)
        else:
            info = typer.Option(*(self.flags or (self.flag(name),)), parser=parser, metavar=metavar, help=help)
        annotation = Annotated[type_ if default is not None else type_ | None, info]  # pyright: ignore[reportOperatorIssue]
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is ... else default,
            annotation=annotation,
        )


# What is shown for a value, by argument, then by type.
_SHOWN = {
    **dict.fromkeys(("inter", "intra", "nic_bandwidth"), "BANDWIDTH"),
    **dict.fromkeys(("deadline", "latency", "time_limit"), "TIME"),
    **dict.fromkeys(("y", "value", "by"), "COLUMN"),
    **dict.fromkeys(("memory_margin", "gap"), "SHARE"),
    **dict.fromkeys(("operator_times", "instance"), "FILE"),
    "budget": "USD",
    "train_tokens": "N",
    "seed": "N",
    "baseline": "VALUE",
    "candidate": "ID",
    "width": "T",
    "network": "FILE:NAME",
    "memory": "SIZE",
    "speeds": "LIST",
    "kind": "KIND",
    "ranks": "all|stages|0,5,9",
}
_SHOWN_OF_TYPE: Mapping[object, str] = {str: "NAME", Path: "FILE", list[str]: "COLUMN"}


def _type_of(annotation: str) -> Any:
    """Return the type of an option for an argument of the API."""
    if "Literal" in annotation:
        return Literal[tuple(_literals(annotation))]
    types = {"bool": bool, "int": int, "float": float}
    return types.get(annotation.removesuffix(" | None"), Path if "Path" in annotation else str)


_SETTINGS = CommandOption(
    "The plan, as in tp=8 pp=64 dp=32 nvs.tp=8.", "COLUMN=VALUE", type=list[str], is_argument=True
)
_FOLDER = CommandOption(metavar="DIR", type=Path, is_argument=True)
OUTPUT = CommandOption(metavar="FILE", flags=("-o", "--output"))

# By argument, for all verbs.
OPTIONS: Mapping[str, CommandOption] = {
    "model": CommandOption("Model: a name (dsx list models) or a YAML file."),
    "cluster": CommandOption("Cluster: a name (dsx list clusters) or a YAML file."),
    "sequence_length": CommandOption(parser=length),
    "assumptions": CommandOption("Assumption set: a name or a YAML file."),
    "set": CommandOption(
        "Override a field, as in cluster.device.hbm_capacity='141 GB' or model.dimensions.e=8192.",
        "FIELD=VALUE",
        type=list[str],
    ),
    "operator_times": CommandOption(type=str),
    "plan": _SETTINGS,
    "fix": CommandOption(
        "Values that a choice may have, as in tp=8 or vpp=1,2,4; give the option again for another choice.",
        "COLUMN=VALUES",
        type=list[str],
    ),
    "limit": CommandOption(
        "Bound of a choice that is a number, as in 'tp<=8' or 'pp>=2', quoted; repeat it for another bound.",
        "'COLUMN<=N'",
        type=list[str],
    ),
    "memory_margin": CommandOption(parser=share),
    "spec": CommandOption("A sweep file (YAML).", "SPEC", type=Path, is_argument=True),
    "shard": CommandOption(
        "Price the I-th of N shares of the parts; shards may run at the same time.", "I/N", parser=shard
    ),
    "folder": _FOLDER,
    "a": _FOLDER.at("DIR_A"),
    "b": _FOLDER.at("DIR_B"),
    "per": CommandOption(type=list[str]),
    "objectives": CommandOption(
        "Column to minimise, or -COLUMN to maximise; give one or more [default: step_time_s, peak_bytes].",
        flags=("--objective",),
        type=list[str],
    ),
    "x": CommandOption(type=list[str]),
    "where": CommandOption(
        "Only rows with this value, as in num_gpus=1024; may be repeated.", "COLUMN=VALUE", type=list[str]
    ),
    "path": OUTPUT,
    "output": OUTPUT,
    "out": OUTPUT,
    "runs": CommandOption(metavar="RUNS.csv", type=Path, is_argument=True),
    "specialise": CommandOption(type=str),
    "name": CommandOption(metavar="NAME", type=str, is_argument=True),
    "settings": CommandOption(metavar="SETTING", type=list[str], is_argument=True),
    "sizes": CommandOption(
        "Size of a dimension or degree, as in tp=8, s=2048, b=1.", "NAME=NUMBER", ("--set",), list[str]
    ),
    "config": CommandOption(type=str, is_argument=True),
    "instance": CommandOption(type=str),
    "num_devices": CommandOption(flags=("--devices",)),
    "graph": CommandOption(
        "Graph of operators: a JSON file, or FILE.py:NAME, a function that returns (step, shapes) of JAX. FILE.py is "
        "run as it is: give only one that you trust.",
        "[GRAPH]",
        type=str,
        is_argument=True,
    ),
    "speeds": CommandOption(type=str),
    "gap": CommandOption(parser=share),
    "results": CommandOption(metavar="DIR", flags=("--for",)),
    "ranks": CommandOption(type=str),
    "slow": CommandOption("Slow ranks, as in 0-7=1.3; repeat it for others.", "RANKS=FACTOR", type=list[str]),
    "portable": CommandOption(flags=("--portable/--panels",)),
    "tensors": CommandOption(flags=("--tensors/--no-tensors",)),
    "json": CommandOption("Print one JSON object.", type=bool, default=False),
}


def parameters(
    functions: Sequence[str], changes: Mapping[str, CommandOption], required: Collection[str], optional: Collection[str]
) -> list[inspect.Parameter]:
    """Return the parameters of a command: the arguments of functions, each once, and options that it changes or adds.

    Arguments in `required` and `optional` are so on the command line, whatever the signatures say.
    """
    nothing = CommandArgument("str | None", None, "")
    arguments: dict[str, CommandArgument] = {}
    helps: dict[str, str] = {}
    for function in functions:
        for name, argument in signature_of(function).arguments.items():
            arguments.setdefault(name, argument)
    for function in ("evaluate.evaluate", *functions):  # docstrings of other verbs of a plan refer to the first
        helps |= {name: argument.help for name, argument in signature_of(function).arguments.items() if argument.help}
    chosen = {name: changes.get(name, OPTIONS.get(name, CommandOption())) for name in (*arguments, *changes, "json")}
    return [
        option.parameter(
            name,
            arguments.get(name, nothing)._replace(help=helps.get(name, "")),
            True if name in required else False if name in optional else None,
        )
        for name, option in chosen.items()
        if name not in _OF_PYTHON and option is not ABSENT
    ]


ABSENT = CommandOption("absent")  # what a command does not have
