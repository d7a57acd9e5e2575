"""What `dsx.place` answers: the step, its bound, and what other ways give."""

import time
from collections.abc import Sequence
from statistics import mean

from sections import table

import dsx
from dsx.placement.op_graph import units_of
from dsx.placement.timetable import GraphTimes
from placing.baselines import mcmc, metis
from placing.cases import COUNTS, Case, Row, on, percent, us
from placing.validator import violations

_MCMC_STEPS = 25_000
_LIMIT_S, _EXAMPLE_LIMIT_S = 60, 6
_EXAMPLE_COUNT, _EXAMPLE_BANDWIDTH = 4, 400e9  # NVLink: 25 GB/s are too few for an H100, which is faster
_WAYS = ("heft", "metis", "mcmc", "single_device")


def measured(cases: Sequence[Case]) -> list[Row]:
    """Return a row for each graph and number of devices."""
    rows: list[Row] = []
    for case in cases:
        for count in COUNTS if case.reference else (_EXAMPLE_COUNT,):
            rows.append(_placed(case, count))
            print(rows[-1], flush=True)
    return rows


def _placed(case: Case, count: int) -> Row:
    devices = on(count) if case.reference else on(count, _EXAMPLE_BANDWIDTH)
    begun = time.perf_counter()
    found = dsx.place(
        case.graph,
        count,
        f"{devices.links[0].bandwidth / 1e9:g} GB/s",
        time_limit=f"{_LIMIT_S if case.reference else _EXAMPLE_LIMIT_S} s",
        watch=lambda done, total, word: None,
    )
    seconds = time.perf_counter() - begun
    if broken := violations(case.graph, devices, found.placed.schedule):
        raise RuntimeError(f"{case.name} on {count} devices: {broken}")
    timing, unit = GraphTimes(case.graph, devices), units_of(case.graph).tolist()
    start, parts = timing.single_device(), metis(timing, unit)
    assert start is not None  # memory has no limit
    return {
        "graph": case.name,
        "reference": case.reference,
        "devices": count,
        "bandwidth": devices.links[0].bandwidth,
        "step_s": found.makespan_s,
        "bound_s": found.bound_s,
        "gap": found.gap,
        "found_by": found.placed.ways.source,
        "contended_s": found.contended_s,
        "seconds": seconds,
        **found.baselines,
        "metis": None if parts is None else parts.makespan_s,
        "mcmc": mcmc(timing, unit, start, _MCMC_STEPS).makespan_s,
    }


def text(rows: Sequence[Row]) -> str:
    """Return the rows as a table, and the mean gains over other ways."""
    head = (
        *("graph", "found by", "devices", "step, us", "bound, us", "gap, %", "HEFT", "METIS", "MCMC"),
        *("one device", "links shared", "s"),
    )
    cells = [
        (
            row["graph"],
            row["found_by"],
            str(row["devices"]),
            us(row["step_s"]),
            us(row["bound_s"]),
            percent(row["gap"], ""),
            *(us(row[way]) for way in _WAYS),
            us(row["contended_s"]),
            f"{row['seconds']:.0f}",
        )
        for row in rows
    ]
    return f"{table(head, cells, 10)}\n{_gains(rows)}"


def _gains(rows: Sequence[Row]) -> str:
    """Return how much shorter steps are than those of other ways, as means over reference graphs."""
    cells = []
    for count in COUNTS:
        own = [row for row in rows if row["reference"] and row["devices"] == count]
        if own:
            cells.append((str(count), *(percent(mean(gains(own, way)), "") for way in _WAYS)))
    if not cells:
        return ""
    ways = ("HEFT", "METIS", "MCMC", "one device")
    return table(("devices", *(f"shorter than {way}, %" for way in ways)), cells, 5)


def gains(rows: Sequence[Row], way: str) -> list[float]:
    """Return by which share the step is shorter than that of another way, where that has one."""
    return [1 - row["step_s"] / row[way] for row in rows if row[way] is not None]
