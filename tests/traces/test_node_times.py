"""Times of single nodes beside the functions of `dsx.cost`, and beside a layer that it prices as a whole."""

from dataclasses import replace

import numpy as np
import pytest
from trace_columns import comp, load, reduce_over_two, send, step, trace, unit_assumptions, unit_machine

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import cluster_from_spec, load_cluster
from dsx.cost.collectives import collective, collective_times
from dsx.cost.collectives import send as mean_send
from dsx.cost.context import assumptions_from_spec
from dsx.cost.groups import group, routing_of
from dsx.cost.layer import busy_times, layer_costs, traffic
from dsx.cost.layer_work import layer_work
from dsx.errors import TraceError
from dsx.notation.library import load_layer, load_operators
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from dsx.notation.work import BACKWARD, FORWARD, derive
from dsx.traces.codec import ACCUMULATION, COLLECTIVES, COMM_COLL, ROUTING
from dsx.traces.node_times import KernelPricer, NodePricer, Placement, placement
from dsx.traces.step_replay import StepTraces, replay_step

KINDS = {"ALL_GATHER": ALL_GATHER, "REDUCE_SCATTER": REDUCE_SCATTER, "ALL_REDUCE": ALL_REDUCE, "ALL_TO_ALL": ALL_TO_ALL}
CODES = {kind: COLLECTIVES[name] for name, kind in KINDS.items()}
CLUSTER = cluster_from_spec(load_cluster("h100-spine-leaf"))
ASSUMED = assumptions_from_spec(load_assumptions("default"))


pytestmark = pytest.mark.usefixtures("float64")


def layer(assumptions, tp=8):
    """A layer of a transformer under tensor parallelism with sequences divided."""
    spec = load_assumptions(assumptions)
    made = derive(load_layer("transformer", "1d", load_operators(spec.operators)), spec.fused_backward_reads)
    keys = {
        name: np.array([size]) for name, size in {"microbatch_size": 4, "panels": 1, "tp": tp, "tp_nvs": tp}.items()
    }
    sizes = {"e": 4096, "h": 32, "g": 32, "k": 128, "f": 16384}
    return replace(layer_work(made, sizes, spec, 2048, keys), outer=({"tp": np.array([float(tp)])},))


def launches(work, direction, kernel, accumulated=0.0):
    """A kernel as launches: for each multiply, for the rest of its work, and `accumulated` bytes after them."""
    flags = (("linear", 1), ("of_weight", 2), ("fused", 4), ("grouped", 8), ("wide", 32))
    of_multiplies, rest = [], float(work.matrix[direction, kernel, 0])
    for place, shape in enumerate(work.multiply_shapes):
        if (shape.direction, shape.kernel) == (direction, kernel):
            sizes = [float(getattr(work.multiplies, name)[place, 0]) for name in ("rows", "columns", "contracted")]
            batch, flops = (float(getattr(work.multiplies, name)[place, 0]) for name in ("batch", "flops"))
            bits = sum(bit for name, bit in flags if getattr(shape, name)) + 16 * (direction == BACKWARD)
            of_multiplies.append(comp(flops, launches=0, multiplies=[*sizes, batch, flops, bits]))
            rest -= flops
    work_of = {name: getattr(work, name)[direction, kernel, 0] for name in ("vector", "bytes", "unfused", "launches")}
    whole = comp(round(rest), vector_flops=work_of["vector"], tensor_size=work_of["bytes"])
    whole |= {"unfused_bytes": work_of["unfused"], "launches": work_of["launches"]}
    found = [node | {"op_type": f"{place}"} for place, node in enumerate([whole, *of_multiplies])]
    if accumulated:
        found.append(comp(1, launches=0, tensor_size=accumulated, matrix_flops=0) | {"op_type": ACCUMULATION})
    return [node | {"kernel": f"{direction}.{kernel}"} for node in found]


@pytest.mark.parametrize("assumptions", ["default", "paper-2410.00273", "uncalibrated"])
def test_kernels_take_what_a_layer_says(assumptions):
    work, assumed = layer(assumptions), assumptions_from_spec(load_assumptions(assumptions))
    kernels = [(direction, kernel) for direction in (FORWARD, BACKWARD) for kernel in range(work.matrix.shape[1])]
    _, accumulated = traffic(work, assumed)
    nodes = [node for way, kernel in kernels for node in launches(work, way, kernel, accumulated[way, kernel, 0])] * 3
    times = KernelPricer(CLUSTER, assumed, 1)(trace(0, *nodes))
    compute, memory = busy_times(work, CLUSTER, assumed)
    for direction, kernel in kernels:
        rows = [row for row, node in enumerate(nodes) if node["kernel"] == f"{direction}.{kernel}"]
        expected = pytest.approx(float((compute + memory)[direction, kernel, 0]), rel=1e-6, abs=1e-12)
        assert times.launch_s[rows].sum() / 3 == expected
        assert times.execution_s[rows[0]] == expected
        assert len(set(times.execution[rows].tolist())) == 3


def test_a_layer_takes_what_its_costs_say():
    """The forward of a layer of eight ranks, collectives before the launches of their kernel; the host is fast."""
    work, assumed = layer("default"), replace(ASSUMED, dispatch_latency=0.0)
    nodes, beside = [], {}
    for kernel in range(work.matrix.shape[1]):
        for shape, volume in zip(work.shapes, work.volumes[:, 0], strict=True):
            if (shape.direction, shape.kernel) == (FORWARD, kernel):
                size = float(volume) / 8 if shape.kind == ALL_GATHER else float(volume)
                beside[len(nodes)] = shape.beside
                node = {"type": COMM_COLL, "comm_type": CODES[shape.kind], "comm_size": size}
                nodes.append(node | {"axis": "tp", "group": "1"})
        nodes += launches(work, FORWARD, kernel)
    first = {node["kernel"]: row for row, node in reversed([*enumerate(nodes)]) if "kernel" in node}
    for row, kernel in beside.items():
        if kernel is not None:
            nodes[row] |= {"overlap": assumed.tp_overlap, "partner": first[f"{FORWARD}.{kernel}"]}
    assert any("overlap" in node for node in nodes)
    traces = StepTraces({rank: trace(rank, *nodes) for rank in range(8)}, {"1": range(8)})
    found = replay_step(traces, CLUSTER, assumed)
    assert found.step_time_s == pytest.approx(float(layer_costs(work, CLUSTER, assumed).forward_s[0]), rel=1e-6)


def test_collectives_take_what_a_cluster_says():
    """Groups of consecutive ranks, which fill the tiers."""
    for name, kind in KINDS.items():
        for size in (1, 2, 8, 64, 512):
            members = {"1": range(1024, 1024 + size)}
            pricer = NodePricer(CLUSTER, ASSUMED, placement(CLUSTER.network), members)
            shards = size if kind == ALL_GATHER else 1
            nodes = [
                {"type": COMM_COLL, "comm_type": COLLECTIVES[name], "comm_size": volume // shards, "group": "1"}
                for volume in (1 << 12, 1 << 30)
            ]
            expected = collective_times(kind, CLUSTER.network, ASSUMED, [size], [1 << 12, 1 << 30])[:, 0]
            assert pricer(trace(1024, *nodes)).seconds.tolist() == pytest.approx(expected.tolist(), abs=1e-15)


@pytest.mark.parametrize("counts", [(8,), (8, 8, 4)])
def test_an_all_to_all_to_experts_has_the_routing_that_its_node_states(counts):
    """Sixty-four ranks in eight domains: tokens cross the network fewer times than they have copies."""
    assumed = replace(ASSUMED, dispatcher=1.0)
    pricer = NodePricer(CLUSTER, assumed, placement(CLUSTER.network), {"1": range(64)})
    plain = {"type": COMM_COLL, "comm_type": CODES[ALL_TO_ALL], "comm_size": 1 << 30, "group": "1"}
    seconds = pricer(trace(0, plain, plain | dict(zip(ROUTING, counts, strict=False)))).seconds
    numbers = [np.array([float(count)]) for count in counts]
    placed = group(*(np.array([float(count)]) for count in (64, *placement(CLUSTER.network).shares(range(64)))))
    priced = collective(ALL_TO_ALL, placed, CLUSTER.network, assumed, routing_of(*numbers))
    assert seconds[1] == pytest.approx(float(priced(np.array([float(1 << 30)]))[0]), rel=1e-12)
    assert seconds[1] < seconds[0]


def test_links_of_pipelines_and_nodes_without_a_time():
    """Eight stages, four in each domain: six fast links and a slow one."""
    cluster, assumed = unit_machine(4), unit_assumptions(call_latency=0.5, net_efficiency=0.25)
    nodes = [trace(rank, send(rank + 1, 1, 8)) for rank in range(7)]
    pricer = NodePricer(cluster, assumed, placement(cluster.network), {})
    seconds = [pricer(one).seconds[0] for one in nodes]
    assert seconds == [8.5, 8.5, 8.5, 32.5, 8.5, 8.5, 8.5]
    mean = mean_send(np.array([8.0]), np.array([4.0]), cluster.network, assumed)(np.array([8.0]))
    assert sum(seconds) / 7 == pytest.approx(mean[0])
    # What has no time is named.
    with pytest.raises(TraceError, match=r"rank 0: node 1 \('x'\): collectives of type GATHER have no time"):
        step(trace(0, reduce_over_two(1, comm_type=3, name="x")))
    with pytest.raises(TraceError, match=r"rank 0: node 1 \('x'\) has the group '9', which comm_groups.json lacks"):
        step(trace(0, reduce_over_two(1, group="9", name="x")))
    with pytest.raises(TraceError, match=r"rank 0 has node 1 \('x'\) of the group '1', which it is not in"):
        step(trace(0, reduce_over_two(1, name="x")), groups={"1": [1, 2]})


def test_a_group_is_where_the_placement_says():
    placed = placement(CLUSTER.network, ranks_per_domain=4)
    assert placed.shares([0, 1, 2, 3, 4, 5, 6, 7])[0] == 4
    assert placed.shares([0, 1, 2, 4])[0] == 3  # on two domains, and one member in that with the fewest
    assert placed.shares([[0, 1, 2, 3, 4], [8, 9, 12, 13, 16]])[0] == 2  # on three domains
    assert placed.shares([0, 8, 16])[0] == 1
    assert placed.shares([[0, 1, 2, 3], [4, 5, 6, 8], [9, 10, 12, 13]])[0] == 3  # as the second one lies
    assert placed.shares([[0, 1, 2, 3], [9, 10, 12, 13]])[0] == 2
    assert (placed.link(3, 4).tier, placed.link(4, 7).tier) == (1, 0)
    assert (placed.link([3, 4], [4, 7]).tier, placed.link([0, 4], [1, 7]).tier) == (1, 0)
    # Of eight ranks of a domain on four NICs, the two last ones send out of it over one, or all four of a stage.
    placed = Placement((8,), gpus_per_nic=2.0)
    assert placed.link([6], [8]) == (1, (8.0,), 2.0)
    assert placed.link([6, 7], [8, 9]) == (1, (4.0,), 1.0)
    assert placed.link([4, 5, 6, 7], [8, 9, 10, 11]) == (1, (2.0,), 1.0)
    assert placed.link([5, 7], [8, 10]) == (1, (4.0,), 2.0)
    assert placed.link([0, 1], [2, 3]) == (0, (1.0,), 2.0)


def test_launches_of_a_kernel_share_its_time():
    """2 s and 6 s of compute; the traffic of both takes 16 s."""
    nodes = [comp(2, tensor_size=12, kernel="k"), comp(6, tensor_size=4, kernel="k"), comp(2, tensor_size=12)]
    times = KernelPricer(unit_machine(), unit_assumptions(), 1)(trace(0, *nodes))
    assert times.launch_s.tolist() == [4.0, 12.0, 12.0]
    assert times.execution_s.tolist() == [16.0, 16.0, 12.0]
    # Equal launches of one kernel are one execution.
    nodes = [comp(2, kernel="k"), comp(2, kernel="k"), comp(3, kernel="k")] * 2
    times = KernelPricer(unit_machine(), unit_assumptions(), 1)(trace(0, *nodes))
    assert times.execution_s.tolist() == [7.0] * 6
    first, second = times.execution[0], times.execution[3]
    assert times.execution.tolist() == [first] * 3 + [second] * 3
    assert first != second
    # Kernels without compute divide their traffic.
    nodes = [comp(0, tensor_size=3, kernel="k"), comp(0, tensor_size=1, kernel="k")]
    times = KernelPricer(unit_machine(), unit_assumptions(), 1)(trace(0, *nodes))
    assert times.launch_s.tolist() == [3.0, 1.0]
    # Foreign computations have operations or a duration.
    nodes = [{"type": 4, "num_ops": 5, "tensor_size": 9}, {"type": 4, "duration_ns": 3e9, "num_ops": 0}]
    times = KernelPricer(unit_machine(), unit_assumptions(), 1)(trace(0, *nodes))
    assert times.launch_s.tolist() == [9.0, 3.0]
    # Transfers to the host have its bandwidth.
    times = NodePricer(unit_machine(), unit_assumptions(), placement(unit_machine().network), {})(trace(0, load(3)))
    assert times.seconds.tolist() == [3.0]
