"""Layout: axes of a size that suits the data, and labels that do not overlap.

matplotlib shrinks axes until all labels and legends fit on the figure. Here a new figure grows instead, so that long
names do not take room from the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsx.argument_types import wrong
from dsx.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_GAP = 3.0  # points between labels


def figure_of(ax: "Axes") -> "Figure":
    """Return the figure of an axis; InputError if the axis was removed from its figure, or is none."""
    from matplotlib.axes import Axes as AnyAxes

    if not isinstance(ax, AnyAxes):
        raise wrong("ax", ax, "an axis of matplotlib is wanted, as the functions of dsx.plot return it")
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("this axis is not on a figure, so nothing can be drawn or saved")
    return figure


def text_sizes(texts: Sequence["Text"]) -> list[tuple[float, float]]:
    """Return the width and height of each text in points, with its rotation."""
    from matplotlib.backends.backend_agg import RendererAgg

    # Without this a text makes a renderer as large as its figure.
    renderer = RendererAgg(1, 1, 72)
    boxes = [text.get_window_extent(renderer, dpi=72) for text in texts]
    return [(box.width, box.height) for box in boxes]


@dataclass(frozen=True)
class Layout:
    """Axes of a figure, one below the other, and their sizes; `size` is None if their sizes must not change."""

    axes: "list[Axes]"
    size: tuple[float, tuple[float, ...]] | None  # their width, and the height of each, in inches

    @classmethod
    def of(cls, ax: "Axes | None", width: float, height: float) -> "Layout":
        """Return the layout of a given axis, which keeps its size, or of a new axis of this size in inches.

        Raises InputError if the axis was removed from its figure.
        """
        if ax is None:
            return cls.new(width, height)
        figure_of(ax)
        return cls([ax], None)

    @classmethod
    def new(cls, width: float, *heights: float) -> "Layout":
        """Return axes on a new figure, with a common x axis; `settle` gives them these sizes, in inches."""
        from matplotlib.figure import Figure

        # Plenty of room for labels and legends at first: matplotlib does not lay out a figure that is too small.
        figure = Figure(figsize=(width + 20.0, sum(heights) + 20.0), layout="constrained")
        axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
        return cls(list(axes[:, 0]), (width, heights))

    def room(self, ax: "Axes") -> tuple[float, float]:
        """Return the final width and height of an axis, in points."""
        if self.size is not None:
            return 72 * self.size[0], 72 * self.size[1][self.axes.index(ax)]
        figure = figure_of(ax)
        figure.draw_without_rendering()
        box = ax.get_window_extent()
        return 72 * box.width / figure.dpi, 72 * box.height / figure.dpi

    def settle(self) -> None:
        """Give a new figure the size that its axes need, with all their labels and legends."""
        if self.size is None:
            return
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        figure = figure_of(self.axes[0])
        engine = ConstrainedLayoutEngine()
        # Twice, because the new size of the axes may change their ticks.
        for _ in range(2):
            engine.execute(figure)
            boxes = [ax.get_window_extent() for ax in self.axes]
            width = figure.get_figwidth() - boxes[0].width / figure.dpi + self.size[0]
            height = figure.get_figheight() - sum(box.height for box in boxes) / figure.dpi + sum(self.size[1])
            figure.set_size_inches(width, height)

    def without_overlap(self, axis: "Axis", places: Sequence[float], labels: Sequence["Text"]) -> set[int]:
        """Return which of the labels at `places` can stay without touching an earlier one that stays."""
        ax = next(ax for ax in self.axes if axis in (ax.xaxis, ax.yaxis))
        along = 0 if axis is ax.xaxis else 1
        # The position on the axis, from 0 to 1, does not depend on the size of the axis.
        points = ax.transData.transform([(place, place)[:: 1 - 2 * along] for place in places])
        shares = ax.transAxes.inverted().transform(points)[:, along] if len(points) else np.array([])
        stay: set[int] = set()
        end = -np.inf
        for i, (middle, size) in enumerate(zip(shares * self.room(ax)[along], text_sizes(labels), strict=True)):
            if middle - size[along] / 2 >= end:
                stay.add(i)
                end = middle + size[along] / 2 + _GAP
        return stay

    def fit_ticks(self, axis: "Axis", places: Sequence[float], texts: Sequence[str], turn: bool = True) -> bool:
        """Set `texts` as the tick labels at `places`, ascending; return whether they were rotated.

        If labels would overlap they are rotated, if `turn` allows it, and labels that still overlap are left out.
        """
        axis.set_ticks(list(places), labels=list(texts))
        fitting = self.without_overlap(axis, places, axis.get_ticklabels())
        turned = turn and len(fitting) < len(texts)
        if turned:
            axis.set_tick_params(labelrotation=90)
            fitting = self.without_overlap(axis, places, axis.get_ticklabels())
        axis.set_ticklabels([text if i in fitting else "" for i, text in enumerate(texts)])
        return turned
