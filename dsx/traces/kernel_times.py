"""The seconds of the launches of a trace, multiplies in panels included.

Multiplies in panels: which collectives bring the panels of their operands, and which take those of their result.

A multiply in n panels has n collectives for each operand that comes in panels, one node each, and n for its result if
that is reduced. A node may name only the last one of them as its dependency, so all n count. On their stream the
collectives of the first panel come first, whatever their order in the file.

The seconds of the launches of a trace: their kernels by the roofline, as `dsx.cost.layer` prices them.

Launches with the same kernel text are one kernel. Its time is that of the sums of their FLOPs, bytes and launches, and
each launch has the share of it that it has of the compute time. The roofline is homogeneous: all executions of a kernel
in a file are priced as one, and an execution is an equal part of that.

A computation without a kernel text, as in traces of other writers, is a kernel of its own. One that states neither
operations nor bytes takes its stated duration. One on the host takes its bytes at the bandwidth of the host's memory:
an update of offloaded optimizer state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dsx.cost import arrays as xp
from dsx.cost.context import BF16, Assumptions
from dsx.cost.layer_work import Multiplies
from dsx.cost.offload import host_memory_rate
from dsx.cost.roofline import cast_bytes, compute_time, exposed_memory_time, memory_time, slowdowns
from dsx.hardware.cluster import Cluster, Device
from dsx.records import Array, ArrayLike
from dsx.traces.codec import ACCUMULATION, COLLECTIVES, COMM_COLL, COMP
from dsx.traces.columns import NUMBERS_OF_MULTIPLY, Distinct, RankTrace, distinct, hashed_lists, shape_of

_REDUCES = [COLLECTIVES[name] for name in ("REDUCE", "REDUCE_SCATTER", "ALL_REDUCE")]


@dataclass(frozen=True, slots=True)
class Panels:
    """The multiplies in panels of a rank, by the rows of its file."""

    # Row of a multiply -> for each of its panels, the rows of the collectives that bring it.
    brought: dict[int, list[list[int]]] = field(default_factory=dict)
    reduced: dict[int, int] = field(default_factory=dict)  # row of a collective of a result -> its panel
    order: Sequence[int] = ()  # rows in the order of the streams; empty for that of the file


def in_panels(trace: RankTrace) -> np.ndarray:
    """Return the [N] collectives of one panel of a multiply."""
    return (trace.types == COMM_COLL) & (trace.panels > 0)


def panels_of(trace: RankTrace) -> Panels:
    """Return the multiplies in panels of a rank."""
    collective = in_panels(trace)
    stated = np.flatnonzero((trace.types == COMP) & (trace.panels > 0))
    if not collective.any() and not stated.size:
        return Panels()
    rows = np.flatnonzero(collective)
    of_result = np.isin(trace.comm_type, _REDUCES) & collective
    number, series = _numbered(trace, rows)
    found = Panels(order=_in_order(trace, rows, number, of_result))
    for row, panels in zip(stated.tolist(), trace.panels[stated].tolist(), strict=True):
        found.brought[row] = [[] for _ in range(panels)]
    readers, read = np.repeat(np.arange(trace.num_nodes), np.diff(trace.data_deps.starts)), trace.data_deps.values
    brings = (trace.types[readers] == COMP) & collective[read] & ~of_result[read]
    for row, dep in zip(readers[brings].tolist(), read[brings].tolist(), strict=True):
        panels = found.brought.setdefault(row, [])
        panels += [[] for _ in range(len(series[dep]) - len(panels))]
        for member in series[dep]:
            if member not in panels[number[member]]:
                panels[number[member]].append(member)
    takes = of_result[readers] & (trace.types[read] == COMP)
    for row, dep in zip(readers[takes].tolist(), read[takes].tolist(), strict=True):
        found.brought.setdefault(dep, [[] for _ in series[row]])
        found.reduced[row] = number[row]
    return found


def _numbered(trace: RankTrace, rows: np.ndarray) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the panel of each collective, and the rows of all panels that it is one of."""
    number: dict[int, int] = {}
    series: dict[int, list[int]] = {}
    current: dict[tuple[int, ...], list[int]] = {}
    columns = (trace.panels, trace.groups.codes, trace.axes.codes, trace.comm_type)
    for row, *key in zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True):
        members = current.get(tuple(key))
        if members is None or len(members) == key[0]:
            members = current[tuple(key)] = []
        number[row], series[row] = len(members), members
        members.append(row)
    return number, series


def _in_order(trace: RankTrace, rows: np.ndarray, number: dict[int, int], of_result: np.ndarray) -> Sequence[int]:
    """Return all rows, with the collectives of adjacent rows by their panels; those of results stay behind others."""
    begins = (np.diff(rows, prepend=-2) > 1) | np.diff(of_result[rows], prepend=False)
    begins[:1] = True
    block = np.cumsum(begins)
    panel = np.array([number[row] for row in rows.tolist()], np.int64)
    place = np.arange(trace.num_nodes)
    place[rows] = rows[np.lexsort((rows, panel, block))]
    return place.tolist()


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """Seconds of the N nodes of a trace; 0 for those that are no computations."""

    launch_s: np.ndarray  # [N]
    execution: np.ndarray  # [N] int64, which execution of which kernel a launch belongs to; -1 for other nodes
    execution_s: np.ndarray  # [N] seconds of that whole execution

    def slowed(self, factor: float) -> "LaunchTimes":
        """Return the times of a GPU whose kernels take `factor` times as long."""
        return LaunchTimes(self.launch_s * factor, self.execution, self.execution_s * factor)


@dataclass(frozen=True, slots=True)
class _Launches:
    """R distinct launches of K kernels."""

    kernel: np.ndarray  # [R] position of the kernel
    counts: np.ndarray  # [R] nodes in the file
    matrix: np.ndarray  # [R] FLOPs
    vector: np.ndarray  # [R] FLOPs
    num_bytes: np.ndarray  # [R]
    unfused: np.ndarray  # [R] bytes
    launches: np.ndarray  # [R]
    stated_s: np.ndarray  # [R] stated duration of a launch that states no work, else NaN
    on_host: np.ndarray  # [R] bool
    accumulation: np.ndarray  # [R] bool: traffic after the kernel, which its compute does not hide
    owner: np.ndarray  # [M] launch of each multiply
    multiplies: np.ndarray  # [M, NUMBERS_OF_MULTIPLY]

    def key(self) -> tuple[bytes, ...]:
        """Return a key that equal launches share."""
        return tuple(getattr(self, name).tobytes() for name in self.__dataclass_fields__)


class KernelPricer:
    """Prices the launches of traces of a job of `num_ranks` GPUs; ranks with the same launches are priced once."""

    def __init__(self, cluster: Cluster, assumptions: Assumptions, num_ranks: int) -> None:
        self._device, self._assumptions = cluster.device, assumptions
        self._host_rate = np.asarray(host_memory_rate(float(num_ranks), cluster.node, assumptions))
        self._known: dict[tuple[bytes, ...], tuple[np.ndarray, np.ndarray]] = {}

    def host_s(self, num_bytes: ArrayLike) -> np.ndarray:
        """Return the seconds in which the memory of the host moves a rank's bytes, while all ranks of a node do so."""
        return np.asarray(num_bytes) / self._host_rate

    def __call__(self, trace: RankTrace) -> LaunchTimes:
        """Return the seconds of the launches of a trace."""
        nodes = np.flatnonzero(trace.types == COMP)
        on_host = trace.on_host > 0
        found = distinct([*_identity(trace, nodes), on_host[nodes]])
        launches = _launches(trace, nodes, found, on_host)
        key = launches.key()
        if key not in self._known:
            self._known[key] = _priced(launches, self._device, self._assumptions, self.host_s(launches.num_bytes))
        launch_s, kernel_s = self._known[key]
        executions = np.full(len(kernel_s), np.iinfo(np.int64).max)
        np.minimum.at(executions, launches.kernel, launches.counts)
        # A kernel may have several equal launches in each execution.
        per_execution = -(-launches.counts // executions[launches.kernel])
        execution = launches.kernel[found.which] << 32
        execution += _occurrences(found) // per_execution[found.which]
        execution_s = (kernel_s / executions)[launches.kernel]
        num_nodes = trace.num_nodes
        return LaunchTimes(
            _spread(num_nodes, nodes, launch_s[found.which], 0.0),
            _spread(num_nodes, nodes, execution, -1),
            _spread(num_nodes, nodes, execution_s[found.which], 0.0),
        )


def _identity(trace: RankTrace, nodes: np.ndarray) -> list[np.ndarray]:
    """Return the columns that tell launches apart."""
    named = ("num_ops", "tensor_size", "matrix_flops", "vector_flops", "unfused_bytes", "launches")
    columns = [trace.kernels.codes, trace.op_types.codes, *(getattr(trace, name) for name in named)]
    found = [column[nodes] for column in columns]
    # Durations are part of what tells launches apart only where they are their time.
    unpriced = (trace.num_ops[nodes] <= 0) & (trace.tensor_size[nodes] <= 0)
    durations = np.where(unpriced, trace.duration_ns[nodes], 0.0)
    return [*found, durations.view(np.int64), hashed_lists(trace.multiplies, nodes)]


def _launches(trace: RankTrace, nodes: np.ndarray, found: Distinct, on_host: np.ndarray) -> _Launches:
    rows = nodes[found.rows]
    num_ops, matrix = trace.num_ops[rows], trace.matrix_flops[rows]
    codes = trace.kernels.codes[rows].astype(np.int64)
    alone = np.flatnonzero(codes < 0)
    codes[alone] = len(trace.kernels.table) + np.arange(len(alone))
    unpriced = (num_ops <= 0) & (trace.tensor_size[rows] <= 0)
    lists = [trace.multiplies.of(row).reshape(-1, NUMBERS_OF_MULTIPLY) for row in rows.tolist()]
    return _Launches(
        kernel=np.unique(codes, return_inverse=True)[1],
        counts=found.counts,
        matrix=np.maximum(np.where(matrix < 0, num_ops, matrix), 0).astype(float),
        vector=np.maximum(trace.vector_flops[rows], 0).astype(float),
        num_bytes=np.maximum(trace.tensor_size[rows], 0).astype(float),
        unfused=np.maximum(trace.unfused_bytes[rows], 0).astype(float),
        launches=np.where(trace.launches[rows] < 0, 1, trace.launches[rows]).astype(float),
        stated_s=np.where(unpriced, trace.duration_ns[rows] * 1e-9, np.nan),
        on_host=on_host[rows],
        accumulation=np.array([text == ACCUMULATION for text in trace.op_types.table] + [False])[
            trace.op_types.codes[rows]
        ],
        owner=np.repeat(np.arange(len(rows)), [len(multiplies) for multiplies in lists]),
        multiplies=np.concatenate([*lists, np.empty((0, NUMBERS_OF_MULTIPLY), np.int64)]),
    )


@xp.unchecked
def _priced(
    launches: _Launches, device: Device, assumptions: Assumptions, host_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the [R] seconds of the launches, and the [K] seconds of all executions of the kernels.

    `host_s` are the [R] seconds of their bytes on the host.
    """
    shapes = tuple(map(shape_of, launches.multiplies[:, -1].tolist()))
    multiplies = _sizes(launches.multiplies)

    def per_launch(values: Array) -> np.ndarray:
        return np.bincount(launches.owner, np.asarray(values)[:, 0], len(launches.counts))

    def per_kernel(values: ArrayLike) -> np.ndarray:
        return np.bincount(launches.kernel, launches.counts * np.asarray(values))

    if shapes:
        excess = per_launch(multiplies.flops * (slowdowns(multiplies, shapes, device, assumptions) - 1.0))
        cast = per_launch(cast_bytes(multiplies, shapes, assumptions)) * (assumptions.linear_dtype != BF16)
    else:
        excess = cast = np.zeros(len(launches.counts))
    computing = compute_time(launches.matrix + excess, launches.vector, launches.launches, device, assumptions)
    accumulated = np.where(launches.accumulation, launches.num_bytes, 0.0)
    traffic = launches.num_bytes - accumulated + assumptions.unfused_share * launches.unfused + cast
    compute_s, num_bytes = per_kernel(computing), per_kernel(traffic)
    exposed_s = exposed_memory_time(num_bytes, compute_s, per_kernel(launches.launches), device, assumptions)
    # A kernel that computes nothing divides its time as its bytes.
    weight, total = (
        np.where((compute_s > 0)[launches.kernel], computing, traffic),
        np.where(compute_s > 0, compute_s, num_bytes),
    )
    share = np.where(weight > 0, weight / total[launches.kernel], 0.0)
    launch_s = computing + exposed_s[launches.kernel] * share + memory_time(accumulated, device, assumptions)
    launch_s = np.where(np.isnan(launches.stated_s), launch_s, launches.stated_s)
    launch_s = np.where(launches.on_host, host_s, launch_s)
    return launch_s, per_kernel(launch_s)


def _sizes(multiplies: np.ndarray) -> Multiplies:
    rows, columns, contracted, batch, flops = (multiplies[:, place, None].astype(float) for place in range(5))
    return Multiplies(rows=rows, columns=columns, contracted=contracted, batch=batch, flops=flops)


def _occurrences(found: Distinct) -> np.ndarray:
    """Return how many earlier nodes are the same launch, [N]."""
    # NumPy sorts 16 bits ten times as fast.
    which = found.which.astype(np.uint16) if len(found.counts) <= 1 << 16 else found.which
    order = np.argsort(which, kind="stable")
    first = np.cumsum(found.counts) - found.counts
    occurrences = np.empty(len(order), np.int64)
    occurrences[order] = np.arange(len(order)) - np.repeat(first, found.counts)
    return occurrences


def _spread(num_nodes: int, nodes: np.ndarray, values: np.ndarray, missing: float) -> np.ndarray:
    """Return values of some nodes as a column of all."""
    column = np.full(num_nodes, missing, values.dtype)
    column[nodes] = values
    return column
