"""Placements a second of the simulator, beside a NumPy version with the same layout, and its error.

The NumPy version has the batch on the last axis too, and reads the same rows. It is timed twice: as it does what the
scan does, four inputs for each row; and without the inputs that a row does not have, which a loop in Python can skip.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import jax.numpy as jnp
import numpy as np
from sections import table

from dsx.placement.annealing import GraphRows, SimulatedDevices, makespans, rows_of
from dsx.placement.op_graph import OpGraph, by_distribution, reduce, units_of
from dsx.placement.timetable import GraphTimes
from placing.cases import Case, Row, on
from placing.searching import started

_DEVICES = 4
_BATCHES = (1024, 4096)
_REPETITIONS = 7
_NUMPY_REPETITIONS = 3
_COMPARED = 64  # placements that are scheduled event by event


def measured(cases: Sequence[Case]) -> list[Row]:
    """Return rows of AlexNet and VGG16 reduced, and of BERT as it is and reduced."""
    rows: list[Row] = []
    for case in (case for case in cases if case.reference):
        reduced = reduce(case.graph, on(_DEVICES), by_distribution(case.graph)).graph
        graphs = [("reduced", reduced)] + ([("as it is", case.graph)] if case.name.startswith("bert") else [])
        for form, graph in graphs:
            for batch in _BATCHES:
                rows.append({"graph": case.name, "form": form, **_row(graph, batch)})
                print(rows[-1], flush=True)
    return rows


def _row(graph: OpGraph, batch: int) -> Row:
    devices = on(_DEVICES)
    timing, unit, machine = GraphTimes(graph, devices), units_of(graph), SimulatedDevices.of(devices)
    start = started(graph, devices, unit)
    order = timing.order_of(start.start_s.tolist())
    rows = rows_of(timing, unit.tolist(), order)
    placement = np.random.default_rng(0).integers(0, _DEVICES, (len(rows.op), batch)).astype(np.int32)
    placed = jnp.asarray(placement)

    def jax_run() -> Any:
        return makespans(rows, placed, machine).block_until_ready()

    def numpy_run(skips: bool) -> np.ndarray:
        return numpy_makespans(rows, placement, skips)

    found, by_numpy = np.asarray(jax_run()), numpy_run(skips=True)  # which compiles
    exact = [timing.in_order(column, order).makespan_s for column in placement[unit, :_COMPARED].T.tolist()]
    if not np.allclose(found, by_numpy, rtol=1e-5):
        raise RuntimeError("NumPy simulates another step")
    return {
        "operators": graph.num_ops,
        "rows": len(rows.op),
        "batch": batch,
        "jax": batch / _median_s(jax_run, _REPETITIONS),
        "numpy": batch / _median_s(lambda: numpy_run(skips=False), _NUMPY_REPETITIONS),
        "numpy_skips": batch / _median_s(lambda: numpy_run(skips=True), _NUMPY_REPETITIONS),
        "error": float(np.abs(found[:_COMPARED] / np.array(exact) - 1).max()),
    }


def _median_s(run: Callable[[], object], repetitions: int) -> float:
    found: list[float] = []
    for _ in range(repetitions):
        begun = time.perf_counter()
        run()
        found.append(time.perf_counter() - begun)
    return median(found)


def numpy_makespans(rows: GraphRows, placement: np.ndarray, skips: bool) -> np.ndarray:
    """Return the seconds of [R, B] placements on equal devices with one level of links, [B].

    It `skips` inputs that a row does not have, or adds nothing for them.
    """
    batch = placement.shape[1]
    lanes = np.arange(batch)
    none = len(rows.op) - 1
    ends = np.zeros((len(rows.op), batch), np.float32)
    free = np.zeros((_DEVICES, batch), np.float32)
    longest, begin = np.zeros(batch, np.float32), np.zeros(batch, np.float32)
    op, unit, seconds = rows.op.tolist(), rows.unit.tolist(), rows.seconds[:, 0].tolist()
    inputs, input_units, cost_s = rows.inputs.tolist(), rows.input_units.tolist(), np.asarray(rows.cost_s)[:, 0]
    first, last = rows.first.tolist(), rows.last.tolist()
    for row in range(len(op)):
        if op[row] == none:
            continue  # it fills up the length
        own = placement[unit[row]]
        if first[row]:
            begin = np.zeros(batch, np.float32)
        for place, other in enumerate(inputs[row]):
            if skips and other == none:
                break
            apart = placement[input_units[row][place]] != own
            np.maximum(begin, ends[other] + cost_s[row, place] * apart, out=begin)
        if not last[row]:
            continue
        if seconds[row] > 0.0:
            begin = np.maximum(begin, free[own, lanes]) + np.float32(seconds[row])
            free[own, lanes] = begin
        ends[op[row]] = begin
        np.maximum(longest, begin, out=longest)
    return longest


def text(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    head = (
        "graph",
        "form",
        "operators",
        "rows",
        "batch",
        "placements/s",
        "NumPy",
        "times",
        "NumPy, skips",
        "times",
        "error",
    )
    return table(
        head,
        [
            (
                row["graph"],
                row["form"],
                f"{row['operators']:,}",
                f"{row['rows']:,}",
                f"{row['batch']:,}",
                f"{row['jax']:,.0f}",
                f"{row['numpy']:,.0f}",
                f"{row['jax'] / row['numpy']:.1f}",
                f"{row['numpy_skips']:,.0f}",
                f"{row['jax'] / row['numpy_skips']:.1f}",
                f"{row['error']:.0e}",
            )
            for row in rows
        ],
        9,
    )
