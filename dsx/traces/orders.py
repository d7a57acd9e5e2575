"""Orders: of the nodes of a rank by their dependencies, of what ranks do together, and of the starts of nodes.

The k-th collective of a group is an event of its members, a send and its receive another. If their order has a cycle,
ranks wait for each other for ever. The order of a file is the program order of its rank, unless it cannot be: a node
depends on a later one, or the files of the ranks contradict each other. Then the dependencies decide, and the order of
a file counts only where it states no dependencies at all. In a file that chains its communication both are the same.

Where files have no program order, nodes start as soon as dependencies allow. Each rank computes one node at a time, of
those that may start the one that is first in its file. Communication and transfers to the host start as soon as they
may, a collective when all its ranks have reached it. Every rank then has its nodes in the order of their starts, so the
orders of ranks do not contradict each other.
"""

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from dsx.traces.codec import COLLECTIVE_NAMES, COMM_COLL, COMM_RECV, COMM_SEND, COMP
from dsx.traces.columns import Lists, RankTrace, Texts, lists_of, occurrences
from dsx.traces.read import WORLD

_SHOWN = 6  # events in a message


def joined(*lists: Lists) -> Lists:
    """Return the lists of each node one after the other."""
    owners = np.concatenate([part.owners() for part in lists])
    values = np.concatenate([part.values for part in lists])
    lengths = np.bincount(owners, minlength=lists[0].num_nodes)
    return lists_of(lengths, values[np.argsort(owners, kind="stable")])


def topological_order(causes: Lists) -> np.ndarray:
    """Return the nodes, each after its `causes`; fewer than all if some are on or behind a cycle.

    Of nodes that may come next the first one does, so it is the order of the nodes themselves if that is one.
    """
    if np.all(causes.values < causes.owners()):
        return np.arange(causes.num_nodes)
    effects = causes.reversed().tolist()
    missing = np.diff(causes.starts).tolist()
    ready = [node for node, number in enumerate(missing) if number == 0]  # in ascending order, which is a heap
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for effect in effects[node]:
            missing[effect] -= 1
            if missing[effect] == 0:
                heapq.heappush(ready, effect)
    return np.array(order, np.int64)


def cycle(causes: Lists) -> list[int]:
    """Return the nodes of a cycle, each a cause of the next one, and the last of the first; empty if there is none.

    The first of them is the one with the smallest number.
    """
    order = topological_order(causes)
    if len(order) == causes.num_nodes:
        return []
    waiting = np.ones(causes.num_nodes, bool)
    waiting[order] = False
    # Each node that waits has a cause that waits: going back ends in a cycle.
    node, places, path = int(np.flatnonzero(waiting)[0]), {}, []
    while node not in places:
        places[node] = len(path)
        path.append(node)
        of_node = causes.of(node)
        node = int(of_node[waiting[of_node]][0])
    around = path[places[node] :][::-1]
    first = around.index(min(around))
    return around[first:] + around[:first]


def stands_in_order(trace: RankTrace) -> bool:
    """Return whether no node depends on a later one."""
    return all(bool(np.all(part.values < part.owners())) for part in (trace.ctrl_deps, trace.data_deps))


def after_dependencies(trace: RankTrace) -> RankTrace:
    """Return a trace whose nodes stand behind those that they depend on, else as in its file; the same for a cycle."""
    order = topological_order(joined(trace.ctrl_deps, trace.data_deps))
    return in_order(trace, order) if len(order) == trace.num_nodes else trace


def in_order(trace: RankTrace, rows: np.ndarray) -> RankTrace:
    """Return a trace with all its nodes in the order of `rows`."""
    if np.array_equal(rows, np.arange(trace.num_nodes)):
        return trace
    places = np.argsort(rows)
    columns: dict[str, Lists | Texts | np.ndarray] = {}
    for name in (field.name for field in fields(trace)):
        column = getattr(trace, name)
        if isinstance(column, Lists):
            lengths = np.diff(column.starts)[rows]
            moved = lists_of(lengths, column.values)
            shift = np.repeat(column.starts[rows] - moved.starts[:-1], lengths)
            values = column.values[np.arange(len(shift)) + shift]
            columns[name] = Lists(moved.starts, places[values] if name in ("ctrl_deps", "data_deps") else values)
        elif isinstance(column, Texts):
            columns[name] = Texts(column.table, column.codes[rows])
        elif isinstance(column, np.ndarray) and name not in ("tensor_bytes", "unknown_deps"):  # which are not of nodes
            columns[name] = column[rows]
    partner, unknown = trace.partner[rows], trace.unknown_deps.copy()
    columns["partner"] = np.where(partner >= 0, places[partner], partner)
    unknown[:, 0] = places[unknown[:, 0]]
    return replace(trace, **columns, unknown_deps=unknown)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class Communication:
    """Sends, receives and collectives of a rank in file order, which checks of all ranks keep in memory.

    Those that have no peer or no group of the rank are left out.
    """

    rank: int
    ids: np.ndarray  # [N] int64
    names: Texts
    types: np.ndarray  # [N] int8: COMM_SEND, COMM_RECV or COMM_COLL
    groups: Texts
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
    members = [trace.rank in (members_of(name) or ()) for name in (*trace.groups.table, "")]  # the code of "" is -1
    joins = np.array(members, bool)[trace.groups.codes]
    kept = np.flatnonzero(
        ((types == COMM_COLL) & joins)
        | ((types == COMM_SEND) & (trace.comm_dst >= 0))
        | ((types == COMM_RECV) & (trace.comm_src >= 0))
    )
    types = types[kept]
    deps, previous = joined(trace.ctrl_deps, trace.data_deps), np.full(trace.num_nodes, -1)
    previous[kept[1:]] = kept[:-1]
    owners = deps.owners()
    linked = np.unique(owners[deps.values == previous[owners]])
    in_order, sends, receives = stands_in_order(trace), types == COMM_SEND, types == COMM_RECV
    chained = in_order and len(linked) >= len(kept) - 1
    return Communication(
        rank=trace.rank,
        ids=trace.ids[kept],
        names=_part(trace.names, kept),
        types=types,
        groups=_part(trace.groups, kept),
        collectives=trace.comm_type[kept],
        sizes=trace.comm_size[kept],
        sources=np.select([sends, receives], [trace.rank, trace.comm_src[kept]], -1),
        targets=np.select([sends, receives], [trace.comm_dst[kept], trace.rank], -1),
        tags=trace.comm_tag[kept],
        rows=kept,
        in_order=in_order,
        deps=None if chained or not len(deps.values) else deps,
    )


def _part(texts: Texts, rows: np.ndarray) -> Texts:
    """Return the texts of some rows, with a table of these alone."""
    used, codes = np.unique(texts.codes[rows], return_inverse=True)
    table = ["" if code < 0 else texts.table[code] for code in used.tolist()]
    return Texts(table, codes.astype(np.int32))


class JointEvents:
    """The communication of all ranks as columns, rank after rank, and the event of each row."""

    def __init__(self, parts: Sequence[Communication]) -> None:
        self.parts = parts
        self.begins = np.cumsum([0, *(len(part.ids) for part in parts)])
        self.ranks = np.repeat(np.array([part.rank for part in parts]), np.diff(self.begins))
        self.types, self.collectives, self.sizes, self.sources, self.targets, self.tags = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("types", "collectives", "sizes", "sources", "targets", "tags")
        )
        codes: dict[str, int] = {}  # positions of the names of all groups; the group of all ranks is ""
        groups: list[np.ndarray] = []
        for part in parts:
            table = [codes.setdefault("" if name in WORLD else name, len(codes)) for name in part.groups.table]
            groups.append(np.array(table, np.int64)[part.groups.codes])
        self.group_names, self.groups = list(codes), np.concatenate(groups)
        collective = self.types == COMM_COLL
        # A row's partners have the same label, and the same number of rows with it before them in their rank.
        self.labels = _codes(
            np.where(collective, self.groups, -1), self.sources, self.targets, np.where(collective, -1, self.tags)
        )
        self.turns = occurrences(_codes(self.labels, self.ranks, self.types))
        self.events = _codes(self.labels, self.turns)

    @property
    def num_events(self) -> int:
        """Number of events."""
        return int(self.events.max(initial=-1)) + 1

    def of_part(self, part: int) -> np.ndarray:
        """Return the events of a rank in the order of its file, by its position in `parts`."""
        return self.events[self.begins[part] : self.begins[part + 1]]

    def node(self, row: int) -> tuple[int, str]:
        """Return the id and the name of a node."""
        place = int(np.searchsorted(self.begins, row, side="right")) - 1
        part, at = self.parts[place], row - int(self.begins[place])
        return int(part.ids[at]), part.names.of(at)

    def text(self, row: int) -> str:
        """Return what a node does: "ALL_REDUCE 3 of group '1'", "transfer 0 -> 1 with tag 7"."""
        if self.types[row] != COMM_COLL:
            return f"transfer {self.sources[row]} -> {self.targets[row]} with tag {self.tags[row]}"
        group = self.group_names[self.groups[row]]
        return f"{kind_text(self.collectives[row])} {self.turns[row] + 1} of {group_text(group)}"


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


def kind_text(code: int) -> str:
    """Return the name of a kind of collective."""
    return COLLECTIVE_NAMES.get(int(code), f"collective {code}")


def group_text(name: str) -> str:
    """Return how messages call a process group."""
    return f"group {name!r}" if name else "the group of all ranks"


class StepGraph(NamedTuple):
    """What waits for what on all ranks: vertices are the events, then the other nodes rank after rank."""

    causes: Lists  # of each vertex, those before it
    parts: np.ndarray  # of each edge in `causes`, the rank that has it, by its position
    vertices: list[np.ndarray]  # of each rank, those of its nodes in file order; none where the file order counts


def step_graph(joint: JointEvents, deps: Sequence[Lists | None]) -> StepGraph:
    """Return the graph of a step; `deps` has the dependencies of each rank, None where the file order counts."""
    count = joint.num_events
    sources, targets, vertices = [], [], []
    for at, (part, lists) in enumerate(zip(joint.parts, deps, strict=True)):
        events, of_rank = joint.of_part(at), np.arange(count, count + (0 if lists is None else lists.num_nodes))
        if lists is None:
            edges = events[:-1], events[1:]
        else:
            of_rank[part.rows] = events
            edges = of_rank[lists.values], of_rank[lists.owners()]
        count += len(of_rank)
        vertices.append(of_rank)
        sources.append(edges[0])
        targets.append(edges[1])
    parts = np.repeat(np.arange(len(sources)), [*map(len, sources)])
    source, target = np.concatenate(sources), np.concatenate(targets)
    between = np.flatnonzero(source != target)
    between = between[np.argsort(target[between], kind="stable")]
    starts = np.searchsorted(target[between], np.arange(count + 1))
    return StepGraph(Lists(starts, source[between]), parts[between], vertices)


def contradiction(joint: JointEvents) -> str:
    """Return the events of a cycle if the orders of all ranks contradict each other; empty if they do not."""
    steps = _steps(joint, [None if part.in_order else part.deps for part in joint.parts])
    deps = [part.deps for part in joint.parts]
    if not steps or (any(lists is not None for lists in deps) and not _steps(joint, deps)):
        return ""
    return "; ".join(steps[:_SHOWN]) + (f"; and {len(steps) - _SHOWN:,} more" if len(steps) > _SHOWN else "")


def _steps(joint: JointEvents, deps: Sequence[Lists | None]) -> list[str]:
    """Return which rank has which event before which, around a cycle; empty if there is none."""
    graph = step_graph(joint, deps)
    around = cycle(graph.causes)
    events = [at for at, vertex in enumerate(around) if vertex < joint.num_events]
    if not events:  # of one rank, which is a fault of its file
        return []
    steps = []
    for at, then in zip(events, events[1:] + events[:1], strict=True):
        effect = around[(at + 1) % len(around)]
        edges = slice(graph.causes.starts[effect], graph.causes.starts[effect + 1])
        part = int(graph.parts[edges][graph.causes.values[edges] == around[at]][0])
        rows = [int(np.flatnonzero(joint.of_part(part) == around[place])[0]) for place in (at, then)]
        first, second = (joint.text(int(joint.begins[part]) + row) for row in rows)
        steps.append(f"rank {joint.parts[part].rank} has {first} before {second}")
    return steps


def start_orders(traces: Sequence[RankTrace], seconds: Sequence[np.ndarray], joint: JointEvents) -> list[np.ndarray]:
    """Return the rows of each trace in the order of their starts; `seconds` has those of its nodes.

    `joint` is the communication of the traces, whose dependencies have no cycle.
    """
    graph = step_graph(joint, [joined(trace.ctrl_deps, trace.data_deps) for trace in traces])
    count = graph.causes.num_nodes
    took = np.zeros(count)
    nodes: list[list[tuple[int, int]]] = [[] for _ in range(count)]  # of each vertex: rank by its position, row
    computes = np.zeros(count, bool)
    for at, (trace, vertices) in enumerate(zip(traces, graph.vertices, strict=True)):
        np.maximum.at(took, vertices, seconds[at])
        computes[vertices[trace.types == COMP]] = True
        for row, vertex in enumerate(vertices.tolist()):
            nodes[vertex].append((at, row))
    effects = graph.causes.reversed().tolist()
    missing, lasts, on_compute = np.diff(graph.causes.starts).tolist(), took.tolist(), computes.tolist()

    orders: list[list[int]] = [[] for _ in traces]
    waiting: list[list[tuple[int, int]]] = [[] for _ in traces]  # computations that may start: row, vertex
    busy = [False] * len(traces)
    ends: list[tuple[float, int]] = []  # of what has started: seconds, vertex

    def start(vertex: int, now: float) -> None:
        for at, row in nodes[vertex]:
            orders[at].append(row)
        heapq.heappush(ends, (now + lasts[vertex], vertex))

    def may_start(vertex: int, now: float) -> None:
        if on_compute[vertex]:
            at, row = nodes[vertex][0]
            heapq.heappush(waiting[at], (row, vertex))
        else:
            start(vertex, now)

    for vertex, number in enumerate([*missing]):
        if number == 0:
            may_start(vertex, 0.0)
    now = 0.0
    while True:
        while ends and ends[0][0] <= now:
            _, vertex = heapq.heappop(ends)
            if on_compute[vertex]:
                busy[nodes[vertex][0][0]] = False
            for effect in effects[vertex]:
                missing[effect] -= 1
                if missing[effect] == 0:
                    may_start(effect, now)
        for at, rows in enumerate(waiting):
            if rows and not busy[at]:
                busy[at] = True
                start(heapq.heappop(rows)[1], now)
        if not ends:
            return [np.array(order, np.int64) for order in orders]
        now = ends[0][0]
