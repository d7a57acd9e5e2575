"""The communication of a rank in file order, without the rest of its trace: what checks of all ranks keep in memory."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from dsx.traces.columns import Lists, RankTrace, Texts
from dsx.traces.dag import joined
from dsx.traces.file_order import stands_in_order
from dsx.traces.folder import WORLD
from dsx.traces.messages import COMM_COLL, COMM_RECV, COMM_SEND


@dataclass(frozen=True, slots=True)
class Communication:
    """Sends, receives and collectives of a rank; those that have no peer or no group of the rank are left out."""

    rank: int
    ids: np.ndarray  # [N] int64
    names: Texts
    types: np.ndarray  # [N] int8: COMM_SEND, COMM_RECV or COMM_COLL
    groups: Texts  # "" is the group of all ranks
    collectives: np.ndarray  # [N] int64, kinds of collectives
    sizes: np.ndarray  # [N] int64, bytes
    sources: np.ndarray  # [N] int64, sending rank; -1 for collectives
    targets: np.ndarray  # [N] int64, receiving rank; -1 for collectives
    tags: np.ndarray  # [N] int64
    rows: np.ndarray  # [N] int64, in the trace
    in_order: bool  # whether no node of the trace depends on a later one of the file
    # What the nodes of the trace depend on; None if that says no more of the order than the file: the communication is
    # a chain, or there are no dependencies.
    deps: Lists | None


def communication_of(trace: RankTrace, members_of: Callable[[str], Collection[int] | None]) -> Communication:
    """Return the communication of a trace; `members_of` has the ranks of a process group, None for an unknown one."""
    types = trace.types
    members = [trace.rank in (members_of(name) or ()) for name in trace.groups.table]
    joins = np.array([*members, trace.rank in (members_of("") or ())], bool)[trace.groups.codes]
    kept = np.flatnonzero(
        ((types == COMM_COLL) & joins)
        | ((types == COMM_SEND) & (trace.comm_dst >= 0))
        | ((types == COMM_RECV) & (trace.comm_src >= 0))
    )
    types = types[kept]
    before = joined(trace.ctrl_deps, trace.data_deps)
    after = np.repeat(np.arange(trace.num_nodes), np.diff(before.starts))
    previous = np.full(trace.num_nodes, -1)
    previous[kept[1:]] = kept[:-1]
    linked = np.unique(after[before.values == previous[after]])
    in_order = stands_in_order(trace)
    chained = in_order and len(linked) >= len(kept) - 1
    return Communication(
        rank=trace.rank,
        ids=trace.ids[kept],
        names=_part(trace.names, kept),
        types=types,
        groups=_one_world(_part(trace.groups, kept)),
        collectives=trace.comm_type[kept],
        sizes=trace.comm_size[kept],
        sources=np.select([types == COMM_SEND, types == COMM_RECV], [trace.rank, trace.comm_src[kept]], -1),
        targets=np.select([types == COMM_SEND, types == COMM_RECV], [trace.comm_dst[kept], trace.rank], -1),
        tags=trace.comm_tag[kept],
        rows=kept,
        in_order=in_order,
        deps=None if chained or not len(before.values) else before,
    )


def _part(texts: Texts, rows: np.ndarray) -> Texts:
    """Return the texts of some rows, with a table of these alone."""
    used, codes = np.unique(texts.codes[rows], return_inverse=True)
    table = ["" if code < 0 else texts.table[code] for code in used.tolist()]
    return Texts(table, codes.astype(np.int32))


def _one_world(groups: Texts) -> Texts:
    return Texts(["" if name in WORLD else name for name in groups.table], groups.codes)
