"""``dsx trace inspect``: what is in a folder of execution traces, and what is wrong with them."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsx.errors import file_path
from dsx.progress import Watch, progress
from dsx.tables.format import share, table
from dsx.text import Data, DataView, printable
from dsx.traces.chrome import Event, chrome_file, laid_out
from dsx.traces.columns import RankTrace
from dsx.traces.inspect import summary
from dsx.traces.trace_folder import open_folder, traces
from dsx.units import counted, format_quantity
from dsx.verbs.answer import Answer
from dsx.verbs.arguments import check_output_file, watcher

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class TraceSummary(Answer):
    """Nodes, communication, memory, critical path and faults of a folder of traces."""

    data: DataView  # as `to_data` returns it, without the version

    @property
    def faults(self) -> tuple[DataView, ...]:
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

    def _data(self) -> Data:
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
    """Summarise and check the traces of a folder, of any writer.

    The writer is dsx or another one of MLCommons Chakra.

        dsx.trace.inspect("traces/plan", chrome="timeline.json")

    Args:
        folder: a folder with a file `<prefix>.<rank>.et` for each rank, or for some.
        chrome: a file for a timeline (chrome://tracing), in which no rank waits for another one; it needs durations.
        element_bytes: bytes of an element, for traces that count elements; 2 by default.
        watch: told how many ranks are done, instead of a progress bar.

    Raises TraceError for a folder or file that is no trace, for a timeline without durations, and for `element_bytes`
    of traces that count bytes; StoreError if the timeline cannot be written.
    """
    opened = open_folder(file_path("folder", folder), element_bytes)
    watch = watcher(watch)
    output = None if chrome is None else file_path("chrome", chrome)
    if output is not None:
        check_output_file(output, opened.files.values(), "--chrome")
    with (
        nullcontext() if output is None else chrome_file(output) as write,
        progress(len(opened.files), "inspect", watch) as advance,
    ):
        return TraceSummary(summary(opened, _written(traces(opened), write, advance)))


def _written(
    ranks: Iterable[RankTrace], write: Callable[[Iterable[Event]], None] | None, advance: Callable[[int], None]
) -> Iterator[RankTrace]:
    """Yield traces, each after it is written to the timeline."""
    for trace in ranks:
        if write is not None:
            write(laid_out(trace))
        yield trace
        advance(1)


_PARTS = 12  # rows of the critical path, the longest


_FAULTS = 20  # faults that are listed


_WIDTH = 100  # of a line of them


_OPERATORS = 32  # characters of the operators of a kernel


def flops_text(flops: float) -> str:
    """Return a number of FLOPs with its unit: "9.31 PFLOP"."""
    return format_quantity(flops, "flop/s").removesuffix("/s")


def trace_text(summary: DataView) -> str:
    """Return the summary of `dsx.traces.inspect` as text: tables of nodes, communication, memory, faults."""
    parts = [_summary_title(summary), _nodes(summary), _communication(summary), _memory(summary["memory"])]
    parts += [_path(summary["critical_path"]), _faults(summary["faults"])]
    return "\n\n".join(filter(None, parts))


def _summary_title(summary: DataView) -> str:
    ranks, every = summary["ranks"], summary["num_ranks"]
    of = "" if ranks == every else f" of {every:,}"
    versions = ", ".join(filter(None, summary["versions"])) or "of no stated version"
    lines = [
        f"{summary['folder']}: {counted(ranks, 'rank')}{of}, {counted(summary['totals'].get('nodes', 0), 'node')}, "
        f"{counted(summary['groups'], 'process group')} (Chakra {versions})",
        *elements_text(summary["element_bytes"]),
    ]
    return printable("\n".join(lines), keep="\n")


def elements_text(element_bytes: int | None) -> list[str]:
    """Return a line that says how sizes were read where files count elements; none where they count bytes."""
    if element_bytes is None:
        return []
    return [
        f"the files count elements and multiply-adds, here {counted(element_bytes, 'byte')} and 2 FLOPs each "
        "(--element-bytes)"
    ]


def _nodes(summary: DataView) -> str:
    rows = [_node_row(row["type"], row["op_type"], row) for row in summary["nodes"]]
    if len(rows) > 1:
        rows.append(_node_row("all", "", summary["totals"]))
    header = ["nodes", "operators", "number", "launches", "matrix", "vector", "all FLOPs", "traffic", "time"]
    return table(header, rows, text=(0, 1))


def _node_row(kind: str, op_type: str, row: DataView) -> list[str]:
    work = [_or_dash(row[f"{what}_flops"], flops_text) for what in ("matrix", "vector", "total")]
    traffic = _or_dash(row["traffic_bytes"] + row["unfused_bytes"], lambda size: format_quantity(size, "bytes"))
    launches = _or_dash(row["launches"], lambda number: f"{number:,}")
    return [kind, _shortened(op_type), f"{row['nodes']:,}", launches, *work, traffic, _duration_or_dash(row)]


def _shortened(op_type: str) -> str:
    """Return operators joined with +, without the last ones of many."""
    if len(op_type) <= _OPERATORS:
        return op_type
    return (
        f"{op_type[: op_type.rindex('+', 0, _OPERATORS)] if '+' in op_type[:_OPERATORS] else op_type[:_OPERATORS]}+..."
    )


def _communication(summary: DataView) -> str:
    rows = [
        [row["collective"], row["axis"] or "-", f"{row['group_size'] or 'unknown'}", *_sent(row)]
        for row in summary["collectives"]
    ]
    rows += [[row["type"], "-", "2", *_sent(row)] for row in summary["transfers"]]
    return table(["communication", "axis", "group", "number", "bytes", "time"], rows, text=(0, 1)) if rows else ""


def _sent(row: DataView) -> list[str]:
    return [f"{row['nodes']:,}", format_quantity(row["size_bytes"], "bytes"), _duration_or_dash(row)]


def _memory(memory: DataView) -> str:
    worst = memory["worst"]
    if worst is None:
        return "memory: unknown, since the nodes name no tensors"
    peaks = [rank["peak_bytes"] for rank in memory["ranks"]]
    least = "" if len(peaks) == 1 else f" (the least is {format_quantity(min(peaks), 'bytes')})"
    head = (
        f"memory: the peak is {format_quantity(worst['peak_bytes'], 'bytes')} on rank {worst['rank']}{least}, "
        f"at node {worst['node']} ({worst['name']})"
    )
    rows = [
        [
            part["kind"],
            f"{part['buffers']:,}",
            format_quantity(part["size_bytes"], "bytes"),
            share(part["size_bytes"], worst["peak_bytes"]),
        ]
        for part in worst["alive"]
    ]
    return f"{printable(head)}\n{table(['alive then', 'buffers', 'bytes', ''], rows)}"


def _path(path: DataView | None) -> str:
    if path is None or not path["nodes"]:
        return ""
    unit = "length_s" if "length_s" in path else "length_flops"
    longest = sorted(path["parts"], key=lambda part: -part[unit])
    rows = [
        [part["name"], f"{part['nodes']:,}", _length(part[unit], unit), share(part[unit], path[unit])]
        for part in longest[:_PARTS]
    ]
    shorter = longest[_PARTS:]
    if shorter:
        total = sum(part[unit] for part in shorter)
        number = sum(part["nodes"] for part in shorter)
        rows.append([f"{len(shorter):,} others", f"{number:,}", _length(total, unit), share(total, path[unit])])
    head = (
        f"critical path: {_length(path[unit], unit)} over {counted(path['nodes'], 'node')} of rank {path['rank']}, "
        "without waiting for other ranks"
    )
    return f"{head}\n{table(['nodes', 'number', 'length', ''], rows)}"


def _faults(faults: Sequence[DataView]) -> str:
    wrong = [fault for fault in faults if not fault["is_note"]]
    number = sum(1 + fault["more"] for fault in wrong)
    lines = [f"faults: {number:,}" if wrong else "faults: none"]
    lines += [_wrapped(fault, "  ") for fault in wrong[:_FAULTS]]
    if len(wrong) > _FAULTS:
        lines.append(f"  ... and {len(wrong) - _FAULTS:,} more entries")
    lines += [_wrapped(fault, "note: ") for fault in faults if fault["is_note"]]
    return "\n".join(lines)


def _wrapped(fault: DataView, head: str) -> str:
    return textwrap.fill(printable(_fault(fault)), _WIDTH, initial_indent=head, subsequent_indent="    ")


def _fault(fault: DataView) -> str:
    rank = "" if fault["rank"] is None else f" rank {fault['rank']}"
    node = "" if fault["node"] is None else f" node {fault['node']} ({fault['name']})"
    more = f" (and {fault['more']:,} more)" if fault["more"] else ""
    return f"{fault['what']}:{rank}{node}{':' if rank or node else ''} {fault['detail']}{more}"


def _duration_or_dash(row: DataView) -> str:
    return _or_dash(row["duration_s"], lambda seconds: format_quantity(seconds, "s"))


def _length(value: float, unit: str) -> str:
    return format_quantity(value, "s") if unit == "length_s" else flops_text(value)


def _or_dash(value: float, text: Callable[[Any], str]) -> str:
    return text(value) if value else "-"
