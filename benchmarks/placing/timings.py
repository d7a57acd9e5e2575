"""Seconds of fusion, solver, METIS and MCMC, and what each gives."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sections import table

from dsx.placement.cp_program import SolverEffort
from dsx.placement.exact import solve
from dsx.placement.op_graph import by_distribution, reduce, units_of
from dsx.placement.timetable import GraphTimes, OperatorSchedule
from placing.baselines import mcmc, metis
from placing.cases import COUNTS, Case, Row, on, us
from placing.searching import on_given, started

T = TypeVar("T")
_STEPS = (5_000, 15_000, 25_000)
_GAP = 0.05
_LIMIT_S = 20.0
_ONE_BY_ONE = 20  # schedules that are timed in Python


def measured(cases: Sequence[Case]) -> list[Row]:
    """Return a row for each reference graph and number of devices."""
    rows: list[Row] = []
    for case in (case for case in cases if case.reference):
        for count in COUNTS:
            rows.append(_row(case, count))
            print(rows[-1], flush=True)
    return rows


def _row(case: Case, count: int) -> Row:
    devices, unit = on(count), units_of(case.graph)
    timing = GraphTimes(case.graph, devices)
    start = timing.single_device()
    assert start is not None  # memory has no limit
    reduction, fusion_s = _timed(lambda: reduce(case.graph, devices, by_distribution(case.graph)))
    hint = started(reduction.graph, devices, reduction.group)
    exact, solver_s = _timed(
        lambda: solve(reduction.graph, devices, reduction.group.tolist(), SolverEffort(_LIMIT_S, gap=_GAP), hint=hint),
    )
    assert exact.schedule is not None  # the hint at least
    parts, metis_s = _timed(lambda: metis(timing, unit.tolist()))
    row: Row = {
        "graph": case.name,
        "devices": count,
        "fusion_s": fusion_s,
        "operators": reduction.graph.num_ops,
        "units": reduction.num_units,
        "solver_s": solver_s,
        "solver_gap": 1 - exact.bound_s / exact.schedule.makespan_s,
        "reduced_step_s": exact.schedule.makespan_s,
        "solver_step_s": on_given(timing, reduction.of_op, exact.schedule).makespan_s,
        "metis_s": metis_s,
        "metis_step_s": None if parts is None else parts.makespan_s,
        "mcmc_s": {},
        "mcmc_step_s": {},
    }
    for steps in _STEPS:
        _walk(timing, start, steps)  # compiles
        found, seconds = _timed(lambda steps=steps: _walk(timing, start, steps))
        row["mcmc_s"][str(steps)], row["mcmc_step_s"][str(steps)] = seconds, found.makespan_s
    placement, order = start.device.tolist(), timing.order_of(start.start_s.tolist())
    _, one_by_one_s = _timed(lambda: [timing.in_order(placement, order) for _ in range(_ONE_BY_ONE)])
    row["python_step_s"] = one_by_one_s / _ONE_BY_ONE  # of a schedule in plain Python, as the sources' MCMC makes them
    return row


def _walk(timing: GraphTimes, start: OperatorSchedule, steps: int) -> OperatorSchedule:
    return mcmc(timing, units_of(timing.graph).tolist(), start, steps)


def _timed(run: Callable[[], T]) -> tuple[T, float]:
    begun = time.perf_counter()
    found = run()
    return found, time.perf_counter() - begun


def text(rows: Sequence[Row]) -> str:
    """Return seconds, then makespans, as tables."""
    steps = [f"MCMC, {number:,}" for number in _STEPS]
    seconds = table(
        ("seconds", "devices", "units", "fusion", "solver", "its gap, %", "METIS", *steps),
        [
            (
                row["graph"],
                str(row["devices"]),
                f"{row['units']:,}",
                f"{row['fusion_s']:.2f}",
                f"{row['solver_s']:.1f}",
                f"{100 * row['solver_gap']:.1f}",
                f"{row['metis_s']:.2f}",
                *(f"{row['mcmc_s'][str(number)]:.2f}" for number in _STEPS),
            )
            for row in rows
        ],
        9,
    )
    makespans = table(
        ("step, us", "devices", "solver, reduced graph", "solver, given graph", "METIS", *steps),
        [
            (
                row["graph"],
                str(row["devices"]),
                *(us(row[name]) for name in ("reduced_step_s", "solver_step_s", "metis_step_s")),
                *(us(row["mcmc_step_s"][str(number)]) for number in _STEPS),
            )
            for row in rows
        ],
        7,
    )
    return f"{seconds}\n{makespans}"
