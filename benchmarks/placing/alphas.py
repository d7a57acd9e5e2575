"""Loss against alpha: the best schedule that the same time of annealing finds on each reduced graph."""

from collections.abc import Callable, Sequence
from functools import partial

from sections import table

from dsx.placement.op_graph import OpGraph, Thresholds, by_distribution, by_percentile, reduce, units_of
from dsx.placement.timetable import GraphTimes
from placing.cases import Case, Row, on, percent
from placing.searching import annealed_s

_DEVICES = 4
_SECONDS = 1.0  # nominal, of each reduced graph
_ALPHAS: tuple[Callable[[OpGraph], Thresholds], ...] = (
    *(partial(by_percentile, percentile=percentile) for percentile in (0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0)),
    by_distribution,
)


def measured(cases: Sequence[Case]) -> list[Row]:
    """Return a row for each reference graph, alpha, and for operators alone and groups."""
    rows: list[Row] = []
    for case in (case for case in cases if case.reference):
        given = GraphTimes(case.graph, on(_DEVICES))
        for alpha in _ALPHAS:
            made = reduce(case.graph, given.devices, alpha(case.graph))
            for grouped in (False, True):
                unit = made.group if grouped else units_of(made.graph)
                rows.append(
                    {
                        "graph": case.name,
                        "alpha": made.thresholds.source,
                        "alpha_s": made.thresholds.alpha_s,
                        "operators": made.graph.num_ops,
                        "grouped": grouped,
                        "units": int(unit.max()) + 1,
                        "step_s": annealed_s(given, made.graph, made.of_op, unit, _SECONDS),
                    }
                )
                print(rows[-1], flush=True)
    return rows


def text(rows: Sequence[Row]) -> str:
    """Return the rows as a table: what a step loses to the shortest that any alpha gives."""
    cells = []
    for alone_row in (row for row in rows if not row["grouped"]):
        own = [row for row in rows if row["graph"] == alone_row["graph"]]
        best_s = min(row["step_s"] for row in own)
        groups = next(row for row in own if row["grouped"] and row["alpha"] == alone_row["alpha"])
        cells.append(
            (
                alone_row["graph"],
                alone_row["alpha"],
                f"{1e6 * alone_row['alpha_s']:.1f}",
                f"{alone_row['operators']:,}",
                f"{groups['units']:,}",
                percent(alone_row["step_s"] / best_s - 1),
                percent(groups["step_s"] / best_s - 1),
            )
        )
    head = ("graph", "alpha", "us", "operators", "units with groups", "loss, %", "loss with groups, %")
    return table(head, cells, 5)
