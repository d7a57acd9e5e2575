"""Remarks of the library: what a user should know of a result, and no error.

They go to the logger "dsx". Python shows the warnings among them; the command line prints all, on stderr.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SAID: ContextVar[set[str] | None] = ContextVar("said", default=None)  # warnings that are not repeated
_LOG = logging.getLogger("dsx")


def remark(message: str) -> None:
    """Say what happened, or where something is."""
    _LOG.info("%s", message)


def warn(message: str) -> None:
    """Say what limits a result."""
    said = _SAID.get()
    if said is None or message not in said:
        _LOG.warning("%s", message)
    if said is not None:
        said.add(message)


@contextmanager
def each_once() -> Iterator[None]:
    """Say each warning once, where one answer takes several searches."""
    before = _SAID.set(_SAID.get() or set())
    try:
        yield
    finally:
        _SAID.reset(before)
