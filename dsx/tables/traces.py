"""Traces, replays and placements of operators as text.

The summary of a folder of traces as text; the summary is plain data.

The result of a replay as text; it is plain data.

Where the operators of a step go, as text; it is plain data.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from dsx.tables.format import share, shares, table
from dsx.text import printable
from dsx.units import counted, format_quantity

_PARTS = 12  # rows of the critical path, the longest
_FAULTS = 20  # faults that are listed
_WIDTH = 100  # of a line of them
_OPERATORS = 32  # characters of the operators of a kernel


def flops_text(flops: float) -> str:
    """Return a number of FLOPs with its unit: "9.31 PFLOP"."""
    return format_quantity(flops, "flop/s").removesuffix("/s")


def trace_text(summary: Mapping[str, Any]) -> str:
    """Return the summary of `dsx.traces.inspect` as text: tables of nodes, communication, memory, faults."""
    parts = [_summary_title(summary), _nodes(summary), _communication(summary), _memory(summary["memory"])]
    parts += [_path(summary["critical_path"]), _faults(summary["faults"])]
    return "\n\n".join(filter(None, parts))


def _summary_title(summary: Mapping[str, Any]) -> str:
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


def _nodes(summary: Mapping[str, Any]) -> str:
    rows = [_node_row(row["type"], row["op_type"], row) for row in summary["nodes"]]
    if len(rows) > 1:
        rows.append(_node_row("all", "", summary["totals"]))
    header = ["nodes", "operators", "number", "launches", "matrix", "vector", "all FLOPs", "traffic", "time"]
    return table(header, rows, text=(0, 1))


def _node_row(kind: str, op_type: str, row: Mapping[str, Any]) -> list[str]:
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


def _communication(summary: Mapping[str, Any]) -> str:
    rows = [
        [row["collective"], row["axis"] or "-", f"{row['group_size'] or 'unknown'}", *_sent(row)]
        for row in summary["collectives"]
    ]
    rows += [[row["type"], "-", "2", *_sent(row)] for row in summary["transfers"]]
    return table(["communication", "axis", "group", "number", "bytes", "time"], rows, text=(0, 1)) if rows else ""


def _sent(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['nodes']:,}", format_quantity(row["size_bytes"], "bytes"), _duration_or_dash(row)]


def _memory(memory: Mapping[str, Any]) -> str:
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


def _path(path: Mapping[str, Any] | None) -> str:
    if path is None or not path["nodes"]:
        return ""
    unit = "length_s" if "length_s" in path else "length_flops"
    longest = sorted(path["parts"], key=lambda part: -part[unit])
    rows = [
        [part["name"], f"{part['nodes']:,}", _length(part[unit], unit), share(part[unit], path[unit])]
        for part in longest[:_PARTS]
    ]
    left = longest[_PARTS:]
    if left:
        total = sum(part[unit] for part in left)
        number = sum(part["nodes"] for part in left)
        rows.append([f"{len(left):,} others", f"{number:,}", _length(total, unit), share(total, path[unit])])
    head = (
        f"critical path: {_length(path[unit], unit)} over {counted(path['nodes'], 'node')} of rank {path['rank']}, "
        "without waiting for other ranks"
    )
    return f"{head}\n{table(['nodes', 'number', 'length', ''], rows)}"


def _faults(faults: Sequence[Mapping[str, Any]]) -> str:
    wrong = [fault for fault in faults if not fault["is_note"]]
    number = sum(1 + fault["more"] for fault in wrong)
    lines = [f"faults: {number:,}" if wrong else "faults: none"]
    lines += [_wrapped(fault, "  ") for fault in wrong[:_FAULTS]]
    if len(wrong) > _FAULTS:
        lines.append(f"  ... and {len(wrong) - _FAULTS:,} more entries")
    lines += [_wrapped(fault, "note: ") for fault in faults if fault["is_note"]]
    return "\n".join(lines)


def _wrapped(fault: Mapping[str, Any], head: str) -> str:
    return textwrap.fill(printable(_fault(fault)), _WIDTH, initial_indent=head, subsequent_indent="    ")


def _fault(fault: Mapping[str, Any]) -> str:
    rank = "" if fault["rank"] is None else f" rank {fault['rank']}"
    node = "" if fault["node"] is None else f" node {fault['node']} ({fault['name']})"
    more = f" (and {fault['more']:,} more)" if fault["more"] else ""
    return f"{fault['what']}:{rank}{node}{':' if rank or node else ''} {fault['detail']}{more}"


def _duration_or_dash(row: Mapping[str, Any]) -> str:
    return _or_dash(row["duration_s"], lambda seconds: format_quantity(seconds, "s"))


def _length(value: float, unit: str) -> str:
    return format_quantity(value, "s") if unit == "length_s" else flops_text(value)


def _or_dash(value: float, text: Callable[[Any], str]) -> str:
    return text(value) if value else "-"


_RANK_ROWS = 24  # of the table of ranks
_COLUMNS = {"compute_s": "compute", "send_s": "sends", "bubble_s": "bubble", "offload_s": "offload", "host_s": "host"}


def replay_text(replay: Mapping[str, Any]) -> str:
    """Return the data of a replay as text: the step, where its time goes on the slowest rank, and all ranks."""
    return "\n\n".join(filter(None, [_replay_title(replay), _slowest(replay["ranks"]), _ranks(replay["ranks"])]))


def _replay_title(replay: Mapping[str, Any]) -> str:
    lines = [
        f"{replay['folder']}: {counted(len(replay['ranks']), 'rank')}, {counted(replay['nodes'], 'node')}, "
        f"on {replay['cluster']} under {replay['assumptions']}",
        *elements_text(replay["element_bytes"]),
        f"step time: {format_quantity(replay['step_time_s'], 's')}",
    ]
    if replay["slow"]:
        slow = "; ".join(f"{factor:g} times as long on {_ranges(ranks)}" for factor, ranks in _by_factor(replay))
        before = format_quantity(replay["step_time_without_slow_s"], "s")
        lines.append(f"slowdown: {replay['slowdown_percent']:.2f} % over {before} (kernels take {slow})")
    return printable("\n".join(lines), keep="\n")


def _by_factor(replay: Mapping[str, Any]) -> list[tuple[float, list[int]]]:
    found: dict[float, list[int]] = {}
    for rank, factor in replay["slow"].items():
        found.setdefault(factor, []).append(int(rank))
    return list(found.items())


def _slowest(ranks: Sequence[Mapping[str, Any]]) -> str:
    if not ranks:
        return ""
    slowest = max(ranks, key=lambda rank: rank["step_s"])
    parts = _parts(slowest)
    named = [(name, seconds) for name, seconds in parts.items() if seconds > 0]
    of = shares([seconds for _, seconds in named], slowest["step_s"])
    rows = [[name, format_quantity(seconds, "s"), part] for (name, seconds), part in zip(named, of, strict=True)]
    return table([f"rank {slowest['rank']}", "time", ""], rows)


def _ranks(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for all ranks whose row is the same."""
    columns = [name for name in (_parts(ranks[0]) if ranks else ()) if any(_parts(rank)[name] > 0 for rank in ranks)]
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank in ranks:
        seconds = _parts(rank)
        cells = [format_quantity(value, "s") for value in (rank["step_s"], *(seconds[name] for name in columns))]
        alike.setdefault(tuple(cells), []).append(rank["rank"])
    rows = [[_ranges(members), *cells] for cells, members in alike.items()]
    more = f"\n... and {len(rows) - _RANK_ROWS:,} more rows" if len(rows) > _RANK_ROWS else ""
    return table(["ranks", "step", *columns], rows[:_RANK_ROWS]) + more if len(rows) > 1 else ""


def _parts(rank: Mapping[str, Any]) -> dict[str, float]:
    """Return the parts of a rank's step by their titles; a part of communication is what is exposed of an axis."""
    by_axis = {f"{axis or 'other'} comm": seconds for axis, seconds in rank["comm_s"].items()}
    parts = {title: rank[name] for name, title in _COLUMNS.items()}
    return {"compute": parts.pop("compute"), **by_axis, **parts}


def _ranges(ranks: Sequence[int]) -> str:
    """Return ranks as ranges: "0-7, 12"."""
    starts = [ranks[0], *(after for before, after in pairwise(ranks) if after != before + 1)]
    ends = [*(before for before, after in pairwise(ranks) if after != before + 1), ranks[-1]]
    texts = [f"{start}" if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    shown = texts if len(texts) <= 4 else [*texts[:3], "...", texts[-1]]
    return ", ".join(shown)


_WAYS = {"heft": "HEFT", "metis": "METIS", "mcmc": "MCMC", "single_device": "one device"}
_DEVICE_ROWS = 16  # of the table of devices
_PAIRS = 12  # of servers


def operator_placement_text(placed: Mapping[str, Any]) -> str:
    """Return the data of a placement as text: the step and its bound, other ways, devices, bandwidths."""
    parts = [_placement_title(placed), _ways(placed), _devices(placed), _bandwidth(placed["bandwidth"])]
    return "\n\n".join(filter(None, parts))


def _placement_title(placed: Mapping[str, Any]) -> str:
    graph = placed["graph"]
    step, bound = _time(placed["makespan_s"]), _time(placed["bound_s"])
    if placed["gap"] <= 1e-6:
        quality = "no placement is shorter"
    else:
        quality = f"no placement is below {bound}, so it is within {_percent(placed['gap'])} of the shortest"
    heavy = placed["bound_operators"]
    proof = f"proved for its {heavy:,} longest operators" if heavy else "by the critical path or the load"
    lines = [
        f"{graph['name']}: {counted(graph['operators'], 'operator')} on {counted(placed['devices'], 'device')}",
        f"step {step}; {quality} ({proof})",
        f"where transfers share links: {_time(placed['contended_s'])}{_slower(placed)}",
    ]
    reduced = placed["reduction"]
    if reduced and reduced["alpha"] in placed["found_by"]:
        lines.append(
            f"reduced to {counted(reduced['operators'], 'operator')} in {counted(reduced['groups'], 'group')} "
            f"(alpha {_time(reduced['alpha_s'])}, {reduced['alpha']})"
        )
    if placed["stopped"]:
        lines.append("stopped early: the best so far")
    return printable("\n".join(lines), keep="\n")


def _slower(placed: Mapping[str, Any]) -> str:
    """Return a warning if one device is faster where transfers share links."""
    single_s = placed["baselines"]["single_device"]
    if single_s is None or placed["contended_s"] <= single_s:
        return ""
    return f", longer than on one device ({_time(single_s)}): its links must carry transfers at once"


def _ways(placed: Mapping[str, Any]) -> str:
    found_by = placed["found_by"]
    rows = [[_WAYS.get(found_by, found_by), _time(placed["makespan_s"]), ""]]
    for name, seconds in placed["baselines"].items():
        if name == found_by:
            continue
        way = f"{_WAYS[name]}, {placed['mcmc_steps']:,} steps" if name == "mcmc" and seconds else _WAYS[name]
        more = "" if seconds is None else f"{100 * (seconds / (placed['makespan_s'] or 1.0) - 1):+.1f} %"
        rows.append([way, "-" if seconds is None else _time(seconds), more])
    return table(["found by", "step", ""], rows)


def _devices(placed: Mapping[str, Any]) -> str:
    step = placed["makespan_s"] or 1.0
    rows = [
        [
            str(row["device"]),
            f"{row['operators']:,}",
            _time(row["busy_s"]),
            f"{100 * row['busy_s'] / step:.0f} %",
            format_quantity(row["memory_bytes"], "bytes"),
            format_quantity(row["sent_bytes"], "bytes"),
        ]
        for row in placed["per_device"]
    ]
    more = f"\n... and {len(rows) - _DEVICE_ROWS} more devices (--json has all)" if len(rows) > _DEVICE_ROWS else ""
    return table(["device", "operators", "busy", "", "memory", "sends"], rows[:_DEVICE_ROWS]) + more


def _bandwidth(allocated: Mapping[str, Any] | None) -> str:
    if allocated is None:
        return ""
    total = format_quantity(allocated["server_bytes_per_s"], "bytes/s")
    head = f"bandwidth: {allocated['scheme']}, of {total} that a server sends ({counted(allocated['nics'], 'NIC')})"
    uniform, tree = _time(allocated["uniform_s"]), _time(allocated["tree_s"])
    compared = f"uniform shares: step {uniform}; a tree, one NIC's for any two: {tree}"
    pairs = [
        [pair.replace("->", " to "), format_quantity(rate, "bytes/s")]
        for pair, rate in allocated["bytes_per_s"].items()
    ]
    more = f"\n... and {len(pairs) - _PAIRS} more pairs (--json has all)" if len(pairs) > _PAIRS else ""
    shown = table(["servers", "bandwidth"], pairs[:_PAIRS]) + more if allocated["scheme"] == "joint" else ""
    return "\n".join(filter(None, [head, compared, shown]))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.0005 else f"{max(100 * share, 0.001):.1g} %"


def _time(seconds: float) -> str:
    return format_quantity(seconds, "s")
