"""Writes the files of a trace: a file for each rank, the groups of ranks, and a manifest that says what they are.

Files are written aside and renamed, so a file is whole or absent. A run that was stopped goes on: where the manifest is
that of the same trace, files that are there are kept, and those with other bytes are written again. The bytes of a rank
do not depend on which ranks are written.

The name of a group is a whole number from 1 on. Groups are those of the whole job, so names do not depend on which
ranks are written. Groups of one rank have no name, and groups with the same members have one.

Seconds are those of `dsx.cost`, which also price the plan. The launches of a kernel share its time
(`dsx.traces.node_times`), so those of a layer add up to its price. A kernel with a measured time takes that. Ranks of
a stage have the same durations. Where groups are placed unlike each other, each communication takes as long as that of
the group, or the pair of ranks, which shares least (`dsx.plans.placement`); a replay places each of them.
"""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

import dsx
from dsx.config.cluster_file import Cluster
from dsx.cost.context import Assumptions
from dsx.errors import InputError, StoreError
from dsx.files import MANIFEST, OpenFolder
from dsx.notation.model import divides
from dsx.plans.ranks import zero_groups
from dsx.progress import remark
from dsx.traces.codec import COMM_COLL, COMM_SEND, COMP, MEM_LOAD, MEM_STORE, varint
from dsx.traces.columns import blank_trace, lists_of, texts_of
from dsx.traces.layer_nodes import Compute
from dsx.traces.node_times import KernelPricer, Link, LinkTimes, placement
from dsx.traces.read import GROUPS
from dsx.traces.stage_file import GROUP, PEER, RankValues, StageEncoder, metadata
from dsx.traces.stage_items import StageBuilder, whole_order
from dsx.traces.traced_plan import TracedPlan, TraceNode
from dsx.units import counted, format_quantity


@dataclass(frozen=True)
class RankGroups:
    """The groups of a job: by key, arrays [groups, members] of ranks and [groups] names."""

    members: dict[Hashable, np.ndarray]
    names: dict[Hashable, np.ndarray]
    of_rank: dict[Hashable, np.ndarray]  # [world] row of each rank's group; -1 without one
    ranks: dict[int, list[int]]  # by name

    def name(self, key: Hashable, rank: int) -> str:
        """Return the name of a rank's group; empty if it has none."""
        row = int(self.of_rank[key][rank]) if key in self.of_rank else -1
        return "" if row < 0 else str(self.names[key][row])

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
    members: dict[Hashable, np.ndarray] = {
        ("axis", axis): grid.groups((axis,)) for axis in ("tp", "tp2", "cp", "ep") if int(columns[axis]) > 1
    }
    gathers = divides(int(columns["zero_stage"]), "weight")
    for ranks in weight_groups if gathers or not plan.forward_only else ():
        members["shards", ranks], members["replicas", ranks] = zero_groups(
            grid, ("dp", *ranks.axes), plan.replicas(ranks), ranks.over_ep, plan.holds.num_chains
        )
    if plan.ties_ends:
        first = np.flatnonzero(grid.columns["pp"] == 0)
        last = [grid.stage_peer(int(rank), int(columns["pp"]) - 1) for rank in first]
        members["ends",] = np.stack([first, np.array(last)], axis=1)
    groups = RankGroups({key: rows for key, rows in members.items() if rows.shape[1] > 1}, {}, {}, {})
    numbers: dict[bytes, int] = {}  # names by the members
    for key, rows in groups.members.items():
        names = [numbers.setdefault(row.tobytes(), len(numbers) + 1) for row in np.sort(rows, axis=1)]
        for name, row in zip(names, rows.tolist(), strict=True):
            groups.ranks.setdefault(name, row)
        groups.names[key] = np.array(names)
        groups.of_rank[key] = np.full(grid.world, -1, dtype=np.int64)
        groups.of_rank[key][rows.ravel()] = np.repeat(np.arange(len(rows)), rows.shape[1])
    return groups


def rank_values(plan: TracedPlan, groups: RankGroups, rank: int, peers: Sequence[Hashable]) -> RankValues:
    """Return what the file of a rank has in its gaps; `peers` are keys of ranks at the other end."""
    names: dict[Hashable, bytes] = {(GROUP, key): groups.name(key, rank).encode() for key in groups.members}
    return names | {(PEER, key): varint(peer_of(plan, groups, rank, key)) for key in peers}


def peer_of(plan: TracedPlan, groups: RankGroups, rank: int, key: Hashable) -> int:
    """Return the rank at the other end: on another stage, or some places on in the ring of an axis."""
    match key:
        case ("stage", int(stage)):
            return plan.grid.stage_peer(rank, stage)
        case ("ring", str(axis), int(way)):
            of_axis = ("axis", axis)
            ring = groups.members[of_axis][groups.of_rank[of_axis][rank]].tolist()
            return ring[(ring.index(rank) + way) % len(ring)]
        case _:
            raise ValueError(f"no rank is at the other end of {key}")


@dataclass(frozen=True, slots=True)
class Machine:
    """What durations depend on besides the plan."""

    cluster: Cluster
    assumptions: Assumptions
    # Seconds over those of the roofline, by kernel text, of kernels with measured times.
    measured: Mapping[str, float] = field(default_factory=dict)
    slow: Mapping[int, float] = field(default_factory=dict)  # how many times as long kernels take on slow ranks


class NodeDurations:
    """Prices the nodes of a plan's stages."""

    def __init__(self, machine: Machine, plan: TracedPlan, groups: RankGroups) -> None:
        cluster, assumptions = machine.cluster, machine.assumptions
        self._plan, self._groups, self._assumptions = plan, groups, assumptions
        self._measured = machine.measured
        num_ranks = int(plan.columns["num_gpus"])
        self._kernels = KernelPricer(cluster, assumptions, num_ranks)
        self._links = LinkTimes(cluster, assumptions, num_ranks)
        self._placed = placement(cluster.network, plan.grid.ranks_per_domain)
        self._shares = functools.cache(lambda key: self._placed.shares(groups.members[key]))
        self._link = functools.cache(self._least_link)
        self._launches: dict[Compute, float] = {}
        for nodes in plan.distinct_nodes.values():
            self._price([node.compute for node in (*nodes.forward, *nodes.backward) if node.compute])

    def set(self, nodes: Iterable[TraceNode], stage: int, slowness: float = 1.0) -> None:
        """Give nodes of a stage their durations; a receive has none of its own."""
        for node in nodes:
            seconds = self._seconds(node, stage)
            if seconds is not None and node.type == COMP and not node.on_host:
                seconds *= slowness
            node.duration_ns = None if seconds is None else seconds * 1e9

    def _seconds(self, node: TraceNode, stage: int) -> float | None:
        sent, work = node.communication, node.compute
        if work is not None:
            if node.on_host:
                return float(self._kernels.host_s(work.bytes))
            if work not in self._launches:
                self._price([work])
            return self._launches[work]
        if node.type in (MEM_LOAD, MEM_STORE):
            return float(self._links.transfer_s(node.transfer_bytes))
        if sent is None:
            return None
        if node.type == COMM_COLL:
            num_ranks = self._groups.members[sent.group].shape[1]
            return self._links.collective_s(sent.kind, num_ranks, self._shares(sent.group), sent.size, sent.routing)
        return self._links.send_s(self._link(stage, sent.peer), sent.size) if node.type == COMM_SEND else None

    def _least_link(self, stage: int, peer: Hashable) -> Link:
        """Return which tiers some send of a stage's ranks crosses."""
        ranks = np.flatnonzero(self._plan.grid.columns["pp"] == stage)
        return self._placed.link(ranks, [peer_of(self._plan, self._groups, rank, peer) for rank in ranks.tolist()])

    def _price(self, works: Sequence[Compute]) -> None:
        """Price launches of which each kernel has each of its own as often as the others."""
        if works:
            names = ("matrix_flops", "vector_flops", "bytes", "unfused_bytes", "launches")
            columns = {name: np.array([getattr(work, name) for work in works], np.int64) for name in names}
            trace = replace(
                blank_trace(len(works)),
                types=np.full(len(works), COMP, np.int8),
                num_ops=np.maximum(columns["matrix_flops"] + columns["vector_flops"], 1),
                tensor_size=np.maximum(columns.pop("bytes"), 1),
                multiplies=lists_of(
                    np.array([len(work.multiplies) for work in works]),
                    np.array([number for work in works for number in work.multiplies], np.int64),
                ),
                op_types=texts_of([work.op_type for work in works]),
                kernels=texts_of([work.kernel_text for work in works]),
                **columns,
            )
            for work, seconds in zip(works, self._kernels(trace).launch_s.tolist(), strict=True):
                self._launches[work] = seconds * self._measured.get(work.kernel_text, 1.0)


ALL, STAGES = "all", "stages"
_SPARE = 1 << 20  # bytes of the disk that stay free
_SHOWN = 4  # differences in an error
_HASHED = {"layers": "other layer definitions", "values": "other layers, or other values of cluster or assumptions"}

Manifest = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """What was written."""

    ranks: tuple[int, ...]
    num_nodes: int  # of all files
    num_bytes: int
    num_groups: int
    kept: int  # files that were there, whole


def file_name(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"trace.{rank}.et"


def chosen_ranks(plan: TracedPlan, ranks: str | Sequence[int]) -> tuple[int, ...]:
    """Return the ranks to write: all, the first one of each stage, or those that are listed.

    Raises InputError for a rank outside of the job.
    """
    world = plan.grid.world
    if ranks == ALL:
        return tuple(range(world))
    if ranks == STAGES:
        return tuple(plan.grid.rank(pp=stage) for stage in range(plan.columns["pp"]))
    for rank in ranks:
        if not 0 <= int(rank) < world:
            raise InputError(f"ranks: there is no rank {rank}; the job has the ranks 0 to {world - 1}")
    return tuple(sorted({int(rank) for rank in ranks}))


class TraceWriter:
    """Writes the trace of a plan; with a `machine`, nodes have their durations on it."""

    def __init__(self, plan: TracedPlan, tensors: bool, machine: Machine | None = None) -> None:
        self._plan, self._tensors, self._machine = plan, tensors, machine
        self._groups = rank_groups(plan)

    def write(self, folder: Path, ranks: Sequence[int], about: Manifest, advance: Callable[[int], None]) -> TraceFiles:
        """Write the files of some ranks into a folder, which is made if it does not exist.

        `about` says in the manifest what is traced; `advance` is told of each file. Raises StoreError for a folder with
        another trace or too little space.
        """
        groups = self._groups.to_json()
        manifest = self._manifest(about, groups)
        try:
            if folder.exists() and not folder.is_dir():
                raise StoreError(f"{str(folder)!r} is a file: name a folder for the trace")
            folder.mkdir(parents=True, exist_ok=True)
            with OpenFolder(folder) as opened:
                earlier = _ranks_before(opened, manifest, groups)
                opened.remove_left()
                layouts = list(self._layouts(ranks))
                needed, free = sum(layout.missing_bytes(opened) for layout in layouts), os.statvfs(folder)
                if needed + _SPARE > free.f_bavail * free.f_frsize:
                    available = format_quantity(free.f_bavail * free.f_frsize, "bytes")
                    raise StoreError(
                        f"the trace needs {format_quantity(needed, 'bytes')} more in {str(folder)!r}, where "
                        f"{available} are free: write fewer ranks (ranks stages), or no tensors"
                    )
                present = sorted({*earlier, *ranks})
                complete = {**manifest, "ranks": present, **self._stands_for(present)}
                opened.write_whole(MANIFEST, (json.dumps(complete, indent=1) + "\n").encode())
                opened.write_whole(GROUPS, groups)
                size, kept = _write_ranks(opened, layouts, advance)
                nodes = sum(layout.encoder.num_nodes * len(layout.ranks) for layout in layouts)
                return TraceFiles(tuple(ranks), nodes, size, len(self._groups.ranks), kept)
        except OSError as error:
            raise StoreError(f"cannot write the trace to {str(folder)!r}: {error.strerror or error}") from error

    def _manifest(self, about: Manifest, groups: bytes) -> dict[str, object]:
        """Return what the manifest says of the trace but for its ranks; `trace` differs between any two traces."""
        plan = self._plan
        # What a trace depends on beyond what `about` says: the order of the layers, and the assumptions.
        values = {
            "order": [*map(plan.number, plan.layers)],
            "chain": plan.chain._asdict(),
            "stage_layers": None if plan.stage_layers is None else [*plan.stage_layers],
            "assumptions": plan.assumptions.model_dump(mode="json"),
            "machine": None if self._machine is None else asdict(self._machine),
            "groups": groups.decode(),
        }
        manifest: dict[str, object] = {
            "format": "dsx trace",
            "dsx_version": dsx.__version__,
            **about,
            "values": _digest(values),
            "tensors": self._tensors,
            "num_ranks": plan.grid.world,
            "ranks_per_domain": plan.grid.ranks_per_domain,
            "num_groups": len(self._groups.ranks),
        }
        return manifest | {"trace": _digest(manifest)}

    def _stands_for(self, ranks: Sequence[int]) -> dict[str, dict[str, list[int]]]:
        """Return the ranks that the first of each stage stands for; none if all have a file, or a stage has none."""
        grid, first = self._plan.grid, chosen_ranks(self._plan, STAGES)
        if len(ranks) == grid.world or not set(first) <= set(ranks):
            return {}
        stage = grid.columns["pp"]
        return {"stands_for": {str(rank): np.flatnonzero(stage == stage[rank]).tolist() for rank in first}}

    def _layouts(self, ranks: Sequence[int]) -> Iterator["_SameLayout"]:
        """Yield the files of some ranks, stage after stage."""
        plan = self._plan
        durations = NodeDurations(self._machine, plan, self._groups) if self._machine else None
        order = whole_order(plan)
        # Ranks by stage, whether they receive first in a ring (without one none does), and how slow they are.
        kinds: dict[tuple[int, bool, float], list[int]] = {}
        for rank in ranks:
            odd = bool(plan.ring_axis) and plan.grid.coordinates(rank)[plan.ring_axis] % 2 == 1
            slowness = self._machine.slow.get(rank, 1.0) if self._machine else 1.0
            kinds.setdefault((int(plan.grid.columns["pp"][rank]), odd, slowness), []).append(rank)
        for (stage, receives_first, slowness), of_kind in sorted(kinds.items()):
            items = StageBuilder(plan, stage, receives_first).build(order)
            if durations is not None:
                for of_pass in items.nodes.values():
                    durations.set(of_pass.nodes, stage, slowness)
            encoder = StageEncoder(items, self._tensors)
            of_lengths: dict[tuple[int, ...], list[tuple[int, RankValues]]] = {}
            for rank in of_kind:
                values = rank_values(plan, self._groups, rank, encoder.peers)
                of_lengths.setdefault(tuple(map(len, values.values())), []).append((rank, values))
            yield from (_SameLayout(encoder, of_layout) for of_layout in of_lengths.values())


@dataclass(frozen=True, slots=True)
class _SameLayout:
    """Ranks of a stage whose files have the same layout."""

    encoder: StageEncoder
    ranks: Sequence[tuple[int, RankValues]]

    def missing_bytes(self, folder: OpenFolder) -> int:
        """Return how much the disk needs for the files that are not there in their length."""
        content = self.encoder.num_bytes(self.ranks[0][1])
        sizes = ((file_name(rank), len(metadata(rank)) + content) for rank, _ in self.ranks)
        return sum(size for name, size in sizes if folder.size(name) != size)

    def files(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the ranks with what follows the header of their files, each valid until the next."""
        file = self.encoder.file(self.ranks[0][1])
        for rank, values in self.ranks:
            yield rank, file.of_rank(values)


def _digest(data: Mapping[str, object]) -> str:
    """Return a hash of plain data, the same whatever the order of its keys; numbers of NumPy are numbers."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=float).encode()).hexdigest()[:16]


def _ranks_before(folder: OpenFolder, manifest: Manifest, groups: bytes) -> list[int]:
    """Return the ranks that the folder has of this trace; StoreError if it has another one, or `groups` of one."""
    names = folder.names()
    same_groups = _holds(folder, GROUPS, b"", np.frombuffer(groups, np.uint8))
    if MANIFEST not in names:
        if files := [name for name in names if name.endswith(".et")]:
            raise StoreError(f"{folder.path} has trace files without a manifest ({files[0]}): give another folder")
        if GROUPS in names and not same_groups:
            raise StoreError(f"{folder.path} has a {GROUPS} of something else: give another folder")
        return []
    try:
        with folder.open(MANIFEST) as file:
            earlier = json.loads(file.read())
        trace, ranks = earlier["trace"], [int(rank) for rank in earlier.get("ranks", [])]
    except (ValueError, OverflowError, RecursionError, KeyError, TypeError):
        raise StoreError(f"{folder.path} has a {MANIFEST} of something else: give another folder") from None
    if trace != manifest["trace"]:
        raise StoreError(f"{folder.path} has another trace ({_differences(earlier, manifest)}): give another folder")
    if GROUPS in names and not same_groups:
        remark(f"{folder.path / GROUPS} had other groups than the trace, and is written again")
    return [rank for rank in ranks if file_name(rank) in names]


def _differences(earlier: Manifest, manifest: Manifest) -> str:
    """Return what of a trace in a folder differs from the one to write: "cluster 'a', not 'b'"."""
    texts: list[str] = []
    for name, value in manifest.items():
        # The columns of the plan say more than its text, and the groups follow from it.
        if name in ("trace", "plan", "num_groups", *_HASHED):
            continue
        old, new = earlier.get(name), value
        if not isinstance(old, dict) or not isinstance(new, dict):
            old, new = {name: old}, {name: new}
        texts += [f"{key} {old.get(key)!r}, not {of_key!r}" for key, of_key in new.items() if old.get(key) != of_key]
    texts = texts or [text for name, text in _HASHED.items() if earlier.get(name) != manifest.get(name)]
    more = [f"{len(texts) - _SHOWN} more differences"] if len(texts) > _SHOWN else []
    return "; ".join([*texts[:_SHOWN], *more]) or "another plan"


def _write_ranks(folder: OpenFolder, layouts: Sequence[_SameLayout], advance: Callable[[int], None]) -> tuple[int, int]:
    """Write the files that are missing or damaged; return their bytes, and how many files were kept."""
    size = kept = replaced = 0
    for rank, content in (file for layout in layouts for file in layout.files()):
        name, header = file_name(rank), metadata(rank)
        if _holds(folder, name, header, content):
            kept += 1
        else:
            replaced += folder.is_file(name)
            folder.write_whole(name, header, content.data, synced=False)
            size += len(header) + len(content)
        advance(1)
    if replaced:
        remark(f"{counted(replaced, 'file')} had other bytes than the trace: written again")
    return size, kept


def _holds(folder: OpenFolder, name: str, header: bytes, content: np.ndarray) -> bool:
    """Return whether a file has exactly these bytes."""
    if folder.size(name) != len(header) + len(content):
        return False
    with folder.open(name) as file:
        return file.read(len(header)) == header and np.array_equal(np.frombuffer(file.read(), np.uint8), content)
