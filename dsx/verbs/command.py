"""What a command of the shell is: options from signatures of the API, a help text, an answer that is printed."""

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dsx
from dsx.errors import DsxError, NothingFeasible
from dsx.verbs.options import OPTIONS, CommandOption, parameters, signature_of

if TYPE_CHECKING:
    from dsx.verbs.answer import Answer

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


class Values(dict[str, Any]):
    """The values of a command's options by argument; None for options that are not given."""

    flags: Mapping[str, str]  # by argument
    defaults: Mapping[str, object]  # of the command's options

    def of(self, function: str) -> dict[str, Any]:
        """Return the stated arguments of a function, "best.best"."""
        arguments = signature_of(function).arguments
        return {name: value for name, value in self.items() if value is not None and name in arguments}

    def job(self, **changes: Any) -> "dsx.Job":
        """Return the job of the options, with other values of some."""
        return dsx.Job(**(self.of(OF_JOB) | changes))

    def stated(self, *options: str) -> list[str]:
        """Return the flags of those options that are given."""
        return [self.flags[name] for name in options if self[name] not in (None, [], self.defaults.get(name))]

    def missing(self, *options: str) -> list[str]:
        """Return the flags of those options that are not given."""
        return [self.flags[name] for name in options if self[name] is None]


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

    def registered(run: Command) -> Command:
        signature = signature_of(functions[-1])
        shell_options = parameters(functions, changes, required.split(), optional.split())

        def called(context: typer.Context, **options: object) -> None:
            values = Values(options, words=context.args)
            values.flags = {
                name: (changes.get(name) or OPTIONS.get(name, CommandOption())).flag(name) for name in options
            }
            values.defaults = {option.name: option.default for option in shell_options}
            if (answer := run(values)) is not None:
                infeasible = getattr(answer, "infeasible", "")
                print_answer(answer, values["json"], NothingFeasible(infeasible) if infeasible else None)

        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        called.__signature__ = inspect.Signature([context, *shell_options])  # pyright: ignore[reportFunctionMemberAccess]
        text = inspect.cleandoc(run.__doc__) if run.__doc__ else signature.paragraphs
        settings = {"allow_extra_args": name == "best"}
        within.command(name, help=f"{signature.summary}\n\n{text}", context_settings=settings)(called)
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
