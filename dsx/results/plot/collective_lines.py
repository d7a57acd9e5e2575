"""The collectives of a cluster: time over tensor size, one line for each group size, one axis for each kind."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dsx.results.plot.axes import name_text
from dsx.results.plot.layout import Layout
from dsx.results.plot.marks import dashes, marks
from dsx.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 4.8, 3.0  # of an axis, in inches


def collectives(
    title: str, times: Mapping[str, Sequence[Sequence[float]]], groups: Sequence[int], volumes: Sequence[float]
) -> "Axes":
    """Draw the times of collectives; return the upper axis.

    Args:
        title: the name of the cluster.
        times: by kind of collective, [V][G] seconds.
        groups: [G] GPUs of each group.
        volumes: [V] bytes of the tensor on each GPU.
    """
    layout = Layout.new(_WIDTH, *([_HEIGHT] * len(times)))
    for ax, (kind, table) in zip(layout.axes, times.items(), strict=True):
        _draw(ax, kind, table, groups, volumes)
    first, last = layout.axes[0], layout.axes[-1]
    first.set_title(name_text(title), fontsize="medium")
    first.legend(
        title="GPUs",
        title_fontsize="small",
        fontsize="small",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
    )
    last.set_xlabel("size of the tensor on each GPU")
    layout.fit_ticks(last.xaxis, list(volumes), [_short(volume, "bytes") for volume in volumes])
    layout.settle()
    return first


def _draw(
    ax: "Axes", kind: str, table: Sequence[Sequence[float]], groups: Sequence[int], volumes: Sequence[float]
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    lines = zip(zip(*table, strict=True), groups, marks(len(groups), 6.0), dashes(len(groups)), strict=True)
    for line, group, mark, dash in lines:
        ax.plot(volumes, line, linestyle=dash, linewidth=1.3, label=str(group), **mark)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(LogLocator(subs=(1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: _short(seconds, "s")))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_ylabel(f"time of an {kind}")
    ax.grid(color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)


def _short(value: float, unit: str) -> str:
    number, _, name = format_quantity(value, unit).partition(" ")
    return f"{float(number):g} {'µs' if name == 'us' else name}"
