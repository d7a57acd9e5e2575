"""Where the operators of a step go, as text; it is plain data."""

from collections.abc import Mapping
from typing import Any

from dsx.display.table import table
from dsx.printable import printable
from dsx.units import counted, format_quantity

_WAYS = {"heft": "HEFT", "metis": "METIS", "mcmc": "MCMC", "single_device": "one device"}
_ROWS = 16  # of the table of devices
_PAIRS = 12  # of servers


def operator_placement_text(placed: Mapping[str, Any]) -> str:
    """Return the data of a placement as text: the step and its bound, other ways, devices, bandwidths."""
    parts = [_title(placed), _ways(placed), _devices(placed), _bandwidth(placed["bandwidth"])]
    return "\n\n".join(filter(None, parts))


def _title(placed: Mapping[str, Any]) -> str:
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
    alone = placed["baselines"]["single_device"]
    if alone is None or placed["contended_s"] <= alone:
        return ""
    return f", longer than on one device ({_time(alone)}): its links must carry transfers at once"


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
            str(one["device"]),
            f"{one['operators']:,}",
            _time(one["busy_s"]),
            f"{100 * one['busy_s'] / step:.0f} %",
            format_quantity(one["memory_bytes"], "bytes"),
            format_quantity(one["sent_bytes"], "bytes"),
        ]
        for one in placed["per_device"]
    ]
    more = f"\n... and {len(rows) - _ROWS} more devices (--json has all)" if len(rows) > _ROWS else ""
    return table(["device", "operators", "busy", "", "memory", "sends"], rows[:_ROWS]) + more


def _bandwidth(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    total = format_quantity(found["server_bytes_per_s"], "bytes/s")
    head = f"bandwidth: {found['scheme']}, of {total} that a server sends ({counted(found['nics'], 'NIC')})"
    compared = (
        f"uniform shares: step {_time(found['uniform_s'])}; a tree, one NIC's for any two: {_time(found['tree_s'])}"
    )
    pairs = [
        [pair.replace("->", " to "), format_quantity(rate, "bytes/s")] for pair, rate in found["bytes_per_s"].items()
    ]
    more = f"\n... and {len(pairs) - _PAIRS} more pairs (--json has all)" if len(pairs) > _PAIRS else ""
    shown = table(["servers", "bandwidth"], pairs[:_PAIRS]) + more if found["scheme"] == "joint" else ""
    return "\n".join(filter(None, [head, compared, shown]))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.0005 else f"{max(100 * share, 0.001):.1g} %"


def _time(seconds: float) -> str:
    return format_quantity(seconds, "s")
