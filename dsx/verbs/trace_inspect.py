"""``dsx trace inspect``: what is in a folder of execution traces, and what is wrong with them."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dsx.errors import file_path
from dsx.progress import Watch, progress
from dsx.tables.format import share, table
from dsx.text import WIDTH, Data, DataFrame, DataView, printable
from dsx.traces.chrome import chrome_file, laid_out
from dsx.traces.columns import RankTrace
from dsx.traces.inspect import summary
from dsx.traces.read import open_folder, traces
from dsx.units import counted, format_quantity
from dsx.verbs.arguments import Answer, output_file, paragraphs, watcher, with_units


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
    def frame(self) -> DataFrame:
        """A row for each kind of node: how many there are, and their FLOPs, bytes and seconds."""
        return with_units(self.data["nodes"], flops="flop")

    def _data(self) -> Data:
        return dict(self.data)

    def __str__(self) -> str:
        data = self.data
        rows: list[list[str]] = []
        of_all = [{"type": "all", "op_type": "", **data["totals"]}] if len(data["nodes"]) > 1 else []
        for row in [*data["nodes"], *of_all]:
            operators = row["op_type"]
            if len(operators) > _OPERATORS:  # without the last ones of many
                end = operators.rindex("+", 0, _OPERATORS) if "+" in operators[:_OPERATORS] else _OPERATORS
                operators = f"{operators[:end]}+..."
            traffic = row["traffic_bytes"] + row["unfused_bytes"]
            numbers = [f"{row['nodes']:,}", f"{row['launches']:,}" if row["launches"] else "-"]
            work = [row[f"{what}_flops"] for what in ("matrix", "vector", "total")]
            numbers += [flops_text(flops) if flops else "-" for flops in work]
            times = [_or_dash(traffic, "bytes"), _or_dash(row["duration_s"], "s")]
            rows.append([row["type"], operators, *numbers, *times])
        header = ["nodes", "operators", "number", "launches", "matrix", "vector", "all FLOPs", "traffic", "time"]
        parts = [_title(data), table(header, rows, text=(0, 1)), _communication(data), _memory(data["memory"])]
        return paragraphs([*parts, _path(data["critical_path"]), _faults(data["faults"])])


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
    watch, output = watcher(watch), output_file("chrome", chrome, opened.files.values(), "--chrome", ".json")
    with (
        nullcontext() if output is None else chrome_file(output) as write,
        progress(len(opened.files), "inspect", watch) as advance,
    ):

        def read() -> Iterator[RankTrace]:
            for trace in traces(opened):
                if write is not None:
                    write(laid_out(trace))
                yield trace
                advance(1)

        return TraceSummary(summary(opened, read()))


_PARTS = 12  # rows of the critical path, the longest
_FAULTS = 20  # faults that are listed
_OPERATORS = 32  # characters of the operators of a kernel


def flops_text(flops: float) -> str:
    """Return a number of FLOPs with its unit: "9.31 PFLOP"."""
    return format_quantity(flops, "flop/s").removesuffix("/s")


def _title(summary: DataView) -> str:
    ranks, every = summary["ranks"], summary["num_ranks"]
    of = "" if ranks == every else f" of {every:,}"
    versions = ", ".join(filter(None, summary["versions"])) or "of no stated version"
    head = (
        f"{summary['folder']}: {counted(ranks, 'rank')}{of}, {counted(summary['totals'].get('nodes', 0), 'node')}, "
        f"{counted(summary['groups'], 'process group')} (Chakra {versions})"
    )
    return printable("\n".join([head, *elements_text(summary["element_bytes"])]), keep="\n")


def elements_text(element_bytes: int | None) -> list[str]:
    """Return a line that says how sizes were read where files count elements; none where they count bytes."""
    if element_bytes is None:
        return []
    return [
        f"the files count elements and multiply-adds, here {counted(element_bytes, 'byte')} and 2 FLOPs each "
        "(--element-bytes)"
    ]


def _communication(summary: DataView) -> str:
    named = [
        (row["collective"], row["axis"] or "-", f"{row['group_size'] or 'unknown'}", row)
        for row in summary["collectives"]
    ]
    named += [(row["type"], "-", "2", row) for row in summary["transfers"]]
    rows = [
        [*names, f"{row['nodes']:,}", format_quantity(row["size_bytes"], "bytes"), _or_dash(row["duration_s"], "s")]
        for *names, row in named
    ]
    return table(["communication", "axis", "group", "number", "bytes", "time"], rows, text=(0, 1)) if rows else ""


def _memory(memory: DataView) -> str:
    worst = memory["worst"]
    if worst is None:
        return "memory: unknown, since the nodes name no tensors"
    peak, peaks = worst["peak_bytes"], [rank["peak_bytes"] for rank in memory["ranks"]]
    least = "" if len(peaks) == 1 else f" (the least is {format_quantity(min(peaks), 'bytes')})"
    head = (
        f"memory: the peak is {format_quantity(peak, 'bytes')} on rank {worst['rank']}{least}, "
        f"at node {worst['node']} ({worst['name']})"
    )
    alive = [(part["kind"], part["buffers"], part["size_bytes"]) for part in worst["alive"]]
    rows = [[kind, f"{count:,}", format_quantity(size, "bytes"), share(size, peak)] for kind, count, size in alive]
    return f"{printable(head)}\n{table(['alive then', 'buffers', 'bytes', ''], rows)}"


def _path(path: DataView | None) -> str:
    if path is None or not path["nodes"]:
        return ""
    unit = "length_s" if "length_s" in path else "length_flops"

    def length(value: float) -> str:
        return format_quantity(value, "s") if unit == "length_s" else flops_text(value)

    longest = sorted(path["parts"], key=lambda part: -part[unit])
    shown = [(part["name"], part["nodes"], part[unit]) for part in longest[:_PARTS]]
    if shorter := longest[_PARTS:]:
        nodes, total = (sum(part[name] for part in shorter) for name in ("nodes", unit))
        shown.append((f"{len(shorter):,} others", nodes, total))
    rows = [[name, f"{nodes:,}", length(value), share(value, path[unit])] for name, nodes, value in shown]
    head = (
        f"critical path: {length(path[unit])} over {counted(path['nodes'], 'node')} of rank {path['rank']}, "
        "without waiting for other ranks"
    )
    return f"{head}\n{table(['nodes', 'number', 'length', ''], rows)}"


def _faults(faults: Sequence[DataView]) -> str:
    wrong, notes = ([fault for fault in faults if fault["is_note"] == is_note] for is_note in (False, True))
    number = sum(1 + fault["more"] for fault in wrong)
    left_out = [f"  ... and {len(wrong) - _FAULTS:,} more entries"] if len(wrong) > _FAULTS else []
    lines = [f"faults: {number:,}" if wrong else "faults: none", *(_fault(fault, "  ") for fault in wrong[:_FAULTS])]
    return "\n".join([*lines, *left_out, *(_fault(fault, "note: ") for fault in notes)])


def _fault(fault: DataView, head: str) -> str:
    rank = "" if fault["rank"] is None else f" rank {fault['rank']}"
    node = "" if fault["node"] is None else f" node {fault['node']} ({fault['name']})"
    more = f" (and {fault['more']:,} more)" if fault["more"] else ""
    text = printable(f"{fault['what']}:{rank}{node}{':' if rank or node else ''} {fault['detail']}{more}")
    return textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent="    ")


def _or_dash(value: float, unit: str) -> str:
    return format_quantity(value, unit) if value else "-"
