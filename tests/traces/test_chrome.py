"""Timelines are JSON of Chrome's trace format, written as events come, and complete or absent."""

import io
import json

import pytest
from trace_files import coll, comp, content, node

from dsx.errors import StoreError, TraceError
from dsx.traces import chrome
from dsx.traces import codec as m
from dsx.traces.chrome import Event, chrome_file, laid_out
from dsx.traces.codec import COMMUNICATION, COMPUTE, MEMORY
from dsx.traces.read import read_stream


def trace_of(*nodes, rank=0):
    return read_stream(io.BytesIO(content(nodes)), f"t.{rank}.et", rank)


def spans(path):
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def test_events_in_microseconds(tmp_path):
    path = tmp_path / "t.json"
    with chrome_file(path) as write:
        write([Event(3, COMMUNICATION, 'ar "x"', 0.5, 2e-6, {"bytes": 8}), Event(0, "copy", "y", 0, 1)])
    events = json.loads(path.read_text())["traceEvents"]
    first, second = spans(path)
    assert first == {"ph": "X", "name": 'ar "x"', "pid": 3, "tid": 1, "ts": 5e5, "dur": 2.0, "args": {"bytes": 8}}
    assert (second["pid"], second["ts"], second["dur"], second["args"]) == (0, 0, 1e6, {})
    names = {
        (event["pid"], event["tid"], event["name"]): event["args"]["name"] for event in events if event["ph"] == "M"
    }
    assert names == {
        (3, 1, "process_name"): "rank 3",
        (3, 1, "thread_name"): "communication",
        (0, second["tid"], "process_name"): "rank 0",
        (0, second["tid"], "thread_name"): "copy",
    }


def test_streams_have_threads_of_their_own(tmp_path):
    path = tmp_path / "t.json"
    streams = [COMPUTE, COMMUNICATION, MEMORY, "copy", "pack", "copy"]
    with chrome_file(path) as write:
        write(Event(0, stream, stream, 0, 1) for stream in streams)
    threads = [event["tid"] for event in spans(path)]
    assert threads == [0, 1, 2, 3, 4, 3]


def test_no_events(tmp_path):
    with chrome_file(tmp_path / "t.json") as write:
        write([])
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == []


def test_events_are_streamed_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(chrome, "_BLOCK", 10)
    path = tmp_path / "t.json"
    sizes = []

    def events():
        for at in range(100):
            sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
            yield Event(0, COMPUTE, str(at), at, 1)

    with chrome_file(path) as write:
        write(events())
        write(events())
        assert not path.exists()
    assert sizes[199] > sizes[100] > 0 and len(set(sizes)) > 3
    assert [event["name"] for event in spans(path)] == [str(at) for at in range(100)] * 2


def test_a_timeline_that_fails_leaves_nothing(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("former")
    with pytest.raises(ZeroDivisionError), chrome_file(path) as write:
        write(Event(0, COMPUTE, "a", 0, 1 / at) for at in (1, 0))
    assert path.read_text() == "former" and list(tmp_path.iterdir()) == [path]


def test_a_timeline_that_cannot_be_written(tmp_path):
    with pytest.raises(StoreError, match=r"cannot write .*t.json: No such file"):
        with chrome_file(tmp_path / "nowhere" / "t.json") as write:
            write([])


def test_nodes_are_laid_out_as_streams_and_dependencies_allow():
    trace = trace_of(
        node(9, "meta", 1),
        comp(1, micros=2, data=[9]),
        comp(2, micros=3),  # waits for the stream
        coll(3, micros=4, data=[1]),  # beside it
        comp(4, micros=1, data=[3]),
        coll(5, micros=1, duration_ns=500.0),
        node(6, "store", m.MEM_STORE, tensor_size=4, data=[2], micros=1),
        comp(7),
        rank=4,
    )
    found = [(event.name, event.stream, event.start_s, event.duration_s) for event in laid_out(trace)]
    wanted = [
        ("comp1", COMPUTE, 0, 2),
        ("comp2", COMPUTE, 2, 3),
        ("coll3", COMMUNICATION, 2, 4),
        ("comp4", COMPUTE, 6, 1),
        ("coll5", COMMUNICATION, 6, 0.5),
        ("store", MEMORY, 5, 1),
        ("comp7", COMPUTE, 7, 0),
    ]
    for event, (name, stream, start, duration) in zip(found, wanted, strict=True):
        assert event == (name, stream, pytest.approx(start * 1e-6), pytest.approx(duration * 1e-6))
    assert {event.rank for event in laid_out(trace)} == {4}
    assert next(iter(laid_out(trace))).args == {"id": 1}


def test_without_durations_the_message_says_how_to_get_them():
    with pytest.raises(TraceError, match=r"rank 2 has no durations, .* write the trace with --cluster"):
        list(laid_out(trace_of(comp(1), rank=2)))
