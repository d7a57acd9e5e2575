"""Every error that dsx raises on purpose, its exit code, and arguments of the wrong type.

    DsxError
    ├── InputError            2   what the user gave is not usable
    │   ├── SpecError             a YAML file or option: misspelt key, wrong type
    │   ├── UnitError             a quantity without a unit, or with a wrong one
    │   ├── UnknownNameError      no model, cluster, strategy, ... of that name
    │   ├── NotationError         a layer definition; has file, line and column
    │   ├── PlanError             a malformed plan
    │   ├── RunTableError         a table of measured runs: a column, a value
    │   ├── OperatorTimesError    a file of measured kernel times: a column, a value, a kernel
    │   ├── TraceError            a folder of execution traces, or a file of it: foreign, truncated, contradictory
    │   └── StoreError            a result folder that cannot be read or written
    ├── NothingFeasible       3   every candidate, or the stated plan, is rejected
    └── IncompleteSweep       4   a sweep stopped before its last part

A message names the value, the rule, the place and the nearest valid value. Any other exception is a bug and exits with
1. Messages are bounded, although faults may be as long as the input: they leave out the middle of a long line and the
end of a long list of faults.

Arguments of the wrong type are refused where they enter. A path is a text or a Path; NumPy, pandas and pathlib would
take other things and fail later, or take them for something else.
"""

import difflib
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TypeVar

# Limits of a message about bad input. With packaged files the longest line, a list of names, has 1,300 characters.
_LONGEST_LINE, _MOST_LINES = 3_000, 50
_HEAD = 2_000  # characters kept at the beginning of a long line, which has the place and the value
# difflib takes quadratic time in the length of names. Names of dsx have up to 50 characters, lists of them up to 1,000.
_LONGEST_NAME, _MOST_NAMES = 100, 5_000


class DsxError(Exception):
    """Root of all deliberate errors."""

    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        """Say what pickle makes a copy of: the message as it is, not what a class makes it of."""
        return _copied, (type(self), self.args, self.__dict__)


def _copied(kind: type[DsxError], args: tuple[object, ...], state: dict[str, object]) -> DsxError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InputError(DsxError):
    """What the user gave is not usable."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(_bounded(message))


class SpecError(InputError):
    """A YAML file or an option breaks its schema."""


class UnitError(InputError):
    """A quantity has no unit, or a unit of another dimension."""


class UnknownNameError(InputError):
    """A name is unknown.

    `kind` is the kind of thing that was searched ("model"), `names` are the known names. Where it is known what the
    name means, `meaning` says it instead of the nearest name and the list of all.
    """

    def __init__(self, kind: str, name: str, names: Iterable[str], hint: str = "", meaning: str = "") -> None:
        if meaning:
            super().__init__(f"unknown {kind} {name!r}{meaning}")
            return
        names = sorted(names)
        if several := [part for part in name.split(",") if part != name and part.strip() in names]:
            super().__init__(f"{kind} {name!r}: one {kind} is wanted here, such as {several[0].strip()!r}")
            return
        choices = f"known: {', '.join(names)}" if names else "there is none"
        super().__init__(f"unknown {kind} {name!r}{did_you_mean(name, names)} ({choices}){hint}")


class NotationError(InputError):
    """A layer definition breaks the notation; the message starts with file:line:column."""

    def __init__(self, message: str, file: str = "<definition>", line: int = 0, column: int = 0) -> None:
        super().__init__(f"{file}:{line}:{column}: {message}")
        self.file, self.line, self.column = file, line, column


class PlanError(InputError):
    """A plan is malformed: an unknown column, degrees whose product is not the number of GPUs."""


class RunTableError(InputError):
    """A table of measured runs lacks a column, or has an invalid value."""


class OperatorTimesError(InputError):
    """A file of measured kernel times lacks a column, or has a row that is invalid or contradicts another one."""


class TraceError(InputError):
    """A folder of execution traces, or a file of it, is foreign, truncated or contradicts itself."""


class StoreError(InputError):
    """A result folder cannot be read or written, or belongs to another sweep."""


class NothingFeasible(DsxError):
    """Every candidate, or the stated plan, is rejected."""

    exit_code = 3


class IncompleteSweep(DsxError):
    """A sweep stopped before its last part."""

    exit_code = 4


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest of `names`, or an empty string."""
    near = nearest_names(name, names, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def nearest_names(name: str, names: Iterable[str], cutoff: float, most: int = 1) -> list[str]:
    """Return up to `most` of `names` whose similarity to `name` is at least `cutoff` (of 1), the nearest first.

    A name in another case is the nearest, then a dotted path that ends in it, then one whose beginning it is, however
    long. Very long names, and the rest of a very long list, are not compared.
    """
    if len(name) > _LONGEST_NAME:
        return []
    compared = [other for other in islice(names, _MOST_NAMES) if len(other) <= _LONGEST_NAME]
    in_other_case = [other for other in compared if other != name and other.casefold() == name.casefold()]
    ending = [other for other in compared if other.endswith(f".{name}")] if name not in compared else []
    beginning = [other for other in compared if "." in name and other.startswith(f"{name}_")]
    near = difflib.get_close_matches(name, compared, n=most, cutoff=cutoff)
    return [*dict.fromkeys([*in_other_case, *ending, *beginning, *near])][:most]


def _bounded(message: str) -> str:
    """Return a message without the middle of its long lines, and without the lines after the first ones."""
    lines = message.split("\n")
    kept = [
        line
        if (left_out := len(line) - _LONGEST_LINE) <= 0
        else f"{line[:_HEAD]} [... {left_out:,} characters ...] {line[_HEAD + left_out :]}"
        for line in lines[:_MOST_LINES]
    ]
    more = len(lines) - _MOST_LINES
    return "\n".join([*kept, f"... and {more:,} more lines"] if more > 0 else kept)


C = TypeVar("C")


def file_path(name: str, argument: object) -> Path:
    """Return the argument called `name` as a path; InputError if it is none."""
    if isinstance(argument, str | os.PathLike) and isinstance(path := os.fspath(argument), str):
        return Path(path)
    folder = getattr(argument, "folder", "")  # of an answer
    hint = "; its .folder is None, since nothing was written: name one where it is made: dsx.sweep(spec, out)"
    hint = "" if folder == "" else "; its .folder is one" if folder is not None else hint
    raise wrong(name, argument, f"a path is wanted, as a text or a Path{hint}")


def one_text(name: str, argument: object, example: str) -> str:
    """Return the argument called `name`; InputError if it is no text, such as `example`."""
    if isinstance(argument, str):
        return argument
    raise wrong(name, argument, f"one name is wanted, such as {example!r}")


def texts(name: str, argument: object, example: str) -> list[str]:
    """Return several texts as a list; InputError if the argument called `name` is one text, or no texts at all."""
    if isinstance(argument, Iterable) and not isinstance(argument, str | bytes | bytearray):
        names = [*argument]
        if all(isinstance(text, str) for text in names):
            return names
    single = f"; for one write [{argument!r:.60}]" if isinstance(argument, str) else ""
    raise wrong(name, argument, f"a list of names is wanted, such as [{example!r}]{single}")


def function(name: str, argument: C) -> C:
    """Return the argument called `name`; InputError if it cannot be called."""
    if callable(argument):
        return argument
    raise wrong(name, argument, "a function is wanted")


def wrong(name: str, argument: object, expected: str) -> InputError:
    """Return the error for an argument of the wrong type; what takes several lines is shown by its type."""
    text = repr(argument)
    shown = type(argument).__name__ if "\n" in text else text[:60]
    return InputError(f"{name}: {shown} is given, and {expected}")
