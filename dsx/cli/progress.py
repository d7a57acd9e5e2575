"""Progress of long work, on stderr: a bar on a terminal, else a line every 30 seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_INTERVAL_S = 30.0


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many of `total` are newly done."""
    if sys.stderr.isatty():
        with _bar(total, what) as advance:
            yield advance
    else:
        yield _lines(total, what)


@contextmanager
def _bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TaskProgressColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """Candidates per second."""

        def render(self, task: Task) -> Text:
            return Text(rate_text(task.speed or 0.0))

    columns = (BarColumn(), TaskProgressColumn(), Rate(), TimeRemainingColumn(compact=True))
    # The bar moves by escape characters, which the stream that verbs print to would show.
    console = Console(file=sys.__stderr__)
    with Progress(what, *columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, advance=done)


def _lines(total: int, what: str) -> Callable[[int], None]:
    start = last = time.monotonic()
    done = 0

    def advance(more: int) -> None:
        nonlocal done, last
        done += more
        now = time.monotonic()
        if now - last >= LINE_INTERVAL_S:
            last = now
            rate = done / (now - start)
            left = (total - done) / rate
            share = 100 * done / total
            print(f"dsx: {what}: {share:.0f} %, {rate_text(rate)}, {left:.0f} s left", file=sys.stderr, flush=True)

    return advance


def rate_text(per_second: float) -> str:
    """Return a rate of candidates, as in "2.31 M/s"."""
    for size, prefix in ((1e6, "M"), (1e3, "k")):
        if per_second >= size:
            return f"{per_second / size:.3g} {prefix}/s"
    return f"{per_second:.3g}/s"
