"""The pictures of a report, those that its set has something for."""

from collections.abc import Sequence

from dsx.reporting.answer import Named
from dsx.reporting.figure import Picture
from dsx.reporting.front_figure import front_figure
from dsx.reporting.heat_figure import heat_figure
from dsx.reporting.ranked_rows import RankedRows
from dsx.reporting.scaling_figure import scaling_figure
from dsx.reporting.stack_figure import stack_figures


def pictures(rows: RankedRows, named: Sequence[Named]) -> list[Picture]:
    """Return front, breakdowns, scaling and heat map, in this order; none where no row is feasible."""
    if rows.feasible.empty:
        return []
    varied = [scaling_figure(rows, named[0]), heat_figure(rows, named[0])]
    return [front_figure(rows, named), *stack_figures(rows, named), *(one for one in varied if one is not None)]
