"""``dsx`` as a process: errors and exit codes, Ctrl-C, remarks, and what the output streams escape.

stdout is data, everything else goes to stderr. Exit codes: 0 done; 2 bad input; 3 nothing is feasible, or the plan of
``dsx evaluate`` is rejected; 4 an incomplete sweep; 130 Ctrl-C; 1 a bug, with a traceback only under --debug.

Python raises KeyboardInterrupt at the line that runs. Inside an import it may turn into another error, or be printed by
compiled code that continues without the module; inside a destructor it is printed and ignored. In both cases the signal
ends the process here, as without a handler: the files that dsx writes need no clean-up (`dsx.results.folder`).

Tabs and newlines are not escaped, since lists of completions need them. Code that prints names on separate lines must
make them `printable` first, as tables do, since a newline in a name would end its line.
"""

import io
import logging
import os
import reprlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import FrameType
from typing import BinaryIO, TextIO, cast

from dsx.errors import DsxError, InputError, StoreError
from dsx.text import printable
from dsx.verbs.cli import app

EXIT_CODE = 128 + signal.SIGINT

_IMPORTING = "<frozen importlib._bootstrap>"  # the file name of frames that import


@contextmanager
def remembered() -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt at the first Ctrl-C, end the process at a second; yields whether the first has come."""
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while frame is not None:
            if frame.f_code.co_filename == _IMPORTING:  # of a frame, or of one of its callers
                signal.raise_signal(number)
            frame = frame.f_back
        raise KeyboardInterrupt

    def unraisable(lost: "sys.UnraisableHookArgs") -> None:
        if lost.exc_type is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
        hook(lost)

    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    if handler is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = unraisable
    try:
        yield lambda: interrupted
    finally:
        sys.unraisablehook = hook
        if not interrupted:
            signal.signal(signal.SIGINT, handler)


class _Escaping(io.TextIOBase):
    """A text stream that escapes control characters of what it writes to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.fileno, self.isatty, self.flush = stream.fileno, stream.isatty, stream.flush

    @property
    def buffer(self) -> BinaryIO:
        """The stream of bytes, which escapes nothing."""
        return self._stream.buffer

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The encoding of the other stream."""
        return self._stream.encoding or "utf-8"

    @property
    def errors(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the other stream does with a character that its encoding lacks."""
        return self._stream.errors

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write a text; newlines are kept."""
        shown = printable(text, keep="\n\t").encode(self.encoding, "backslashreplace").decode(self.encoding)
        self._stream.write(shown)
        return len(text)


@contextmanager
def escaped() -> Iterator[None]:
    """Make stdout and stderr of the process escape control characters."""
    out, err = (cast(TextIO, stream and _Escaping(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield


STDOUT = 1  # its file descriptor


def main() -> None:
    """Run the command line."""
    # A reader that closes early (`dsx ... | head`) ends dsx quietly, like other tools.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with escaped(), remarks_shown(), remembered() as interrupted:
        try:
            _run()
        except DsxError as error:
            print(f"dsx: error: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(EXIT_CODE)
        except Exception as error:
            if interrupted():
                sys.exit(EXIT_CODE)
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
    level, spread = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = spread


def _run() -> None:
    try:
        try:
            app(standalone_mode=True)
        finally:
            print(end="", flush=True)
    except OSError as error:
        try:
            os.getcwd()
        except OSError:
            raise InputError("the working directory is gone: change to a folder that exists") from error
        # Most code raises its own errors for files; an impossible file name fails wherever it is first used.
        if error.filename is not None:
            raise StoreError(f"cannot use {reprlib.repr(str(error.filename))}: {error.strerror}") from error
        # The buffered output has nowhere to go; the interpreter must not try to write it again when it ends.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), STDOUT)
        raise StoreError(f"cannot write to stdout: {error.strerror}") from error
