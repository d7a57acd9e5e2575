"""The result of a replay as text; it is plain data."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from dsx.display.quantities import shares
from dsx.display.table import table
from dsx.display.trace_text import elements_text
from dsx.printable import printable
from dsx.units import counted, format_quantity

_ROWS = 24  # of the table of ranks
_COLUMNS = {"compute_s": "compute", "send_s": "sends", "bubble_s": "bubble", "offload_s": "offload", "host_s": "host"}


def replay_text(replay: Mapping[str, Any]) -> str:
    """Return the data of a replay as text: the step, where its time goes on the slowest rank, and all ranks."""
    return "\n\n".join(filter(None, [_title(replay), _slowest(replay["ranks"]), _ranks(replay["ranks"])]))


def _title(replay: Mapping[str, Any]) -> str:
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
    more = f"\n... and {len(rows) - _ROWS:,} more rows" if len(rows) > _ROWS else ""
    return table(["ranks", "step", *columns], rows[:_ROWS]) + more if len(rows) > 1 else ""


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
