"""The groups of ranks that communicate, by name, and what each rank of a stage has in its file.

A name is a whole number from 1 on. Groups are those of the whole job, so names do not depend on which ranks are
written. Groups of one rank have no name, and groups with the same members have one.
"""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.cost.layer import WeightGroup
from dsx.space.zero_groups import zero_groups
from dsx.traces.end_nodes import ENDS
from dsx.traces.stage_file import RankValues
from dsx.traces.traced_plan import TracedPlan
from dsx.traces.zero_nodes import replicas_key, shards_key

_FIRST = 1  # name of the first group


@dataclass(frozen=True)
class RankGroups:
    """The groups of a job: by key, arrays [groups, members] of ranks and [groups] names."""

    members: Mapping[Hashable, np.ndarray]
    names: Mapping[Hashable, np.ndarray]
    of_rank: Mapping[Hashable, np.ndarray]  # [world] row of each rank's group; -1 without one
    ranks: Mapping[int, list[int]]  # by name

    def name(self, key: Hashable, rank: int) -> str:
        """Return the name of a rank's group; empty if it has none."""
        row = int(self.of_rank[key][rank]) if key in self.of_rank else -1
        return "" if row < 0 else str(self.names[key][row])

    @property
    def count(self) -> int:
        """How many groups have a name."""
        return len(self.ranks)

    def to_json(self) -> bytes:
        """Return the content of comm_groups.json."""
        lines = (f'"{name}": {json.dumps(ranks)}' for name, ranks in self.ranks.items())
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def rank_groups(plan: TracedPlan) -> RankGroups:
    """Return all groups of a plan's job."""
    grid, columns = plan.grid, plan.columns
    weight_groups = dict.fromkeys(
        ranks
        for position in range(len(plan.layers))
        for ranks, weights in plan.nodes(position).groups.items()
        if weights
    )
    wanted: list[tuple[Hashable, np.ndarray]] = [
        (("axis", axis), grid.groups((axis,))) for axis in ("tp", "tp2", "cp", "ep") if int(columns[axis]) > 1
    ]
    for ranks in () if plan.forward_only else weight_groups:
        found = _holders(plan, ranks)
        wanted += [(shards_key(ranks), found[0]), (replicas_key(ranks), found[1])]
    if plan.ties_ends:
        first = np.flatnonzero(grid.columns["pp"] == 0)
        last = [grid.stage_peer(int(rank), int(columns["pp"]) - 1) for rank in first]
        wanted.append((ENDS, np.stack([first, np.array(last)], axis=1)))
    return _named(grid.world, wanted)


def _holders(plan: TracedPlan, ranks: WeightGroup) -> tuple[np.ndarray, np.ndarray]:
    axes = ("dp", *ranks.axes)
    replicas = plan.replicas(ranks)
    return tuple(zero_groups(plan.grid, axes, replicas, ranks.over_ep, plan.holds.num_chains))  # pyright: ignore


def _named(world: int, wanted: Iterable[tuple[Hashable, np.ndarray]]) -> RankGroups:
    members: dict[Hashable, np.ndarray] = {}
    names: dict[Hashable, np.ndarray] = {}
    of_rank: dict[Hashable, np.ndarray] = {}
    ranks: dict[int, list[int]] = {}
    known: dict[bytes, int] = {}  # names by the members
    for key, rows in wanted:
        if rows.shape[1] < 2:
            continue
        members[key] = rows
        own = [known.setdefault(row.tobytes(), len(known) + _FIRST) for row in np.sort(rows, axis=1)]
        for name, row in zip(own, rows.tolist(), strict=True):
            ranks.setdefault(name, row)
        names[key] = np.array(own)
        place = np.full(world, -1, dtype=np.int64)
        place[rows.ravel()] = np.repeat(np.arange(len(rows)), rows.shape[1])
        of_rank[key] = place
    return RankGroups(members, names, of_rank, ranks)


def rank_values(plan: TracedPlan, groups: RankGroups, rank: int, peers: Sequence[Hashable]) -> RankValues:
    """Return what the file of a rank has in its gaps; `peers` are keys of ranks at the other end."""
    return RankValues(
        {key: groups.name(key, rank) for key in groups.members},
        {key: peer_of(plan, groups, rank, key) for key in peers if isinstance(key, tuple)},
    )


def peer_of(plan: TracedPlan, groups: RankGroups, rank: int, key: tuple[Any, ...]) -> int:
    """Return the rank at the other end: on another stage, or some places on in the ring of an axis."""
    what, *where = key
    if what == "stage":
        return plan.grid.stage_peer(rank, *where)
    axis, way = where
    of_axis = ("axis", axis)
    ring = groups.members[of_axis][groups.of_rank[of_axis][rank]].tolist()
    return ring[(ring.index(rank) + way) % len(ring)]
