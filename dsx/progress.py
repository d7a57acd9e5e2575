"""What dsx tells while it works: progress of long work, and remarks on a result; and how long it may work.

Progress is told to a callback, or shown: a bar on a terminal, a line that changes in a notebook, else a line on stderr
every 10 seconds. A search enumerates and compiles before it counts anything, or prices few of many candidates, or cuts
those that it has counted: then the bar pulses, and a line says how long it has been.

A search that has no time left answers with what it knows by then, and with a bound of what it does not know.

Remarks, what a user should know of a result and no error, go to the logger "dsx". Python shows the warnings among them;
the command line prints all, on stderr.
"""

import contextvars
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

LINE_INTERVAL_S = 10.0
_NOTEBOOK_INTERVAL_S = 0.5
_LONG_S = 1.0  # after which somebody who waits would rather have a part of the answer
_LEAST_SHARE = 0.01  # of the total, from which on a bar has a length and the rest of the time is estimated

# Told how much is done, of how much, and of what.
Watch = Callable[[int, int, str], None]
Display = Callable[..., Any]  # IPython's, which returns what updates the displayed line


def unwatched(done: int, total: int, what: str) -> None:
    """Show nothing."""
    del done, total, what


@contextmanager
def progress(total: int, what: str, watch: Watch | None = None) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many of `total` are newly done; they are shown unless somebody watches."""
    if watch is not None:
        yield _told(total, what, watch)
    elif (display := _notebook()) is not None:
        with _cell_line(display) as show, _lines(total, what, _NOTEBOOK_INTERVAL_S, show) as advance:
            yield advance
    elif sys.stderr.isatty():
        with _bar(total, what) as advance:
            yield advance
    else:
        with _lines(total, what, LINE_INTERVAL_S, _print) as advance:
            yield advance


@contextmanager
def working(what: str, watch: Watch | None = None) -> Iterator[None]:
    """Show that work is being done of which nothing is counted, unless somebody watches."""
    with progress(0, what, watch):
        yield


_ENDS_AT: ContextVar[float] = ContextVar("ends_at", default=math.inf)  # of the monotonic clock


class OutOfTimeError(Exception):
    """No time is left for a part of an answer that can be left out."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let searches in the body end after so many seconds, with what they know by then."""
    before = _ENDS_AT.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _ENDS_AT.reset(before)


def seconds_left() -> float:
    """Return the seconds that a search still may take, at least 0."""
    return max(_ENDS_AT.get() - time.monotonic(), 0.0)


def check_time() -> None:
    """Raise OutOfTimeError if no time is left."""
    if not seconds_left():
        raise OutOfTimeError


def early(text: str, since: float, watch: Watch | None = None) -> None:
    """Show a first answer of work that goes on, unless somebody watches or it began, at `since`, a moment ago."""
    if watch is None and time.monotonic() - since >= _LONG_S:
        _print(text)


def _told(total: int, what: str, watch: Watch) -> Callable[[int], None]:
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        watch(done, total, what)

    return advance


def _notebook() -> Display | None:
    """Return what displays something in a notebook's cell; None where there is no notebook."""
    ipython: Any = sys.modules.get("IPython")  # a notebook has it; nobody else needs it
    shell = ipython.get_ipython() if ipython else None
    return ipython.display.display if hasattr(shell, "kernel") else None


@contextmanager
def _cell_line(display: Display) -> Iterator[Callable[[str], None]]:
    """Give what shows a line in place of the one before; none is left at the end, and none made if nothing is shown."""
    handle: Any = None

    def show(line: str) -> None:
        nonlocal handle
        if handle is None:
            handle = display({"text/plain": line}, raw=True, display_id=True)
        else:
            handle.update({"text/plain": line}, raw=True)

    try:
        yield show
    finally:
        if handle is not None:
            handle.update({"text/plain": ""}, raw=True)


def _print(line: str) -> None:
    print(f"dsx: {line}", file=sys.stderr, flush=True)


@contextmanager
def _bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Candidates per second; the time that has gone by where few are counted."""

        def render(self, task: Task) -> Text:
            return Text(rate_text(task.speed) if task.speed and task.total else f"{task.elapsed or 0.0:.0f} s")

    columns = (BarColumn(), TaskProgressColumn(), Rate(), TimeRemainingColumn(compact=True))
    # The bar moves by escape characters, which the stream that verbs print to would show.
    console = Console(file=sys.__stderr__)
    with Progress(what, *columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        done = 0

        def advance(more: int) -> None:
            nonlocal done
            done += more
            (shown,) = bar.tasks
            shown.total = total if _is_counted(done, total) else None  # an update keeps a total instead of None
            bar.update(task, completed=done)

        yield advance


def _is_counted(done: int, total: int) -> bool:
    """Return whether a share says how much is left: what follows when all are counted takes unknown time."""
    return max(done, 1) < total and done >= _LEAST_SHARE * total


@contextmanager
def _lines(total: int, what: str, interval_s: float, show: Callable[[str], None]) -> Iterator[Callable[[int], None]]:
    start = last = time.monotonic()
    done = 0

    def advance(more: int) -> None:
        nonlocal done, last
        done += more
        now = time.monotonic()
        if now - last >= interval_s and _is_counted(done, total):
            last = now
            rate = done / (now - start)
            show(f"{what}: {100 * done / total:.0f} %, {rate_text(rate)}, {(total - done) / rate:.0f} s left")

    def wait(seconds: float) -> None:
        nonlocal last
        if not _is_counted(done, total):
            show(f"{what}: {seconds:.0f} s so far")
        elif (now := time.monotonic()) - last >= interval_s:
            last = now
            show(f"{what}: {100 * done / total:.0f} %, {seconds:.0f} s so far")

    with _every(interval_s, wait):
        yield advance


@contextmanager
def _every(interval_s: float, call: Callable[[float], None]) -> Iterator[None]:
    """Call `call` with the seconds that have gone by, every so many, from a thread of its own."""
    ended = threading.Event()

    def run() -> None:
        seconds = interval_s
        while not ended.wait(interval_s):
            call(seconds)
            seconds += interval_s

    # What a notebook shows belongs to the cell whose context the thread has.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def rate_text(per_second: float) -> str:
    """Return a rate of candidates, as in "2.31 M/s"."""
    for size, prefix in ((1e6, "M"), (1e3, "k")):
        if per_second >= size:
            return f"{per_second / size:.3g} {prefix}/s"
    return f"{per_second:.3g}/s"


_SAID: ContextVar[set[str] | None] = ContextVar("said", default=None)  # warnings that are not repeated
_LOG = logging.getLogger("dsx")


def remark(message: str) -> None:
    """Say what happened, or where something is."""
    _LOG.info("%s", message)


def warn(message: str) -> None:
    """Say what limits a result."""
    warnings = _SAID.get()
    if warnings is None or message not in warnings:
        _LOG.warning("%s", message)
    if warnings is not None:
        warnings.add(message)


@contextmanager
def each_once() -> Iterator[None]:
    """Say each warning once, where one answer takes several searches."""
    token = _SAID.set(_SAID.get() or set())
    try:
        yield
    finally:
        _SAID.reset(token)
