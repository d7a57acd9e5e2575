"""What ranks do together: the k-th collective of a group is an event of its members, a send and its receive another."""

from collections.abc import Sequence

import numpy as np

from dsx.traces.communication import Communication
from dsx.traces.messages import COLLECTIVES, COMM_COLL

_KINDS = {code: name for name, code in COLLECTIVES.items()}


class JointEvents:
    """The communication of all ranks as columns, rank after rank, and the event of each row."""

    def __init__(self, parts: Sequence[Communication]) -> None:
        self.parts = parts
        self.begins = np.cumsum([0, *(len(part.ids) for part in parts)])
        self.ranks = np.repeat(np.array([part.rank for part in parts]), np.diff(self.begins))
        self.types = np.concatenate([part.types for part in parts])
        self.collectives = np.concatenate([part.collectives for part in parts])
        self.sizes = np.concatenate([part.sizes for part in parts])
        self.sources = np.concatenate([part.sources for part in parts])
        self.targets = np.concatenate([part.targets for part in parts])
        self.tags = np.concatenate([part.tags for part in parts])
        self.group_names, self.groups = _one_table(parts)
        collective = self.types == COMM_COLL
        # A row's partners have the same label, and the same number of rows with it before them in their rank.
        self.labels = _codes(
            np.where(collective, self.groups, -1), self.sources, self.targets, np.where(collective, -1, self.tags)
        )
        self.turns = _turns(_codes(self.labels, self.ranks, self.types))
        self.events = _codes(self.labels, self.turns)

    @property
    def num_events(self) -> int:
        """Number of events."""
        return int(self.events.max(initial=-1)) + 1

    def of_part(self, part: int) -> np.ndarray:
        """Return the events of a rank in the order of its file, by its position in `parts`."""
        return self.events[self.begins[part] : self.begins[part + 1]]

    def name(self, row: int) -> str:
        """Return the name of a node."""
        part, at = self._place(row)
        return self.parts[part].names.of(at)

    def node(self, row: int) -> int:
        """Return the id of a node."""
        part, at = self._place(row)
        return int(self.parts[part].ids[at])

    def _place(self, row: int) -> tuple[int, int]:
        part = int(np.searchsorted(self.begins, row, side="right")) - 1
        return part, row - int(self.begins[part])

    def text(self, row: int) -> str:
        """Return what a node does: "ALL_REDUCE 3 of group '1'", "transfer 0 -> 1 with tag 7"."""
        if self.types[row] != COMM_COLL:
            return f"transfer {self.sources[row]} -> {self.targets[row]} with tag {self.tags[row]}"
        group = self.group_names[self.groups[row]]
        return f"{kind_text(self.collectives[row])} {self.turns[row] + 1} of {group_text(group)}"


def _one_table(parts: Sequence[Communication]) -> tuple[list[str], np.ndarray]:
    """Return the names of all groups, and that of each row as a position among them."""
    codes: dict[str, int] = {}
    columns = []
    for part in parts:
        own = np.array([codes.setdefault(name, len(codes)) for name in part.groups.table], np.int64)
        columns.append(own[part.groups.codes])
    return list(codes), np.concatenate(columns)


def _codes(*columns: np.ndarray) -> np.ndarray:
    """Return a number for each row, equal where all columns are: 0, 1, 2, ... in the order of the columns."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), bool)
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    codes = np.empty(len(order), np.int64)
    codes[order] = np.cumsum(new)
    return codes


def _turns(codes: np.ndarray) -> np.ndarray:
    """Return for each row how many earlier rows have its code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    turns = np.empty(len(codes), np.int64)
    turns[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered)
    return turns


def kind_text(code: int) -> str:
    """Return the name of a kind of collective."""
    return _KINDS.get(int(code), f"collective {code}")


def group_text(name: str) -> str:
    """Return how messages call a process group."""
    return f"group {name!r}" if name else "the group of all ranks"
