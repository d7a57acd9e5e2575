"""Remarks of the library: what a user should know of a result, and no error.

They go to the logger "dsx". Python shows the warnings among them; the command line prints all, on stderr.
"""

import logging

_LOG = logging.getLogger("dsx")


def remark(message: str) -> None:
    """Say what happened, or where something is."""
    _LOG.info("%s", message)


def warn(message: str) -> None:
    """Say what limits a result."""
    _LOG.warning("%s", message)
