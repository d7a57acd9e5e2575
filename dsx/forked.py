"""A function that runs beside its caller, in a forked process on another core.

A fork shares all that the process has made so far, where a new one would import and make it again for a second. It is
unsafe where other threads may hold a lock, as those of JAX do. So where JAX is loaded, where there are several threads
or one core, and where the system has no fork, the function runs when its result is asked for. That is also what happens
when the forked process fails.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def forked(function: Callable[..., T], *arguments: Any) -> Iterator[Callable[..., T]]:
    """Run a function beside the body, and yield what returns its result.

    The first argument of the function returns the values that its result is asked with, as soon as it is asked for.
    These values and the result can be pickled. The process ends with the body.
    """

    def here(*asked: Any) -> T:
        return function(lambda: asked, *arguments)

    if not _may_fork():
        yield here
        return
    own, other = multiprocessing.Pipe()

    def run() -> None:
        own.close()  # so that it ends when its caller is killed
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a traceback: the caller tells of what ends both
        with contextlib.suppress(Exception):
            other.send(function(other.recv, *arguments))

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which are those of linear algebra alone
        process.start()
    other.close()

    def result(*asked: Any) -> T:
        # One that has its result already listens no more, and the command line lets a broken pipe end it.
        on_broken_pipe = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            with contextlib.suppress(OSError):
                own.send(asked)
        finally:
            signal.signal(signal.SIGPIPE, on_broken_pipe)
        with contextlib.suppress(EOFError, OSError):
            return own.recv()
        return here(*asked)

    try:
        yield result
    finally:
        process.terminate()
        process.join()
        own.close()


def _may_fork() -> bool:
    alone = threading.active_count() == 1 and "jax" not in sys.modules
    return alone and sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
