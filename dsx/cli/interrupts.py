"""Ctrl-C ends a command quietly, at any time, with the exit code 130.

Python raises KeyboardInterrupt at the line that runs. Inside an import it may turn into another error, or be printed by
compiled code that continues without the module; inside a destructor it is printed and ignored. In both cases the signal
ends the process here, as without a handler: the files that dsx writes need no clean-up (`dsx.results.folder`).
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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
        if _imports(frame):
            signal.raise_signal(number)
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


def _imports(frame: FrameType | None) -> bool:
    """Return whether a frame, or one of its callers, imports a module."""
    while frame is not None and frame.f_code.co_filename != _IMPORTING:
        frame = frame.f_back
    return frame is not None
