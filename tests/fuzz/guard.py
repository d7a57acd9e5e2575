"""One input under limits: nothing but dsx's own errors, few seconds of a core, little memory, and no file touched."""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dsx.errors import DsxError

MOST_SECONDS = 5.0  # of a core
MOST_BYTES = 1 << 30
_HANGS_S = 120.0  # on the clock

Files = dict[str, tuple[int, int, int]]


class Fault(AssertionError):
    """What no input may do."""


def read(function: Callable[[], object]) -> bool:
    """Call a reader; return whether it took its input. Raises Fault."""
    with limited_memory(), limited_time():
        try:
            function()
        except DsxError as error:
            if len(str(error)) > 20_000:
                raise Fault(f"a message of {len(str(error)):,} characters: {str(error)[:200]} ...") from error
            return False
        except Exception as error:
            raise Fault(f"{type(error).__name__}: {str(error)[:300]}") from error
    return True


@contextmanager
def limited_time() -> Iterator[None]:
    """Raise Fault after `MOST_SECONDS` of a core, as other processes may have the machine."""

    def too_long(number: int, frame: object) -> None:
        raise Fault(f"takes more than {MOST_SECONDS:g} s")

    handlers = {name: signal.signal(name, too_long) for name in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, _HANGS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for name, handler in handlers.items():
            signal.signal(name, handler)


@contextmanager
def limited_memory() -> Iterator[None]:
    """Let no more than `MOST_BYTES` be asked for, on top of what the process has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def measured() -> Iterator[None]:
    """Raise Fault if the block took too long on its thread, or let the memory of the process grow too much.

    For what compiled code does, which no signal interrupts and no limit on addresses fits.
    """
    seconds, peak = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    if (taken := time.thread_time() - seconds) > MOST_SECONDS:
        raise Fault(f"took {taken:.1f} s")
    if (grown := 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak)) > MOST_BYTES:
        raise Fault(f"took {grown / 1e9:.1f} GB")


def files_below(folder: Path) -> Files:
    """Return every file and folder below one, with what changes when it is written."""
    found: Files = {}
    for path, folders, names in os.walk(folder):
        for name in (*folders, *names):
            about = os.lstat(os.path.join(path, name))
            found[os.path.join(path, name)] = (about.st_ino, about.st_size, about.st_mtime_ns)
    return found


def refuse_changes(before: Files, after: Files, allowed: Iterable[Path] = ()) -> None:
    """Raise Fault if anything was written but what lies at, or below, what is `allowed`."""
    outputs = [os.path.abspath(path) for path in allowed]
    above = {os.path.dirname(output) for output in outputs}
    for path in sorted(before.keys() | after.keys()):
        inside = any(path == output or path.startswith(f"{output}/") for output in outputs)
        # The folder that a file is made in changes with it.
        if before.get(path) != after.get(path) and not inside and path not in above:
            raise Fault(f"{path} was {'written' if path in after else 'removed'}")
