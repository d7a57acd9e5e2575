"""Operators before and after reduction, beside the sources' counts; and other schemes of reduction."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from sections import table

from dsx.placement.op_graph import OpGraph, Reduction, by_distribution, by_percentile, reduce, units_of
from dsx.placement.timetable import GraphTimes
from placing.cases import Case, Row, on, percent, us
from placing.other_reductions import by_name, cheapest_into_neighbour, into_only_successor
from placing.searching import annealed_s, on_given, started

# Operators before and after, and groups: the conference paper (one pass, p90), and the thesis (iterated, distribution).
PUBLISHED = {
    "alexnet_tf": ("1,624 to 264, 47", "1,656 to 120, 13"),
    "vgg16_tf": ("3,598 to 509, 124", "3,652 to 206, 16"),
    "bert_base_jax": ("12,566 to 2,048, 429", "12,716 to 580, 64"),
}
_DEVICES = 4
_SEARCH_S = 1.0  # nominal, of each reduced graph
_Scheme = Callable[[OpGraph], tuple[OpGraph, np.ndarray, np.ndarray]]  # reduced graph, its operators [N], units [n]


def measured(cases: Sequence[Case]) -> list[Row]:
    """Return a row for each graph and each way to reduce it."""
    rows: list[Row] = []
    by_distribution(cases[0].graph)  # imports what it needs
    for case in cases:
        graph = case.largest_part
        for way, iterate in (("one pass, p90", False), ("iterated, distribution", True)):
            begun = time.perf_counter()
            made = _iterated(graph) if iterate else _one_pass(graph)
            rows.append(
                {
                    "graph": case.name,
                    "all": case.graph.num_ops,
                    "before": graph.num_ops,
                    "way": way,
                    "after": made.graph.num_ops,
                    "groups": made.num_groups,
                    "units": made.num_units,
                    "alpha_s": made.thresholds.alpha_s,
                    "seconds": time.perf_counter() - begun,
                    "published": PUBLISHED.get(case.name, ("", ""))[iterate],
                }
            )
    return rows


def text(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    head = ("graph", "way", "source: operators, groups", "largest part", "after", "groups", "units", "alpha, us", "s")
    return table(
        head,
        [
            (
                *(row[name] for name in ("graph", "way", "published")),
                *(f"{row[name]:,}" for name in ("before", "after", "groups", "units")),
                f"{1e6 * row['alpha_s']:.1f}",
                f"{row['seconds']:.2f}",
            )
            for row in rows
        ],
        6,
    )


def _iterated(graph: OpGraph) -> Reduction:
    """The reduction of the thesis, which dsx takes."""
    return reduce(graph, on(_DEVICES), by_distribution(graph))


def _one_pass(graph: OpGraph) -> Reduction:
    """The reduction of the conference paper: fusion and groups, neither of which is repeated or extended."""
    thresholds = replace(by_percentile(graph, 90.0), beta_s=0.0)
    return reduce(graph, on(_DEVICES), thresholds, stop=lambda: True)


def _reduced(iterate: bool, grouped: bool) -> _Scheme:
    def scheme(graph: OpGraph) -> tuple[OpGraph, np.ndarray, np.ndarray]:
        made = _iterated(graph) if iterate else _one_pass(graph)
        return made.graph, made.of_op, made.group if grouped else units_of(made.graph)

    return scheme


def _placeto(graph: OpGraph) -> tuple[OpGraph, np.ndarray, np.ndarray]:
    wanted = reduce(graph, on(_DEVICES), by_distribution(graph)).graph.num_ops
    return _with_units(*cheapest_into_neighbour(graph, wanted))


def _with_units(graph: OpGraph, of_op: np.ndarray) -> tuple[OpGraph, np.ndarray, np.ndarray]:
    return graph, of_op, units_of(graph)


_SCHEMES: dict[str, _Scheme] = {
    "none": lambda graph: (graph, np.arange(graph.num_ops), units_of(graph)),
    "one pass, p90": _reduced(iterate=False, grouped=False),
    "iterated, distribution": _reduced(iterate=True, grouped=False),
    "iterated, distribution, groups": _reduced(iterate=True, grouped=True),
    "ColocRL": lambda graph: _with_units(*into_only_successor(graph)),
    "PlaceTo": _placeto,
    "SpotLight": lambda graph: _with_units(*by_name(graph)),
}


def schemes_measured(cases: Sequence[Case]) -> list[Row]:
    """Return a row for each reference graph and scheme: what is left, and the step that is found with it."""
    rows: list[Row] = []
    for case in (case for case in cases if case.reference):
        given = GraphTimes(case.graph, on(_DEVICES))
        for name, scheme in _SCHEMES.items():
            if name == "SpotLight" and case.named is None:
                continue  # its operators have no names
            begun = time.perf_counter()
            graph, of_op, unit = scheme(case.named if name == "SpotLight" and case.named else case.graph)
            seconds = time.perf_counter() - begun
            rows.append(
                {
                    "graph": case.name,
                    "scheme": name,
                    "operators": graph.num_ops,
                    "units": int(unit.max()) + 1,
                    "seconds": seconds,
                    "heft_s": on_given(given, of_op, started(graph, given.devices, unit)).makespan_s,
                    "annealed_s": annealed_s(given, graph, of_op, unit, _SEARCH_S),
                }
            )
            print(rows[-1], flush=True)
    return rows


def schemes_text(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    none = {row["graph"]: row for row in rows if row["scheme"] == "none"}
    cells = []
    for row in rows:
        heft_s = none[row["graph"]]["heft_s"]
        best_s = min(other["annealed_s"] for other in rows if other["graph"] == row["graph"])
        cells.append(
            (
                row["graph"],
                row["scheme"],
                f"{row['operators']:,}",
                f"{row['units']:,}",
                f"{row['seconds']:.2f}",
                us(row["heft_s"]),
                percent(row["heft_s"] / heft_s - 1),
                us(row["annealed_s"]),
                percent(row["annealed_s"] / best_s - 1),
            )
        )
    head = ("graph", "scheme", "operators", "units", "s", "HEFT, us", "to none, %", "annealing, us", "to the best, %")
    return table(head, cells, 7)
