"""The stages of one plan: a bar for the time of each, over the GPUs of a replica and the links between the stages.

Stages that stand in one box share a fast domain. What joins two stages is written between them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.errors import InputError
from dsx.results.plot.layout import Layout
from dsx.results.plot.stacks import STACKS, Part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dsx.search.plan_stages import PlanStage

MAX_STAGES = 64
_HEIGHTS = (2.4, 0.62)  # of the axes, in inches
_BAR = 0.75
_TIME = STACKS["time"].parts
# Lowest first. Communication inside a stage is hatched.
_PARTS = {
    "compute_s": Part("compute and memory access", _TIME["compute_s"].colour),
    "comm_s": Part("communication", _TIME["tp_comm_s"].colour, _TIME["tp_comm_s"].hatch),
    "recompute_s": _TIME["recompute_s"],
}
_ON_ANYTHING: dict[str, Any] = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.0}}
_FEW = 24  # stages of which each link is named


def stages(found: "Sequence[PlanStage]", gpus: int, domain: int, title: str) -> "Axes":
    """Draw the stages of a plan; return the upper axis.

    Args:
        found: the stages.
        gpus: of a stage, in one replica.
        domain: stages that share a fast domain.
        title: what stands above.

    Raises InputError for more than `MAX_STAGES` stages.
    """
    if len(found) > MAX_STAGES:
        raise InputError(f"{len(found)} stages are too many for one picture, which holds {MAX_STAGES}; --json has all")
    layout = Layout.new(float(np.clip(0.62 * len(found), 3.4, 11.0)), *_HEIGHTS)
    above, below = layout.axes
    _draw_bars(above, found)
    above.set_title(title, fontsize="medium")
    _draw_topology(below, found, gpus, domain)
    layout.settle()
    return above


def _draw_bars(ax: "Axes", found: "Sequence[PlanStage]") -> None:
    places = np.arange(len(found))
    top = np.zeros(len(found))
    for name, part in _PARTS.items():
        heights = 1e3 * np.array([getattr(stage, name) for stage in found])
        if heights.any():
            style: dict[str, Any] = {"facecolor": part.colour, "edgecolor": part.hatch, "linewidth": 0.0}
            ax.bar(places, heights, _BAR, bottom=top, label=part.label, hatch="\\\\\\" if part.hatch else None, **style)
            top = top + heights
    slowest = float(top.max())
    for place, stage in enumerate(found):
        # At the foot, where no bar is too low for it to be read on white.
        ax.text(place, 0.03 * slowest, f"{stage.num_layers}", ha="center", size=8, **_ON_ANYTHING)
    ax.axhline(slowest, color="black", linestyle="--", linewidth=0.8, label="bottleneck")
    ax.set(xlim=(-0.6, len(found) - 0.4), ylim=(0.0, 1.08 * slowest))
    ax.set_ylabel("time of a microbatch [ms]")
    ax.tick_params(axis="x", length=0, labelbottom=False)
    ax.plot([], [], " ", label="number: layers of the stage")
    handles, labels = ax.get_legend_handles_labels()
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "frameon": False}
    ax.legend(handles[::-1], labels[::-1], fontsize="small", **beside)


def _draw_topology(ax: "Axes", found: "Sequence[PlanStage]", gpus: int, domain: int) -> None:
    from matplotlib.patches import Rectangle

    for first in range(0, len(found), domain):
        count = min(domain, len(found) - first)
        style: dict[str, Any] = {"facecolor": "#eeeeee", "edgecolor": "#555555", "linewidth": 0.8}
        ax.add_patch(Rectangle((first - 0.47, 0.05), count - 0.06, 0.9, **style))
    few = len(found) <= _FEW
    for place, stage in enumerate(found):
        ax.text(place, 0.5, f"{gpus}", ha="center", va="center", size=8)
        if stage.link and few:
            ax.text(place - 0.5, -0.12, stage.link, ha="center", va="top", size=7)
    ax.text(1.0, 0.7, "  GPUs of a stage, one replica", transform=ax.transAxes, va="center", size=8)
    ax.text(1.0, 0.3, "  a box: a fast domain", transform=ax.transAxes, va="center", size=8)
    if few and len(found) > 1:
        ax.text(1.0, -0.14, "  the link between stages", transform=ax.transAxes, va="top", size=8)
    step = max(1, len(found) // 16)
    ax.set(ylim=(0.0, 1.0), yticks=[])
    ax.set_xticks(range(0, len(found), step), labels=[str(place + 1) for place in range(0, len(found), step)])
    ax.tick_params(axis="x", length=0, pad=12 if few else 4)
    ax.set_xlabel("stage")
    for side in ("top", "right", "left", "bottom"):
        ax.spines[side].set_visible(False)
