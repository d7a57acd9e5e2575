"""Every error that dsx raises on purpose, and the exit code of each.

    DsxError
    ├── InputError            2   what the user gave is not usable
    │   ├── SpecError             a YAML file or option: misspelt key, wrong type
    │   ├── UnitError             a quantity without, or with a wrong, unit
    │   ├── UnknownNameError      no model, cluster, strategy, ... of that name
    │   ├── NotationError         a layer text; carries file, line and column
    │   ├── PlanError             a plan that is not well formed
    │   ├── RunTableError         a table of measured runs: a column, a value
    │   ├── OperatorTimesError    a file of measured kernel times: a column, a value, a kernel
    │   └── StoreError            a result folder that cannot be read or written
    ├── NothingFeasible       3   every candidate, or the plan that is asked for, is rejected
    └── IncompleteSweep       4   a sweep stopped before its last part

A message names the value, the rule, the place and the nearest right thing. Anything else that escapes
is a bug and exits with 1. What is wrong with the input may be as long as the input, a message may not: the middle of
a long line and the end of a long list of faults are left out.
"""

import difflib
from collections.abc import Iterable
from itertools import islice

# Of a message about bad input. The longest line that files of dsx lead to has 1,300 characters, a list of known names.
_LONGEST_LINE, _MOST_LINES = 3_000, 50
_HEAD = 2_000  # characters that are kept of the beginning of a long line: it has the place and the value
# difflib takes quadratic time in the length of two names. No name of dsx has 50 characters, no list of them 1,000.
_LONGEST_NAME, _MOST_NAMES = 100, 5_000


class DsxError(Exception):
    """Root of all deliberate errors."""

    exit_code = 1


class InputError(DsxError):
    """What the user gave is not usable."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(_bounded(message))


class SpecError(InputError):
    """A YAML file or an option breaks its schema."""


class UnitError(InputError):
    """A quantity has no unit, or one of another dimension."""


class UnknownNameError(InputError):
    """A name that nothing carries.

    `kind` is the field's word for what was looked for ("model"), `names` what there is.
    """

    def __init__(self, kind: str, name: str, names: Iterable[str], hint: str = "") -> None:
        names = sorted(names)
        known = f"known: {', '.join(names)}" if names else "there is none"
        super().__init__(f"unknown {kind} {name!r}{did_you_mean(name, names)} ({known}){hint}")


class NotationError(InputError):
    """A layer text breaks the notation; the message starts with file:line:column."""

    def __init__(self, message: str, file: str = "<text>", line: int = 0, column: int = 0) -> None:
        super().__init__(f"{file}:{line}:{column}: {message}")
        self.file, self.line, self.column = file, line, column


class PlanError(InputError):
    """A plan that is not well formed: an unknown column, degrees that do not make up the GPUs."""


class RunTableError(InputError):
    """A table of measured runs lacks a column, or has a value that cannot be one of its column."""


class OperatorTimesError(InputError):
    """A file of measured kernel times lacks a column, or has a row that cannot be one or contradicts another."""


class StoreError(InputError):
    """A result folder cannot be read or written, or belongs to another sweep."""


class NothingFeasible(DsxError):
    """Every candidate, or the plan that is asked for, is rejected."""

    exit_code = 3


class IncompleteSweep(DsxError):
    """A sweep stopped before its last part."""

    exit_code = 4


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest of `names`, or an empty string."""
    near = nearest_names(name, names, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def nearest_names(name: str, names: Iterable[str], cutoff: float, most: int = 1) -> list[str]:
    """Return up to `most` of `names` that are as like `name` as `cutoff` (of 1) or more, the nearest first.

    Names longer than any that dsx has are not compared, nor more names than any list of them has.
    """
    if len(name) > _LONGEST_NAME:
        return []
    compared = [other for other in islice(names, _MOST_NAMES) if len(other) <= _LONGEST_NAME]
    return difflib.get_close_matches(name, compared, n=most, cutoff=cutoff)


def _bounded(message: str) -> str:
    """Return a message without the middle of its long lines, and without lines behind the first ones."""
    lines = message.split("\n")
    more = len(lines) - _MOST_LINES
    kept = [_short(line) for line in lines[:_MOST_LINES]]
    return "\n".join([*kept, f"... and {more:,} more lines"] if more > 0 else kept)


def _short(line: str) -> str:
    left_out = len(line) - _LONGEST_LINE
    if left_out <= 0:
        return line
    return f"{line[:_HEAD]} [... {left_out:,} characters ...] {line[_HEAD + left_out :]}"
