"""Parses the tensors that nodes read and write: lists of names and bytes in turn.

Nearly every list differs, and they take most of the time of reading. So many are parsed at a time: repeated fields of
messages that follow one another are joined, and a name that no tensor has separates the lists.
"""

from array import array
from itertools import islice
from typing import Literal

import numpy as np
from google.protobuf.message import DecodeError

from dsx.traces.columns import Lists, lists_of
from dsx.traces.messages import StringList

_AT_ONCE = 1_000  # lists that are parsed at a time
_BETWEEN = "\0"  # what is no name of a tensor
# Its size is another text, so that a list of an odd length makes sizes of the names behind it, and is seen.
_SEPARATOR = StringList(values=[_BETWEEN, ""]).SerializeToString()
_NEW, _NO_TENSOR = -1, -2  # instead of the place of a tensor


class BadTensorsError(Exception):
    """The list of the node at `row` is none of tensors; the message says why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class Tensors:
    """The tensors of a file: places by name, and bytes by place."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {_BETWEEN: _NO_TENSOR}
        self.sizes = array("q")

    def names(self) -> list[str]:
        """Return the names in the order of their places."""
        return list(islice(self.places, 1, None))

    def found(self, names: list[str], sizes: list[str]) -> list[int]:
        """Return the places of tensors; ValueError for a new one whose size is no number of bytes."""
        places = [self.places.get(name, _NEW) for name in names]
        for at, place in enumerate(places):
            if place == _NEW:
                # A new name may occur twice in `names`.
                place = places[at] = self.places.setdefault(names[at], len(self.sizes))
                if place == len(self.sizes):
                    size = _size(sizes[at])
                    if size is None:
                        raise ValueError
                    self.sizes.append(size)
        return places


class TensorLists:
    """The tensors that nodes read, or those that they write."""

    def __init__(self, attribute: Literal["inputs", "outputs"], tensors: Tensors) -> None:
        self._attribute, self._tensors = attribute, tensors
        self._rows, self._lengths, self._places = array("i"), array("i"), array("q")
        self._pending: list[bytes] = []

    def add(self, row: int, content: bytes) -> None:
        """Add the list of a node, the bytes of a StringList; raises BadTensorsError for this or an earlier one."""
        self._rows.append(row)
        self._pending.append(content)
        if len(self._pending) >= _AT_ONCE:
            self._parse()

    def lists(self, num_nodes: int) -> Lists:
        """Return the places of the tensors of all nodes; raises BadTensorsError."""
        self._parse()
        rows, lengths = np.array(self._rows, np.int64), np.array(self._lengths, np.int64)
        return lists_of(np.bincount(rows, lengths, num_nodes), np.array(self._places, np.int64))

    def _parse(self) -> None:
        """Parse the lists that are pending."""
        if not self._pending:
            return
        try:
            texts = StringList.FromString(_SEPARATOR.join(self._pending)).values[:]
            names, sizes = texts[::2], texts[1::2]
            if len(names) != len(sizes) or names.count(_BETWEEN) != len(self._pending) - 1:
                raise ValueError
            places = np.array(self._tensors.found(names, sizes), np.int64)
        except (DecodeError, ValueError):
            raise self._fault() from None
        ends = np.append(np.flatnonzero(places == _NO_TENSOR), len(places))
        self._lengths.extend((np.diff(ends, prepend=-1) - 1).tolist())
        self._places.frombytes(places[places != _NO_TENSOR].tobytes())
        self._pending.clear()

    def _fault(self) -> BadTensorsError:
        """Return what is wrong with the first of the pending lists that is none of tensors."""
        rows = self._rows[len(self._lengths) :]
        reasons = ((row, self._reason(content)) for row, content in zip(rows, self._pending, strict=True))
        return BadTensorsError(*next((row, reason) for row, reason in reasons if reason))

    def _reason(self, content: bytes) -> str:
        try:
            texts = StringList.FromString(content).values[:]
        except DecodeError:
            return f"{self._attribute} is no list of texts"
        if len(texts) % 2:
            return f"{self._attribute} has {len(texts)} texts, and each tensor has two: its name, its bytes"
        for name, size in zip(texts[::2], texts[1::2], strict=True):
            if name == _BETWEEN:
                return f"{self._attribute}: {name!r} is no name of a tensor"
            if _size(size) is None:
                return f"{self._attribute}: {name!r} has the size {size!r:.60}, which is no number of bytes"
        return ""


def _size(text: str) -> int | None:
    """Return a size from its text, which some writers give with decimals ("2097152.0"); None if it is none."""
    whole, _, decimals = text.partition(".")
    if not text.isascii() or not whole.isdigit() or len(whole) >= 20 or not (decimals.isdigit() or not decimals):
        return None
    size = int(whole) + (decimals[:1] >= "5")
    return size if size < 2**63 else None
