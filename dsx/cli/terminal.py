"""The output streams of a command: they escape control characters, so that a terminal shows text and obeys nothing.

Tabs and newlines are kept, since lists of completions need them. Code that prints names on separate lines must make
them `printable` first, as tables do, since a newline in a name would end its line.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from dsx.printable import printable


class _Escaping:
    """A text stream that escapes control characters and otherwise behaves like the stream that it writes to."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; newlines are kept."""
        encoding = self._stream.encoding or "utf-8"
        shown = printable(text, keep="\n\t").encode(encoding, "backslashreplace").decode(encoding)
        self._stream.write(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escaped() -> Iterator[None]:
    """Make stdout and stderr of the process escape control characters."""
    out, err = (cast(TextIO, stream and _Escaping(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield
