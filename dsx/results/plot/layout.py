"""Layout: axes whose size is that of the data, and labels that do not overlap.

matplotlib shrinks axes until all labels and legends are on the figure. Here a new figure grows instead, so that
long names cost paper and not data. Whether labels overlap is measured on the figure as it is laid out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsx.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_GAP = 2.0  # points between labels


@dataclass(frozen=True)
class Layout:
    """Axes of a figure, one below the other."""

    axes: "list[Axes]"
    size: (
        tuple[float, float] | None
    )  # their width and the sum of their heights, in inches; None leaves them as they are

    @classmethod
    def of(cls, ax: "Axes | None", width: float, height: float) -> "Layout":
        """Return the layout of a given axis, which stays as it is, or of a new one of that size in inches."""
        return cls.new(width, height) if ax is None else cls([ax], None)

    @classmethod
    def new(cls, width: float, *heights: float) -> "Layout":
        """Return axes of those sizes in inches on a new figure, with a common x axis."""
        from matplotlib.figure import Figure

        # Room for labels and legends: at first plenty, because a layout that does not fit is none.
        figure = Figure(figsize=(width + 12.0, sum(heights) + 12.0), layout="constrained")
        axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
        return cls(list(axes[:, 0]), (width, sum(heights)))

    @property
    def figure(self) -> "Figure":
        """The figure; InputError if the axis was removed from it."""
        figure = self.axes[0].get_figure(root=True)
        if figure is None:
            raise InputError("this axis is not on a figure, so nothing can be drawn or saved")
        return figure

    def settle(self) -> None:
        """Bring everything to its place, and the axes to their size."""
        self.figure.draw_without_rendering()
        if self.size is not None:
            boxes = [ax.get_window_extent() for ax in self.axes]
            wider = self.size[0] - boxes[0].width / self.figure.dpi
            higher = self.size[1] - sum(box.height for box in boxes) / self.figure.dpi
            self.figure.set_size_inches(self.figure.get_figwidth() + wider, self.figure.get_figheight() + higher)
            self.figure.draw_without_rendering()

    def apart(self, labels: Sequence["Text"]) -> set[int]:
        """Return which labels can stay so that none is too near to the one before, first come first served."""
        self.settle()
        stay: set[int] = set()
        last = None
        for i, label in enumerate(labels):
            box = label.get_window_extent().padded(_GAP / 2 * self.figure.dpi / 72)
            if last is None or not box.overlaps(last):
                stay.add(i)
                last = box
        return stay

    def fit_ticks(self, axis: "Axis", places: Sequence[float], texts: Sequence[str], turn: bool = True) -> bool:
        """Put `texts` at `places` of an axis, and return whether they had to be turned.

        Where they would overlap they are turned, if `turn` allows it, and then left out where there is no room.
        """
        axis.set_ticks(list(places), labels=list(texts))
        fitting = self.apart(axis.get_ticklabels())
        turned = turn and len(fitting) < len(texts)
        if turned:
            axis.set_tick_params(labelrotation=90)
            fitting = self.apart(axis.get_ticklabels())
        axis.set_ticklabels([text if i in fitting else "" for i, text in enumerate(texts)])
        self.settle()
        return turned
