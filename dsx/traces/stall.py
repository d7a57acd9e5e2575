"""Says why a replay cannot go on: ranks that wait for each other in a cycle, or for what no rank does."""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from dsx.errors import TraceError
from dsx.traces.node_names import node_text
from dsx.traces.program import RECEIVE, Program

_MOST_NAMED = 12  # ranks of a cycle


class Waiting(NamedTuple):
    """A rank that cannot go on."""

    program: Program
    row: int  # of the node in the program that it waits at
    missing: tuple[int, ...]  # ranks that it waits for


def raise_stalled(stalled: Sequence[Waiting]) -> NoReturn:
    """Raise TraceError that names what waits for what; `stalled` has all ranks that cannot go on."""
    waiting = {one.program.trace.rank: one for one in stalled}
    for rank, one in waiting.items():
        for other in one.missing:
            if other not in waiting:
                raise TraceError(f"the replay cannot go on: {_text(rank, one, other)}, which ends without that")
    path: list[int] = []
    rank = next(iter(waiting))
    while rank not in path:
        path.append(rank)
        rank = waiting[rank].missing[0]
    cycle = path[path.index(rank) :]
    texts = [_text(rank, waiting[rank], waiting[rank].missing[0]) for rank in cycle[:_MOST_NAMED]]
    more = len(cycle) - len(texts)
    texts += [f"and {more} more"] if more else []
    raise TraceError("the replay cannot go on, since ranks wait for each other: " + "; ".join(texts))


def _text(rank: int, waiting: Waiting, other: int) -> str:
    trace, row = waiting.program.trace, waiting.program.rows[waiting.row]
    node = node_text(trace, row)
    if waiting.program.roles[waiting.row] == RECEIVE:
        return f"rank {rank} waits at {node} for a send from rank {other} with tag {trace.comm_tag[row]}"
    return f"rank {rank} waits at {node} for rank {other}"
