"""Reductions to compare with: what each joins, and that time, memory, labels and the order stay."""

from dataclasses import replace

import numpy as np
import pytest
from placement.graphs import drawn, graph, without_cycle
from placement.referees import by_name, cheapest_into_neighbour, into_only_successor

from dsx.errors import InputError


def named(given):
    """The graph with ids of three levels, of which the first two are shared by some."""
    return replace(given, ids=tuple(f"net/block{op % 7 // 2}/op{op}" for op in range(given.num_ops)))


REDUCTIONS = {
    "only successor": into_only_successor,
    "cheapest": lambda given: cheapest_into_neighbour(given, 20),
    "name": lambda given: by_name(named(given)),
}


def parts(of_op):
    return [np.flatnonzero(of_op == one).tolist() for one in range(of_op.max() + 1)]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("seed", range(12))
def test_time_memory_labels_and_order_are_kept(seed, name):
    given = drawn(seed, 60, labels=seed % 2 == 1)
    found, of_op = REDUCTIONS[name](given)
    again, of_op_again = REDUCTIONS[name](given)
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


def test_an_operator_joins_its_only_successor():
    """Operators 0 and 1 have one successor each; 2 has two, so it stays although they come together in the end."""
    given = graph([1] * 6, [(0, 2, 5), (1, 2, 5), (2, 3, 5), (2, 4, 5), (3, 5, 5), (4, 5, 5)])
    _, of_op = into_only_successor(given)
    assert parts(of_op) == [[0, 1, 2], [3, 4, 5]]


def test_the_cheapest_operator_joins_its_heaviest_neighbour():
    given = graph([9, 1, 9, 2, 9], [(0, 1, 5), (1, 2, 50), (2, 3, 7), (3, 4, 7)])
    assert parts(cheapest_into_neighbour(given, 4)[1]) == [[0], [1, 2], [3], [4]]
    # The edges of operator 3 are equal: to the neighbour of the lower number.
    assert parts(cheapest_into_neighbour(given, 3)[1]) == [[0], [1, 2, 3], [4]]
    assert cheapest_into_neighbour(given, 1)[0].num_ops == 1
    with pytest.raises(InputError, match="num_ops: 0 operators are too few"):
        cheapest_into_neighbour(given, 0)


def test_the_heaviest_edge_is_not_taken_if_it_makes_a_cycle():
    given = graph([1, 9, 5], [(0, 2, 100), (0, 1, 1), (1, 2, 1)])
    assert parts(cheapest_into_neighbour(given, 2)[1]) == [[0, 1], [2]]


def test_names_are_joined_along_edges_by_two_levels():
    given = graph([1] * 5, [(0, 1, 5), (1, 2, 5), (2, 3, 5), (0, 4, 5)])
    given = replace(given, ids=("net/a/x", "net/a/y", "net/b/x", "net/a/z", "x"), kinds=("", "", "", "", "net/a"))
    # The second operator of a is reached through b alone; the last one has its name as its kind.
    _, of_op = by_name(given)
    assert sorted(parts(of_op)) == [[0, 1, 4], [2], [3]]
    assert by_name(drawn(0, 20))[0].num_ops == 20, "numbers have no levels"


def test_a_join_may_make_room_for_another():
    """The edge 0 -> 3 has the path 0 -> 1 -> 3 beside it until these are joined."""
    given = graph([1] * 3, [(0, 2, 5), (0, 1, 5), (1, 2, 5)])
    found, _ = by_name(replace(given, ids=("a/b/x", "a/b/y", "a/b/z")))
    assert found.num_ops == 1
