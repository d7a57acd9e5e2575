"""``dsx``: the verbs, and the handling of their errors.

stdout is data, everything else goes to stderr. Exit codes: 0 done; 2 bad input; 3 nothing is feasible, or the plan of
``dsx evaluate`` is rejected; 4 an incomplete sweep; 130 Ctrl-C; 1 a bug, with a traceback only under --debug.
"""

import logging
import os
import reprlib
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from dsx.cli import (
    descriptions,
    interrupts,
    launching,
    measured_runs,
    measuring,
    one_plan,
    partitioning,
    placing,
    reporting,
    result_sets,
    searches,
    tracing,
)
from dsx.cli.terminal import escaped
from dsx.errors import DsxError, InputError, StoreError

STDOUT = 1  # its file descriptor

app = typer.Typer(
    name="dsx",
    help="Price every way to train a model on a cluster.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        import dsx

        print(dsx.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")] = False,
) -> None:
    """Price every way to train a model on a cluster."""
    del version
    if debug:
        os.environ["DSX_DEBUG"] = "1"


app.command("sweep")(searches.sweep)
app.command("best", context_settings={"allow_extra_args": True})(searches.best)
app.command("evaluate")(one_plan.evaluate)
app.command("why")(one_plan.why)
app.command("launch")(launching.launch)
app.command("layer")(descriptions.layer)
app.command("show")(result_sets.show)
app.command("compare")(result_sets.compare)
app.command("partition")(partitioning.partition)
app.command("place")(placing.place)
app.command("pareto")(result_sets.pareto)
app.command("plot")(result_sets.plot)
app.command("report")(reporting.report)
app.command("measure")(measuring.measure)
app.command("validate")(measured_runs.validate)
app.command("calibrate")(measured_runs.calibrate)
app.command("list")(descriptions.list_names)
app.add_typer(descriptions.clusters_app)
app.add_typer(tracing.app)
app.command("import-hf")(descriptions.import_hf)


def main() -> None:
    """Run the command line."""
    # A reader that closes early (`dsx ... | head`) ends dsx quietly, like other tools.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with escaped(), remarks_shown(), interrupts.remembered() as interrupted:
        try:
            _run()
        except DsxError as error:
            print(f"dsx: error: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(interrupts.EXIT_CODE)
        except Exception as error:
            if interrupted():
                sys.exit(interrupts.EXIT_CODE)
            if os.environ.get("DSX_DEBUG"):
                traceback.print_exc()
            print(
                f"dsx: internal error, please report it: {type(error).__name__}: {error} (--debug shows where)",
                file=sys.stderr,
            )
            sys.exit(1)


class _OnStderr(logging.Handler):
    """Prints each remark once on stderr; the stream is looked up for each remark."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._said:  # one answer may take several searches
            print(f"dsx: {message}", file=sys.stderr)
        self._said.add(message)


@contextmanager
def remarks_shown() -> Iterator[None]:
    """Print the remarks of the library on stderr."""
    log, handler = logging.getLogger("dsx"), _OnStderr()
    before, spread = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        log.propagate = spread


def _run() -> None:
    try:
        try:
            app(standalone_mode=True)
        finally:
            print(end="", flush=True)
    except OSError as error:
        if not _has_working_directory():
            raise InputError("the working directory is gone: change to a folder that exists") from error
        # Most code raises its own errors for files; an impossible file name fails wherever it is first used.
        if error.filename is not None:
            raise StoreError(f"cannot use {reprlib.repr(str(error.filename))}: {error.strerror}") from error
        # The buffered output has nowhere to go; the interpreter must not try to write it again when it ends.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), STDOUT)
        raise StoreError(f"cannot write to stdout: {error.strerror}") from error


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True
