"""Reductions, those to compare with too, keep time, memory and the order; the published test for cycles does not."""

from dataclasses import replace

import numpy as np
import pytest
from placement.graphs import drawn, graph, uniform, without_cycle
from placement.referees import by_name, cheapest_into_neighbour, into_only_successor

from dsx.errors import InputError
from dsx.placement.op_graph import (
    Merging,
    by_distribution,
    by_percentile,
    colocated,
    expanded,
    fuse,
    fuse_inside,
    reduce,
    units_of,
)
from dsx.placement.servers import DeviceLink

DEVICES = uniform(4, DeviceLink(1e9))
THRESHOLDS = {"distribution": by_distribution, "p50": lambda given: by_percentile(given, 50)}
THRESHOLDS |= {"p0": lambda given: by_percentile(given, 0)}


def named(given):
    """The graph with ids of three levels, of which the first two are shared by some."""
    return replace(given, ids=tuple(f"net/block{op % 7 // 2}/op{op}" for op in range(given.num_ops)))


def by_thresholds(thresholds, iterate):
    def reduced(given):
        found = reduce(given, DEVICES, thresholds(given), stop=lambda: not iterate)
        # Operators that share a device are one unit.
        for label in {*given.together.tolist()}:
            assert len({*found.group[found.of_op[given.together == label]].tolist()}) == 1
        return found.graph, found.of_op

    return reduced


REDUCTIONS = {
    "only successor": into_only_successor,
    "cheapest": lambda given: cheapest_into_neighbour(given, 20),
    "name": lambda given: by_name(named(given)),
    **{(name, iterate): by_thresholds(THRESHOLDS[name], iterate) for name in THRESHOLDS for iterate in (False, True)},
}


def parts(of_op):
    return [np.flatnonzero(of_op == one).tolist() for one in range(of_op.max() + 1)]


@pytest.mark.parametrize("reduced", REDUCTIONS.values(), ids=map(str, REDUCTIONS))
@pytest.mark.parametrize("seed", range(12))
def test_time_memory_labels_and_order_are_kept(seed, reduced):
    given = drawn(seed, 60, labels=seed % 2 == 1)
    found, of_op = reduced(given)
    again, of_op_again = reduced(given)
    assert of_op.tolist() == of_op_again.tolist() and again.edges == found.edges
    assert without_cycle(found) and found.num_ops < given.num_ops
    assert np.bincount(of_op, given.seconds[:, 0]) == pytest.approx(found.seconds[:, 0])
    assert np.bincount(of_op, given.memory_bytes) == pytest.approx(found.memory_bytes)
    for source, target in given.edges:
        ends = int(of_op[source]), int(of_op[target])
        assert ends[0] == ends[1] or ends in found.edges
    labels, counts = np.unique(given.together, return_counts=True)
    for members in parts(of_op):
        assert len({*given.together[members].tolist()} & {*labels[counts > 1].tolist()}) <= 1


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


def test_operators_are_merged_along_heavy_edges():
    """Both edges into operator 2 carry what operator 0 makes."""
    given = graph([5, 1, 1, 1], [(0, 1, 100), (0, 2, 100), (1, 3, 7), (2, 3, 7)])
    merging = Merging(given)
    merging.merge(1, 3)
    merging.merge(2, 1) if 1 in merging.after[2] else None
    assert merging.edge_bytes(0, 2 if 2 in merging.after[0] else 1) == 100
    # An operator joins the group of its heaviest edge.
    given = graph([1, 50, 50, 1], [(0, 1, 10), (0, 2, 20), (1, 3, 30), (2, 3, 10)])
    found = expanded(Merging(given), {1: 0, 2: 1}, 10e-6)
    assert found == {1: 0, 2: 1, 0: 1, 3: 0}
    # Labels are units of their own.
    given = graph([1, 1, 1], [(0, 1, 10)], colocate=["a", None, "a"])
    unit = units_of(given)
    assert unit[0] == unit[2] != unit[1]
    # Thresholds.
    given = graph([0, 10, 20, 30, 40], [])
    assert by_percentile(given, 50).alpha_s == pytest.approx(25e-6)
    assert by_percentile(given, 0).alpha_s == 0.0
    fitted = by_distribution(drawn(1, 300))
    assert fitted.source == "distribution" and 0 < fitted.beta_s <= fitted.alpha_s < 100e-6
    assert by_distribution(graph([0, 0], [])).source == "p90"
    assert np.isfinite(by_distribution(graph([7, 7], [])).alpha_s)


def test_operators_join_their_neighbours():
    """Operators 0 and 1 have one successor each; 2 has two, so it stays although they come together in the end."""
    given = graph([1] * 6, [(0, 2, 5), (1, 2, 5), (2, 3, 5), (2, 4, 5), (3, 5, 5), (4, 5, 5)])
    _, of_op = into_only_successor(given)
    assert parts(of_op) == [[0, 1, 2], [3, 4, 5]]
    # The cheapest operator joins its heaviest neighbour.
    given = graph([9, 1, 9, 2, 9], [(0, 1, 5), (1, 2, 50), (2, 3, 7), (3, 4, 7)])
    assert parts(cheapest_into_neighbour(given, 4)[1]) == [[0], [1, 2], [3], [4]]
    # The edges of operator 3 are equal: to the neighbour of the lower number.
    assert parts(cheapest_into_neighbour(given, 3)[1]) == [[0], [1, 2, 3], [4]]
    assert cheapest_into_neighbour(given, 1)[0].num_ops == 1
    with pytest.raises(InputError, match="num_ops: 0 operators are too few"):
        cheapest_into_neighbour(given, 0)
    # The heaviest edge is not taken if it makes a cycle.
    given = graph([1, 9, 5], [(0, 2, 100), (0, 1, 1), (1, 2, 1)])
    assert parts(cheapest_into_neighbour(given, 2)[1]) == [[0, 1], [2]]
    # Names are joined along edges by two levels.
    given = graph([1] * 5, [(0, 1, 5), (1, 2, 5), (2, 3, 5), (0, 4, 5)])
    given = replace(given, ids=("net/a/x", "net/a/y", "net/b/x", "net/a/z", "x"), kinds=("", "", "", "", "net/a"))
    # The second operator of a is reached through b alone; the last one has its name as its kind.
    _, of_op = by_name(given)
    assert sorted(parts(of_op)) == [[0, 1, 4], [2], [3]]
    assert by_name(drawn(0, 20))[0].num_ops == 20, "numbers have no levels"
    # The edge 0 -> 3 has the path 0 -> 1 -> 3 beside it until these are joined.
    given = graph([1] * 3, [(0, 2, 5), (0, 1, 5), (1, 2, 5)])
    found, _ = by_name(replace(given, ids=("a/b/x", "a/b/y", "a/b/z")))
    assert found.num_ops == 1
