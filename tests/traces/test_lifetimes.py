"""Memory over the nodes of a file, against curves counted by hand."""

import io

import pytest
from trace_files import comp, content

from dsx.traces.inspect import Alive, kind_of, memory_use
from dsx.traces.read import read_stream


def use(*nodes):
    made = [comp(number, reads=reads, writes=writes) for number, (reads, writes) in enumerate(nodes, 1)]
    return memory_use(read_stream(io.BytesIO(content(made)), "t.0.et", 0))


def test_a_buffer_lives_from_its_first_write_to_its_last_read():
    found = use(({}, {"a": 5}), ({"a": 5}, {"b": 7}), ({"a": 5}, {}), ({"b": 7}, {"c": 1}), ({}, {}))
    assert found.curve_bytes.tolist() == [5, 12, 12, 8, 0]
    assert (found.peak_bytes, found.peak_row) == (12, 1)


def test_what_nobody_reads_lives_while_it_is_written():
    assert use(({}, {"a": 5}), ({}, {"b": 7})).curve_bytes.tolist() == [5, 7]


def test_what_is_read_before_it_is_written_is_there_all_the_time():
    found = use(({}, {}), ({"w": 10}, {"a": 1}), ({"a": 1, "w": 10}, {"w#1": 10}), ({}, {}))
    assert found.curve_bytes.tolist() == [10, 11, 11, 10]


def test_what_a_node_reads_and_writes_first_was_there_before():
    assert use(({}, {}), ({"s": 3}, {"s#1": 3}), ({}, {})).curve_bytes.tolist() == [3, 3, 3]


def test_versions_are_one_buffer():
    found = use(({}, {"g#000": 4}), ({"g#000": 4}, {"g#001": 4}), ({}, {}), ({"g#001": 4}, {}), ({}, {}))
    assert found.curve_bytes.tolist() == [4, 4, 4, 4, 0]


@pytest.mark.parametrize("name", ["a@host", "a@host#1", "a#1@host"])
def test_the_memory_of_the_host_does_not_count(name):
    found = use(({}, {"a": 5}), ({"a": 5}, {name: 5}), ({}, {}), ({name: 5}, {"b": 5}))
    assert found.curve_bytes.tolist() == [5, 5, 0, 5]


def test_what_is_alive_at_the_peak_by_kind():
    found = use(
        ({"weight.3": 100, "weight.4": 50}, {"grad.3#000": 30}),
        ({"grad.3#000": 30}, {"act.mb0": 20, "opt_state": 40}),
        ({"act.mb0": 20}, {}),
    )
    assert found.peak_row == 1
    assert found.alive == (
        Alive("weight", 2, 150),
        Alive("opt_state", 1, 40),
        Alive("grad", 1, 30),
        Alive("act", 1, 20),
    )
    assert sum(part.size_bytes for part in found.alive) == found.peak_bytes == 240


@pytest.mark.parametrize(
    ("name", "kind"), [("grad.layer3#002", "grad"), ("opt_state:w", "opt_state"), ("mb3.x", "mb"), ("3x", "3x")]
)
def test_kinds(name, kind):
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("kind", "names"),
    {
        "weights": ["L007.feed-forward.w1", "L1007.gamma1", "L007.shard 0", "L000.table"],
        "gradients": ["L007.d self-attention.wo", "L007.d feed-forward.w1:tp2", "L007.gradients 0"],
        "optimizer state": ["L007.optimizer state"],
        "activations": ["m003.L007.n1", "m0.L007.x.2", "m0.L007.n1'", "m0.L007.z^", "m003.chunk 1 input"],
        "unreduced gradients": ["m003.L007.unreduced d w1", "m0.L007.unreduced d feed-forward.w1:tp2"],
        "gradients of activations": ["m003.L007.d n1", "m0.L007.d n1:tp", "m003.chunk 1 gradient"],
        "gathered weights": ["m003.L007.weights 0", "m003.L007.weights' 0"],
        "m": ["m3.x", "m3.L7.x"],
        "L": ["L7.w"],
    }.items(),
)
def test_kinds_of_the_names_that_dsx_gives(kind, names):
    assert {kind_of(name) for name in names} == {kind}


def test_no_tensors_and_no_nodes():
    assert use((None, None)).curve_bytes.tolist() == [0]
    assert (use().peak_bytes, use().peak_row, use().alive) == (0, -1, ())
