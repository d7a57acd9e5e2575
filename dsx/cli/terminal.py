"""The streams of a command: whatever is printed, a terminal is given text and nothing that it obeys.

Tabs and newlines stay as they are, as lists of completions need them. A newline ends a line, so what prints names in
lines of its own makes them `printable` first, as tables do.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from dsx.printable import printable


class _Escaping:
    """A text stream that escapes what it is given, and else is the stream that it writes to."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; its lines stay lines."""
        encoding = self._stream.encoding or "utf-8"
        shown = printable(text, keep="\n\t").encode(encoding, "backslashreplace").decode(encoding)
        self._stream.write(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escaped() -> Iterator[None]:
    """Let both streams of the process escape what they are given."""
    out, err = (cast(TextIO, stream and _Escaping(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield
