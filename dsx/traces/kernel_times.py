"""The seconds of the launches of a trace: their kernels by the roofline, as `dsx.cost.layer` prices them.

Launches with the same kernel text are one kernel. Its time is that of the sums of their FLOPs, bytes and launches, and
each launch has the share of it that it has of the compute time. The roofline is homogeneous: all executions of a kernel
in a file are priced as one, and an execution is an equal part of that.

A computation without a kernel text, as in traces of other writers, is a kernel of its own. One that states neither
operations nor bytes takes its stated duration. One on the host takes its bytes at the bandwidth of the host's memory:
an update of offloaded optimizer state.
"""

from dataclasses import dataclass

import numpy as np

from dsx import arrays as xp
from dsx.cost.context import BF16, Assumptions
from dsx.cost.layer_work import Multiplies
from dsx.cost.offload import host_memory_rate
from dsx.cost.roofline import cast_bytes, compute_time, exposed_memory_time, memory_time, slowdowns
from dsx.hardware.cluster import Cluster, Device
from dsx.records import Array, ArrayLike
from dsx.traces.codec import ACCUMULATION, COMP
from dsx.traces.columns import (
    NUMBERS_OF_MULTIPLY,
    Distinct,
    RankTrace,
    distinct,
    hashed_lists,
    occurrences,
    scattered,
    shape_of,
)


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
        kinds = distinct([*_identity(trace, nodes), on_host[nodes]])
        launches = _launches(trace, nodes, kinds, on_host)
        key = launches.key()
        if key not in self._known:
            self._known[key] = _priced(launches, self._device, self._assumptions, self.host_s(launches.num_bytes))
        launch_s, kernel_s = self._known[key]
        executions = np.full(len(kernel_s), np.iinfo(np.int64).max)
        np.minimum.at(executions, launches.kernel, launches.counts)
        # A kernel may have several equal launches in each execution.
        per_execution = -(-launches.counts // executions[launches.kernel])
        execution = launches.kernel[kinds.which] << 32
        execution += occurrences(kinds.which) // per_execution[kinds.which]
        execution_s = (kernel_s / executions)[launches.kernel]
        num_nodes = trace.num_nodes
        return LaunchTimes(
            scattered(num_nodes, 0.0, nodes, launch_s[kinds.which]),
            scattered(num_nodes, -1, nodes, execution),
            scattered(num_nodes, 0.0, nodes, execution_s[kinds.which]),
        )


def _identity(trace: RankTrace, nodes: np.ndarray) -> list[np.ndarray]:
    """Return the columns that tell launches apart."""
    named = ("num_ops", "tensor_size", "matrix_flops", "vector_flops", "unfused_bytes", "launches")
    columns = [trace.kernels.codes, trace.op_types.codes, *(getattr(trace, name) for name in named)]
    # Durations are part of what tells launches apart only where they are their time.
    unpriced = (trace.num_ops[nodes] <= 0) & (trace.tensor_size[nodes] <= 0)
    durations = np.where(unpriced, trace.duration_ns[nodes], 0.0)
    return [*(column[nodes] for column in columns), durations.view(np.int64), hashed_lists(trace.multiplies, nodes)]


def _launches(trace: RankTrace, nodes: np.ndarray, kinds: Distinct, on_host: np.ndarray) -> _Launches:
    rows = nodes[kinds.rows]
    num_ops, matrix = trace.num_ops[rows], trace.matrix_flops[rows]
    codes = trace.kernels.codes[rows].astype(np.int64)
    alone = np.flatnonzero(codes < 0)
    codes[alone] = len(trace.kernels.table) + np.arange(len(alone))
    unpriced = (num_ops <= 0) & (trace.tensor_size[rows] <= 0)
    lists = [trace.multiplies.of(row).reshape(-1, NUMBERS_OF_MULTIPLY) for row in rows.tolist()]
    return _Launches(
        kernel=np.unique(codes, return_inverse=True)[1],
        counts=kinds.counts,
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
    rows, columns, contracted, batch, flops = (launches.multiplies[:, place, None].astype(float) for place in range(5))
    multiplies = Multiplies(rows=rows, columns=columns, contracted=contracted, batch=batch, flops=flops)

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
    weight = np.where((compute_s > 0)[launches.kernel], computing, traffic)
    total = np.where(compute_s > 0, compute_s, num_bytes)
    share = np.where(weight > 0, weight / total[launches.kernel], 0.0)
    launch_s = computing + exposed_s[launches.kernel] * share + memory_time(accumulated, device, assumptions)
    launch_s = np.where(np.isnan(launches.stated_s), launch_s, launches.stated_s)
    launch_s = np.where(launches.on_host, host_s, launch_s)
    return launch_s, per_kernel(launch_s)
