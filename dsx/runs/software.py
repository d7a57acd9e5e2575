"""Find the stack of a run from its software: the columns `software` (framework and release), `framework` and `year`.

A name of a stack in either column is that stack. Otherwise the stacks count whose words the columns contain and that
are no later than the release, of them those of the longest word, and of them the last one. A release is a month that
the columns state ("24.07", "2025-04-30"), else the middle of the year. Software that no stack names has the stack of
its date among those without words, and is reported.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dsx.errors import nearest_names
from dsx.spec.stack import StackSpec, load_stack, months, stack_names

_RELEASES = (
    re.compile(r"(?<![0-9.])(20[0-9]{2})-(0[1-9]|1[0-2])(?![0-9])"),  # 2024-07, 2024-07-15
    re.compile(r"(?<![0-9.])(2[0-9])\.(0[1-9]|1[0-2])(?![0-9])"),  # 24.07, 24.07.01
)
_MIDDLE = 6  # of a year, a month
_SIMILAR = 0.7  # of 1, a name from which on a word may have been meant


@dataclass(frozen=True, slots=True)
class Software:
    """The stack of a run."""

    stack: StackSpec
    unknown: str | None  # the software as written, if no stack names it


def known_stacks() -> list[StackSpec]:
    """Return the stacks in DSX_PATH and those packaged with dsx."""
    return [load_stack(name) for name in stack_names()]


def software_of(
    software: str | None, framework: str | None, year: int | None, stacks: Sequence[StackSpec]
) -> Software | None:
    """Return the stack of a run, one of `stacks`; None if there are none without words to fall back on.

    A run without a year and a release is taken to be as new as the newest stack.
    """
    texts = [text for text in (software, framework) if text]
    for text in texts:
        for stack in stacks:
            if stack.name == text:
                return Software(stack, None)
    written = " ".join(texts)
    released = _released(written, year)
    named = [(len(word), stack) for stack in stacks for word in stack.software.words if _names(written, word)]
    found = named or [(0, stack) for stack in stacks if not stack.software.words]
    if not found:
        return None
    return Software(_latest(found, released), None if named or not written else written)


def described(unknown: str, stack: StackSpec, stacks: Sequence[StackSpec]) -> str:
    """Return the remark on software that no stack names: the nearest word, and the stack that is assumed."""
    words = sorted({word for known in stacks for word in known.software.words})
    near = [name for word in unknown.split() for name in nearest_names(word, words, cutoff=_SIMILAR)]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"software {unknown!r} is not known{hint}; the stack {stack.name!r} is assumed"


def _names(written: str, word: str) -> bool:
    """Return whether a text contains a word, from the beginning of one of its words on."""
    written, word = written.lower(), word.lower()
    return word in written and re.search(rf"(?<![a-z0-9]){re.escape(word)}", written) is not None


def _released(written: str, year: int | None) -> int | None:
    """Return the month of a release, counted from year 0; None if nothing is known."""
    for pattern in _RELEASES:
        if match := pattern.search(written):
            return months(int(match[1]) % 2000 + 2000, int(match[2]))
    return None if year is None else months(year, _MIDDLE)


def _latest(found: Sequence[tuple[int, StackSpec]], released: int | None) -> StackSpec:
    """Return the stack of the longest word, and of those the last, that is no later than a release.

    `found` has the length of a word with each stack. If all stacks are later, the first one is returned.
    """
    in_order = sorted(found, key=lambda one: one[1].software.since)
    known = [one for one in in_order if released is None or one[1].software.since <= released]
    return max(known, key=lambda one: (one[0], one[1].software.since))[1] if known else in_order[0][1]
