"""Reductions keep time, memory and the order; the published test for cycles does not."""

import numpy as np
import pytest
from placement.graphs import drawn, graph, without_cycle

from dsx.placement.op_graph import units_of
from dsx.placement.reduced_graph import (
    Merging,
    by_distribution,
    by_percentile,
    colocated,
    expanded,
    fuse,
    fuse_inside,
    reduce,
)
from dsx.placement.servers import DeviceLink, uniform

DEVICES = uniform(4, DeviceLink(1e9))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "thresholds", [by_distribution, lambda one: by_percentile(one, 50), lambda one: by_percentile(one, 0)]
)
def test_time_memory_and_order_are_kept(seed, thresholds):
    given = drawn(seed, 60, labels=seed % 2 == 1)
    for iterate in (False, True):
        found = reduce(given, DEVICES, thresholds(given), iterate)
        assert without_cycle(found.graph)
        assert found.graph.seconds.sum() == pytest.approx(given.seconds.sum(), rel=1e-12)
        assert found.graph.memory_bytes.sum() == given.memory_bytes.sum()
        assert set(found.of_op.tolist()) == set(range(found.graph.num_ops))
        for source, target in given.edges:
            ends = int(found.of_op[source]), int(found.of_op[target])
            assert ends[0] == ends[1] or ends in found.graph.edges
        # Operators that share a device are one unit, and two labels are never one operator.
        assert len({*zip(given.together.tolist(), found.group[found.of_op].tolist(), strict=True)}) >= 1
        for label in {*given.together.tolist()}:
            assert len({*found.group[found.of_op[given.together == label]].tolist()}) == 1


def test_the_same_graph_reduces_in_the_same_way():
    given = drawn(3, 80)
    one, other = (reduce(given, DEVICES, by_percentile(given, 90)) for _ in range(2))
    assert one.of_op.tolist() == other.of_op.tolist() and one.group.tolist() == other.group.tolist()


def test_an_edge_with_a_path_beside_it_in_the_whole_graph_stays():
    """Inside its group the edge 0 -> 2 has no path beside it, but 0 -> 1 -> 2 is one."""
    given = graph([1000, 100, 5, 5000], [(0, 2, 10_000_000), (0, 1, 1), (1, 2, 1), (1, 3, 1)])
    merging = Merging(given)
    assert fuse(merging, 50e-6) == 0
    groups = colocated(merging, DEVICES)
    assert groups[0] == groups[2] != groups[1] == groups[3]
    assert merging.has_detour(0, 2) and not merging.has_detour(1, 3)
    fuse_inside(merging, groups, 50e-6)
    assert 2 in merging.members
    assert without_cycle(merging.reduced()[0])


@pytest.mark.parametrize("seed", range(20))
def test_only_edges_with_other_neighbours_at_both_ends_have_a_path_beside_them(seed):
    """So algorithm 1, which fuses no such edge, makes no cycle."""
    given = drawn(seed, 40)
    merging = Merging(given)
    beside = [edge for edge in given.edges if merging.has_detour(*edge)]
    assert all(len(given.successors[a]) >= 2 and len(given.predecessors[b]) >= 2 for a, b in beside)
    assert beside or seed != 0  # there are some


def test_merging_counts_no_tensor_twice():
    """Both edges into operator 2 carry what operator 0 makes."""
    given = graph([5, 1, 1, 1], [(0, 1, 100), (0, 2, 100), (1, 3, 7), (2, 3, 7)])
    merging = Merging(given)
    merging.merge(1, 3)
    merging.merge(2, 1) if 1 in merging.after[2] else None
    assert merging.edge_bytes(0, 2 if 2 in merging.after[0] else 1) == 100


def test_an_operator_joins_the_group_of_its_heaviest_edge():
    given = graph([1, 50, 50, 1], [(0, 1, 10), (0, 2, 20), (1, 3, 30), (2, 3, 10)])
    found = expanded(Merging(given), {1: 0, 2: 1}, 10e-6)
    assert found == {1: 0, 2: 1, 0: 1, 3: 0}


def test_labels_are_units_of_their_own():
    given = graph([1, 1, 1], [(0, 1, 10)], colocate=["a", None, "a"])
    unit = units_of(given)
    assert unit[0] == unit[2] != unit[1]


def test_thresholds():
    given = graph([0, 10, 20, 30, 40], [])
    assert by_percentile(given, 50).alpha_s == pytest.approx(25e-6)
    assert by_percentile(given, 0).alpha_s == 0.0
    fitted = by_distribution(drawn(1, 300))
    assert fitted.source == "distribution" and 0 < fitted.beta_s <= fitted.alpha_s < 100e-6
    assert by_distribution(graph([0, 0], [])).source == "p90"
    assert np.isfinite(by_distribution(graph([7, 7], [])).alpha_s)
