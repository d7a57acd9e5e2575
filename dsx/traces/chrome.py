"""Timelines for chrome://tracing and Perfetto: a process for each rank, a thread for each of its streams.

Events are written as they come. The file has its name when it is complete (dsx/files.py).
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dsx.errors import StoreError, TraceError
from dsx.files import OpenFolder, hold
from dsx.traces.codec import STREAM_OF, STREAMS
from dsx.traces.columns import RankTrace
from dsx.traces.orders import joined, topological_order

_BLOCK = 5_000  # lines that are written at once


class Event(NamedTuple):
    """Something that takes time on a stream of a rank."""

    rank: int
    stream: str
    name: str
    start_s: float
    duration_s: float
    args: Mapping[str, object] = {}  # plain data that is shown with the event; never changed


@contextmanager
def chrome_file(path: Path) -> Iterator[Callable[[Iterable[Event]], None]]:
    """Give a function that adds events to a timeline; the file is there after the block, if that raises nothing.

    Events may come in any order. Raises StoreError if the file cannot be written.
    """
    with _os_errors(path):
        folder = OpenFolder(path.parent)
    with folder, folder.temporary_name() as partial:
        with _os_errors(path):
            folder.remove_left()
            file = folder.open(partial, os.O_RDWR | os.O_CREAT)
            hold(file.fileno())
        with file:
            separators = chain(("\n",), repeat(",\n"))
            threads: dict[tuple[int, str], int] = {}

            def write(events: Iterable[Event]) -> None:
                lines = (line for event in events for line in _lines(event, threads))
                while block := list(islice(lines, _BLOCK)):
                    with _os_errors(path):
                        file.write((next(separators) + ",\n".join(block)).encode())

            with _os_errors(path):
                file.write(b'{"displayTimeUnit": "ms", "traceEvents": [')
            yield write
            with _os_errors(path):
                file.write(b"\n]}\n")
                file.flush()
                os.fsync(file.fileno())
        with _os_errors(path):
            folder.rename(partial, folder, path.name)
            folder.sync()


def laid_out(trace: RankTrace) -> Iterator[Event]:
    """Yield the nodes of a rank as events: each as soon as its stream and the nodes that it depends on allow.

    Waiting for other ranks is not modelled. Nodes in a cycle are left out. Raises TraceError if no node has a duration.
    """
    if not trace.has_durations:
        raise TraceError(
            f"the trace of rank {trace.rank} has no durations, which a timeline needs; write the trace with --cluster"
        )
    deps = joined(trace.ctrl_deps, trace.data_deps)
    causes = deps.tolist()
    durations = (np.nan_to_num(trace.duration_ns) * 1e-9).tolist()
    types, ids = trace.types.tolist(), trace.ids.tolist()
    ends = [0.0] * trace.num_nodes
    free: dict[str, float] = dict.fromkeys(STREAMS, 0.0)
    for row in topological_order(deps).tolist():
        begin = max((ends[cause] for cause in causes[row]), default=0.0)
        stream = STREAM_OF.get(types[row])
        if stream is None:  # metadata takes no time
            ends[row] = begin
            continue
        begin = max(begin, free[stream])
        free[stream] = ends[row] = begin + durations[row]
        yield Event(trace.rank, stream, trace.names.of(row), begin, durations[row], {"id": ids[row]})


def _lines(event: Event, threads: dict[tuple[int, str], int]) -> Iterator[str]:
    """Yield an event as JSON, after the names of its process and thread if they are new; `threads` has the known."""
    key = event.rank, event.stream
    if (thread := threads.get(key)) is None:
        # The usual streams have the same numbers in all ranks, others the next free ones.
        taken = {number for (rank, _), number in threads.items() if rank == event.rank}
        free = (number for number in count(len(STREAMS)) if number not in taken)
        thread = STREAMS.index(event.stream) if event.stream in STREAMS else next(free)
        threads[key] = thread
        for what, name in (("process_name", f"rank {event.rank}"), ("thread_name", event.stream)):
            yield json.dumps({"ph": "M", "name": what, "pid": event.rank, "tid": thread, "args": {"name": name}})
    line = {"ph": "X", "name": event.name, "pid": event.rank, "tid": thread}
    yield json.dumps({**line, "ts": event.start_s * 1e6, "dur": event.duration_s * 1e6, "args": event.args})


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
