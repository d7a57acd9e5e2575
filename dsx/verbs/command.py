"""A command of the shell: options from signatures and docstrings of the API, a help text, an answer that is printed.

Signatures are read from the source of a verb, since to import it takes a second, and a help text or a misspelt option
none. Names, types, defaults and, from the section `Args`, help texts are those of the function; `OPTIONS` has what a
signature cannot say: other flags, metavars, and texts for the shell.
"""

import ast
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import typer

import dsx
from dsx.errors import DsxError, InputError, NothingFeasible, SpecError, did_you_mean
from dsx.launching import LAUNCHED
from dsx.text import Data
from dsx.units import parse_count, parse_share

if TYPE_CHECKING:
    from dsx.verbs.arguments import Answer

T = TypeVar("T")

DEFAULT_ASSUMPTIONS = "default"
# Defaults of signatures, by their names.
_CONSTANTS = {"DEFAULT_ASSUMPTIONS": DEFAULT_ASSUMPTIONS, "ANY": "any", "DEFAULT_FRAMEWORK": LAUNCHED[0]}
_OF_PYTHON = {"job", "choices", "watch", "predict", "durations", "self"}  # arguments that are no option
_NEXT_STATEMENT = re.compile(r"^[^\s)#]", re.MULTILINE)  # of a module, after a definition


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
def _definition(module: str, name: str) -> ast.FunctionDef | ast.ClassDef:
    """Return the syntax tree of a class of a module here, or of a function up to its docstring's end.

    That of a whole module takes ten times as long.
    """
    text = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    if (begin := text.find(f"\ndef {name}(") + 1) > 0:
        end = text.index('"""', text.index('"""', begin) + 3) + 3
    else:
        begin = max(text.find(f"\nclass {name}("), text.find(f"\nclass {name}:")) + 1
        following = _NEXT_STATEMENT.search(text, text.index("\n", begin))
        end = following.start() if following else len(text)
    (definition,) = ast.parse(text[begin:end]).body
    if not isinstance(definition, ast.FunctionDef | ast.ClassDef):
        raise TypeError(f"{module}.{name} is neither a function nor a class")
    return definition


@cache
def signature_of(function: str) -> Signature:
    """Return the signature of a function of a module here, "best.best", or of a method, "job.Job.__init__"."""
    module, name, *method = function.split(".")
    owner = definition = _definition(module, name)
    if method:
        definition = next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == method[0])
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError(f"{function} is no function")
    summary, *paragraphs = (ast.get_docstring(definition) or ast.get_docstring(owner) or "").split("\n\n")
    described = next((part for part in paragraphs if part.startswith("Args:")), "")
    about = paragraphs[: paragraphs.index(described)] if described else paragraphs
    helps: dict[str, str] = {}
    for name, text in re.findall(r"^    (\w+): (.*?)(?=\n    \w|\Z)", described, re.M | re.S):
        sentence = " ".join(text.split()).replace("`", "")
        helps[name] = sentence[:1].upper() + sentence[1:]
    arguments = definition.args
    missing: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    nodes = [*zip(arguments.args, [*missing, *arguments.defaults], strict=True)]
    nodes += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    nodes += [(arguments.vararg, ast.Constant(None))] if arguments.vararg else []
    typed: dict[str, CommandArgument] = {}
    for node, default in nodes:
        if node.annotation is not None:  # as `self` has none
            value: object = ...
            if default is not None:
                value = _CONSTANTS.get(default.id) if isinstance(default, ast.Name) else ast.literal_eval(default)
            annotation = ast.unparse(node.annotation).strip("'\"")
            typed[node.arg] = CommandArgument(annotation, value, helps.get(node.arg, ""))
    texts = [part for part in about if not part.startswith(" ") and "Raises " not in part]
    return Signature(typed, " ".join(summary.split()), "\n\n".join(texts))


def _reader(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser of the value of an option, whose errors are those of a parameter."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except SpecError as error:
            raise typer.BadParameter(str(error)) from error

    return read


count, share = _reader(parse_count), _reader(parse_share)
# Of 16,384, which is no list of counts to most, but not of 128,256, which is.
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(,[0-9]{3})+")


def counts(text: str) -> list[int]:
    """Return an option's value, such as "512,1024", as whole numbers of at least 1."""
    parts = text.split(",")
    if re.search(",0[0-9]", text):
        return [count(text)]  # a zero after a comma is one of thousands, as in 1,024, which is refused as one number
    if _THOUSANDS.fullmatch(text) and int("".join(parts)) % 1024 == 0 and any(int(n).bit_count() > 1 for n in parts):
        one, several = "".join(parts), ",".join(reversed(parts))
        raise typer.BadParameter(f"{text!r} may be one number or {len(parts)}: write {one}, or {several}")
    return [count(part) for part in parts]


def names(text: str) -> list[str]:
    """Return an option's value, such as "h100-nvs8,b200-nvs8", as names or files."""
    parts = [part.strip() for part in text.split(",")]
    if "" in parts and (joined := ",".join(filter(None, parts))):
        raise typer.BadParameter(f"{text!r} has no name beside a comma; did you mean {joined!r}?")
    return parts


def shard(text: str) -> tuple[int, int]:
    """Return "2/8" as (2, 8)."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"{text!r} is not a shard: write the second of eight as 2/8")
    return int(match[1]), int(match[2])


def one_of(words: Sequence[str]) -> Callable[[str], str]:
    """Return a parser of an option that is one of some words."""

    def read(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, words))}{did_you_mean(text, words)}")
        return text

    return read


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
        of_signature = _literals(argument.annotation) if self.type is None and parser is None else []
        words = [*get_args(self.type)] if get_origin(self.type) is Literal else of_signature
        parser = one_of(words) if words else parser
        type_ = Any if parser is not None else type_
        help, metavar = self.help or argument.help, self.metavar or _SHOWN.get(name) or _SHOWN_OF_TYPE.get(type_)
        if metavar is None:
            metavar = "N" if parser is count else f"<{'|'.join(words)}>" if words else None
        if self.is_argument:
            info: object = typer.Argument(parser=parser, metavar=self.metavar or name.upper(), help=help)
        else:
            flags, completion = self.flags or (self.flag(name),), (lambda: words) if words else None
            info = typer.Option(*flags, parser=parser, autocompletion=completion, metavar=metavar, help=help)
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is ... else default,
            annotation=Annotated[type_ if default is not None else type_ | None, info],  # pyright: ignore[reportOperatorIssue]
        )


# What is shown for a value, by argument, then by type.
_SHOWN = {
    **dict.fromkeys(("inter", "intra", "nic_bandwidth"), "BANDWIDTH"),
    **dict.fromkeys(("deadline", "latency", "time_limit"), "TIME"),
    **dict.fromkeys(("y", "value", "by"), "COLUMN"),
    **dict.fromkeys(("memory_margin", "gap"), "SHARE"),
    **dict.fromkeys(("operator_times", "instance"), "FILE"),
    **dict.fromkeys(("train_tokens", "seed"), "N"),
}
_SHOWN |= {"budget": "USD", "baseline": "VALUE", "candidate": "ID", "width": "T", "network": "FILE:NAME"}
_SHOWN |= {"memory": "SIZE", "speeds": "LIST", "kind": "KIND", "ranks": "all|stages|0,5,9"}
_SHOWN_OF_TYPE: Mapping[object, str] = {str: "NAME", Path: "FILE", list[str]: "COLUMN"}


def _type_of(annotation: str) -> Any:
    """Return the type of an option for an argument of the API."""
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
ABSENT = CommandOption("absent")  # what a command does not have
OF_JOB = "job.Job.__init__"
NEEDED = ("model", "cluster", "num_gpus", "global_batch_size")  # by a job

app = typer.Typer(
    name="dsx",
    help="Price every way to train a model on a cluster.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Values(Data):
    """The values of a command's options by argument; None for options that are not given."""

    flags: Mapping[str, str]  # by argument
    defaults: Mapping[str, object]  # of the command's options

    def of(self, function: str) -> Data:
        """Return the stated arguments of a function, "best.best"."""
        arguments = signature_of(function).arguments
        return {name: value for name, value in self.items() if value is not None and name in arguments}

    def job(self, row: str = "", **changes: object) -> "dsx.Job":
        """Return the job of the options, with other values of some.

        Raises InputError, with how a `row` is given instead of a plan, if options that a job needs are missing.
        """
        if row:
            self.need(NEEDED, f"a plan needs them; for a row of a result set give {row}")
        return dsx.Job(**{**self.of(OF_JOB), **changes})

    def stated(self, *options: str) -> list[str]:
        """Return the flags of those options that are given."""
        return [self.flags[name] for name in options if self[name] not in (None, [], self.defaults.get(name))]

    def need(self, options: Iterable[str], why: str) -> None:
        """Raise InputError, with the reason, if an option is not given."""
        if missing := [self.flags[name] for name in options if self[name] is None]:
            raise InputError(f"missing: {', '.join(missing)}; {why}")

    def refuse(self, why: str, *options: str) -> None:
        """Raise InputError, with the reason, if an option is given; `why` may name the first and all of them."""
        if flags := self.stated(*options):
            raise InputError(why.format(first=flags[0], all=", ".join(flags)))


Command = Callable[[Values], "Answer | None"]  # returns an answer to print, or None once it is printed


def command(
    name: str,
    *functions: str,
    required: str = "",
    optional: str = "",
    within: typer.Typer = app,
    **changes: CommandOption,
) -> Callable[[Command], Command]:
    """Register a command with the arguments of `functions` as options, and with `changes`, that differ or are added.

    Its help text is the first sentence of the last function's docstring, then the docstring of the command or, if it
    has none, the other paragraphs. The arguments that `required` and `optional` name are so in the shell.
    """
    signatures = [signature_of(function) for function in functions]
    arguments = {name: argument for of in reversed(signatures) for name, argument in of.arguments.items()}
    order = {name: None for of in signatures for name in of.arguments} | dict.fromkeys((*changes, "json"))
    options = {name: changes.get(name, OPTIONS.get(name, CommandOption())) for name in order}
    helps: dict[str, str] = {}
    for of in (
        signature_of("evaluate.evaluate"),
        *signatures,
    ):  # docstrings of other verbs of a plan refer to the first
        helps |= {name: argument.help for name, argument in of.arguments.items() if argument.help}
    must = dict.fromkeys(optional.split(), False) | dict.fromkeys(required.split(), True)
    nothing = CommandArgument("str | None", None, "")
    shell_options = [
        option.parameter(name, arguments.get(name, nothing)._replace(help=helps.get(name, "")), must.get(name))
        for name, option in options.items()
        if name not in _OF_PYTHON and option is not ABSENT
    ]
    flags = {option.name: options[option.name].flag(option.name) for option in shell_options}
    defaults = {option.name: option.default for option in shell_options}

    def registered(run: Command) -> Command:
        def called(context: typer.Context, **arguments: object) -> None:
            values = Values(arguments, words=context.args)
            values.flags, values.defaults = flags, defaults
            if (answer := run(values)) is not None:
                infeasible = getattr(answer, "infeasible", "")
                print_answer(answer, values["json"], NothingFeasible(infeasible) if infeasible else None)

        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        called.__signature__ = inspect.Signature([context, *shell_options])  # pyright: ignore[reportFunctionMemberAccess]
        text = inspect.cleandoc(run.__doc__) if run.__doc__ else signatures[-1].paragraphs
        settings = {"allow_extra_args": name == "best"}
        within.command(name, help=f"{signatures[-1].summary}\n\n{text}", context_settings=settings)(called)
        return run

    return registered


def print_answer(answer: "Answer", as_json: bool, error: DsxError | None = None) -> None:
    """Print an answer as text or as one JSON object; then raise the error that the command ends with, if any."""
    if as_json:
        print_json(answer.to_data())
    elif text := str(answer):
        print(text)
    if error is not None:
        sys.stdout.flush()
        raise error


def print_json(data: Mapping[str, object]) -> None:
    """Print one JSON object."""
    print(json.dumps(data, indent=2))


def _version(is_given: bool) -> None:
    if is_given:
        print(dsx.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")] = False,
) -> None:
    del version
    if debug:
        os.environ["DSX_DEBUG"] = "1"
