"""The longest path over dependencies, by durations or FLOPs, against all paths."""

import io
import random

import pytest
from trace_files import comp, content, node

from dsx.traces import codec as m
from dsx.traces.inspect import PathPart, critical_path, path_parts
from dsx.traces.read import read_stream


def trace_of(*nodes):
    return read_stream(io.BytesIO(content(nodes)), "t.0.et", 0)


def path_of(*nodes):
    return critical_path(trace_of(*nodes))


def test_by_duration_where_nodes_have_one():
    path = path_of(
        comp(1, micros=2, num_ops=10**9),
        comp(2, data=[1], micros=3),
        comp(3, ctrl=[1], micros=1, duration_ns=3500.0),
        comp(4, data=[2, 3], micros=1),
        comp(5, micros=6),
    )
    assert path.unit == "s" and path.rows.tolist() == [0, 2, 3]
    assert path.length == pytest.approx(6.5e-6)


def test_by_flops_where_no_node_has_a_duration():
    path = path_of(comp(1, num_ops=5), comp(2, num_ops=7), comp(3, data=[1, 2], num_ops=1))
    assert (path.unit, path.length, path.rows.tolist()) == ("flops", 8, [1, 2])


def test_communication_is_on_the_path():
    path = path_of(comp(1, micros=1), node(2, "ar", m.COMM_COLL, data=[1], micros=9), comp(3, data=[2], micros=1))
    assert path.rows.tolist() == [0, 1, 2] and path.length == pytest.approx(11e-6)


def test_names_that_differ_in_numbers_are_one_part():
    nodes = [comp(1, "embed", num_ops=1)]
    for layer in range(3):
        nodes += [comp(2 * layer + at, f"layer{layer}.{name}", ctrl=[2 * layer + at - 1], num_ops=at * 10)
                  for at, name in ((2, "attn"), (3, "ffn"))]  # fmt: skip
    trace = trace_of(*nodes)
    assert path_parts(trace, critical_path(trace)) == (
        PathPart("embed", 1, 1),
        PathPart("layer*.attn", 3, 60),
        PathPart("layer*.ffn", 3, 90),
    )


def test_nodes_of_a_cycle_are_left_out():
    assert path_of(comp(1, num_ops=3), comp(2, data=[3]), comp(3, data=[2])).rows.tolist() == [0]


def test_no_nodes():
    path = path_of()
    assert (path.length, path.rows.tolist(), path_parts(trace_of(), path)) == (0, [], ())


@pytest.mark.parametrize("seed", range(20))
def test_against_all_paths(seed):
    rng = random.Random(seed)
    size = 9
    ids = rng.sample(range(1, 50), size)  # the file is not in the order of ids
    deps = {ids[at]: rng.sample(ids[:at], rng.randint(0, min(at, 3))) for at in range(size)}
    work = {number: rng.randint(1, 9) for number in ids}

    def longest(number):
        return work[number] + max(map(longest, deps[number]), default=0)

    nodes = [comp(number, data=deps[number], num_ops=work[number]) for number in ids]
    rng.shuffle(nodes)
    assert path_of(*nodes).length == max(map(longest, ids))
