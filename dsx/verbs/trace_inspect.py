"""What is in a folder of execution traces, and what is wrong with them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.errors import file_path
from dsx.progress import Watch, progress
from dsx.tables.traces import trace_text
from dsx.traces.chrome import Event, chrome_file, laid_out
from dsx.traces.columns import RankTrace
from dsx.traces.inspect import summary
from dsx.traces.trace_folder import open_folder, traces
from dsx.verbs.answer import Answer
from dsx.verbs.arguments import check_output_file, watcher

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class TraceSummary(Answer):
    """Nodes, communication, memory, critical path and faults of a folder of traces."""

    data: Mapping[str, Any]  # as `to_data` returns it, without the version

    @property
    def faults(self) -> tuple[Mapping[str, Any], ...]:
        """What is wrong; notes on what could not be checked are left out."""
        return tuple(fault for fault in self.data["faults"] if not fault["is_note"])

    @property
    def num_faults(self) -> int:
        """The number of faults, with those that are not listed."""
        return sum(1 + fault["more"] for fault in self.faults)

    @property
    def peak_bytes(self) -> int | None:
        """Largest memory of a rank; None if the nodes name no tensors."""
        worst = self.data["memory"]["worst"]
        return None if worst is None else worst["peak_bytes"]

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """A row for each kind of node: how many there are, and their FLOPs, bytes and seconds."""
        import pandas as pd

        frame = pd.DataFrame(self.data["nodes"])
        units = {"_flops": "flop", "_bytes": "bytes", "_s": "s"}
        frame.attrs["units"] = {
            name: unit for name in frame.columns for end, unit in units.items() if name.endswith(end)
        }
        return frame

    def _data(self) -> dict[str, Any]:
        """Return the summary as plain data; the units are in the names."""
        return dict(self.data)

    def __str__(self) -> str:
        return trace_text(self.data)


def inspect(
    folder: str | Path,
    chrome: str | Path | None = None,
    element_bytes: int | None = None,
    *,
    watch: Watch | None = None,
) -> TraceSummary:
    """Return what is in a folder of traces, of dsx or another writer of MLCommons Chakra, and what is wrong with them.

        dsx.trace.inspect("traces/plan", chrome="timeline.json")

    Args:
        folder: a folder with a file `<prefix>.<rank>.et` for each rank, or for some.
        chrome: a file for a timeline (chrome://tracing), in which no rank waits for another one; it needs durations.
        element_bytes: bytes of an element, for traces that count elements; 2 by default.
        watch: told how many ranks are done, instead of a progress bar.

    Raises TraceError for a folder or file that is no trace, for a timeline without durations, and for `element_bytes`
    of traces that count bytes; StoreError if the timeline cannot be written.
    """
    found = open_folder(file_path("folder", folder), element_bytes)
    watch = watcher(watch)
    output = None if chrome is None else file_path("chrome", chrome)
    if output is not None:
        check_output_file(output, found.files.values(), "--chrome")
    with (
        nullcontext() if output is None else chrome_file(output) as write,
        progress(len(found.files), "inspect", watch) as advance,
    ):
        return TraceSummary(summary(found, _written(traces(found), write, advance)))


def _written(
    ranks: Iterable[RankTrace], write: Callable[[Iterable[Event]], None] | None, advance: Callable[[int], None]
) -> Iterator[RankTrace]:
    """Yield traces, each after it is written to the timeline."""
    for trace in ranks:
        if write is not None:
            write(laid_out(trace))
        yield trace
        advance(1)
