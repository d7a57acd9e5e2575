"""Ctrl-C ends a command quietly, wherever it comes, and a shell sees the exit code 130.

Python turns it into a KeyboardInterrupt at whatever line runs. Inside an import that may arrive as another error, or be
printed by compiled code that goes on without the module; inside a destructor it is printed and forgotten. In both the
process ends of the signal, as if there were no handler: nothing that dsx writes needs more (`dsx.results.folder`).
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGINT

_IMPORTING = "<frozen importlib._bootstrap>"  # the file of the frames that import


@contextmanager
def remembered() -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt at the first Ctrl-C, end the process at a second; gives whether it has come."""
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
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
        yield lambda: came
    finally:
        sys.unraisablehook = hook
        if not came:
            signal.signal(signal.SIGINT, handler)


def _imports(frame: FrameType | None) -> bool:
    """Return whether a frame, or one that waits for it, imports a module."""
    while frame is not None and frame.f_code.co_filename != _IMPORTING:
        frame = frame.f_back
    return frame is not None
