"""A function that runs beside its caller, in a forked process on another core.

A fork shares all that the process has made so far, where a new one would import and make it again for a second. It is
unsafe where other threads may hold a lock, as those of JAX do. So where JAX is loaded, where there are several threads
or one core, and where the system has no fork, the function runs when its result is asked for. That is also what happens
when the forked process fails.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from dsx.progress import OutOfTimeError, check_time, seconds_left

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Told = Callable[[], tuple[Any, ...]]  # returns the next values that a function is told, as soon as it is told them

_OPEN: list[Any] = []  # the ends of callers
_NICE = 10


class Beside(Protocol[T_co]):
    """A function that runs beside its caller. What it is told, and its result, can be pickled."""

    def tell(self, *values: Any) -> None:
        """Give the function the values that it asks for next."""
        ...

    def result(self) -> T_co:
        """Return its result, as soon as it is there. The function was told all that it asks for.

        Raises OutOfTimeError (`dsx.progress`) if no time is left to wait for it.
        """
        ...


class _Here(Generic[T]):
    """The function runs when its result is asked for."""

    def __init__(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._told: list[tuple[Any, ...]] = []

    def tell(self, *values: Any) -> None:
        self._told.append(values)

    def result(self) -> T:
        check_time()
        told = iter(self._told)
        return self._function(lambda: next(told), *self._arguments)


class _InAProcess(_Here[T]):
    """The function runs in a forked process; if that fails, it runs when its result is asked for."""

    def __init__(self, function: Callable[..., T], arguments: tuple[Any, ...], when_idle: bool) -> None:
        super().__init__(function, arguments)
        self._when_idle = when_idle
        self._own, other = multiprocessing.Pipe()
        _OPEN.append(self._own)
        self._process = multiprocessing.get_context("fork").Process(target=self._run, args=(other,), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which are those of linear algebra alone
            self._process.start()
        other.close()

    def _run(self, other: Any) -> None:
        for connection in _OPEN:  # so that it ends when its caller is killed, and others do
            connection.close()
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a traceback: the caller tells of what ends both
        os.nice(_NICE if self._when_idle else 0)
        with contextlib.suppress(Exception):
            other.send(self._function(other.recv, *self._arguments))

    def tell(self, *values: Any) -> None:
        super().tell(*values)
        # One that has its result already listens no more, and the command line lets a broken pipe end it.
        on_broken_pipe = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            with contextlib.suppress(OSError):
                self._own.send(values)
        finally:
            signal.signal(signal.SIGPIPE, on_broken_pipe)

    def result(self) -> T:
        with contextlib.suppress(EOFError, OSError):
            if (left := seconds_left()) < math.inf and not self._own.poll(left):
                raise OutOfTimeError
            return self._own.recv()
        return super().result()

    def end(self) -> None:
        self._process.terminate()
        self._process.join()
        _OPEN.remove(self._own)
        self._own.close()


@contextlib.contextmanager
def forked(function: Callable[..., T], *arguments: Any, when_idle: bool = False) -> Iterator[Beside[T]]:
    """Run a function beside the body, at whose end its process ends too.

    With `when_idle` it leaves the cores to others that want them. The first argument of the function is `Told`.
    """
    if not _may_fork():
        yield _Here(function, arguments)
        return
    beside = _InAProcess(function, arguments, when_idle)
    try:
        yield beside
    finally:
        beside.end()


def _may_fork() -> bool:
    alone = threading.active_count() == 1 and "jax" not in sys.modules
    return alone and sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
