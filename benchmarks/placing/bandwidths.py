"""Joint search of placement and bandwidth beside uniform shares of the same total, and the thesis' tree.

Joint search goes on from the best placement of uniform shares, as `dsx place --bandwidth joint` does. What it is
compared with is searched for as long as both together. The tree gives a pair what a network card has: uniform shares if
there are as many cards as other servers, more than there is if fewer.
"""

from collections.abc import Sequence

from sections import table

from dsx.placement.cp_program import SolverEffort
from dsx.placement.joint import allocate
from dsx.placement.servers import ServerNetwork, with_bandwidth, with_uniform_shares
from dsx.placement.solve import search
from placing.cases import Case, Row, on, percent, us
from placing.validator import excesses, violations

_SERVERS = (4, 6)
_NICS = 3
_NIC_BANDWIDTHS = (1.25e9, 5e9, 25e9)  # bytes/s
_LARGE = 5_000  # operators of a graph that is tried with one bandwidth
_SEARCH_S, _JOINT_S = 5.0, 7.0  # nominal


def measured(cases: Sequence[Case]) -> list[Row]:
    """Return a row for each reference graph, number of servers, and bandwidth of a network card."""
    rows: list[Row] = []
    for case in (case for case in cases if case.reference):
        for servers in _SERVERS:
            for bandwidth in _NIC_BANDWIDTHS if case.graph.num_ops < _LARGE else _NIC_BANDWIDTHS[1:2]:
                rows.append(_row(case, servers, bandwidth))
                print(rows[-1], flush=True)
    return rows


def _row(case: Case, servers: int, nic_bandwidth: float) -> Row:
    network = ServerNetwork(_NICS, nic_bandwidth)
    devices = with_uniform_shares(on(servers), network)
    uniform = search(case.graph, devices, SolverEffort(_SEARCH_S + _JOINT_S)).best
    hint = search(case.graph, devices, SolverEffort(_SEARCH_S)).best
    assert uniform is not None and hint is not None  # memory has no limit
    joint, _ = allocate(case.graph, devices, network, hint, SolverEffort(_JOINT_S))
    if broken := excesses(network, joint.bandwidth) + violations(
        case.graph, with_bandwidth(devices, joint.bandwidth), joint.schedule
    ):
        raise RuntimeError(f"{case.name} on {servers} servers: {broken}")
    tree = uniform
    if servers - 1 != _NICS:
        tree = search(case.graph, on(servers, nic_bandwidth), SolverEffort(_SEARCH_S + _JOINT_S)).best
        assert tree is not None
    return {
        "graph": case.name,
        "servers": servers,
        "nic_bandwidth": nic_bandwidth,
        "one_s": float(case.graph.mean_s.sum()),
        "uniform_s": uniform.makespan_s,
        "tree_s": tree.makespan_s,
        "joint_s": joint.schedule.makespan_s,
    }


def gain(row: Row) -> float:
    """Return by which share joint search makes the step shorter than uniform shares."""
    return 1 - row["joint_s"] / row["uniform_s"]


def text(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    head = ("graph", "servers", "GB/s of a card", "one device, us", "uniform, us", "tree, us", "joint, us", "gain, %")
    return table(
        head,
        [
            (
                row["graph"],
                str(row["servers"]),
                f"{row['nic_bandwidth'] / 1e9:g}",
                *(us(row[name]) for name in ("one_s", "uniform_s", "tree_s", "joint_s")),
                percent(gain(row)),
            )
            for row in rows
        ],
        7,
    )
