"""The stages of one plan: a bar for the time of each, above the GPUs of a replica and the links between the stages.

Stages in one box share a fast domain; overlapping boxes are the domains of a stage that has several. A line below the
boxes joins the stages that share a unit of an outer tier, one row for each tier. The link between two stages is named
between them if there is room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from dsx.config.topology import INNERMOST
from dsx.errors import InputError
from dsx.pictures.breakdown import STACKS, PartStyle
from dsx.pictures.figure import BESIDE, Axes, FigureLayout, Style
from dsx.pictures.shown_rows import name_text
from dsx.plans.plan import Plan

if TYPE_CHECKING:
    from dsx.pricing.one_plan import PlanStage


MAX_STAGES = 64
_BAR_HEIGHT = 2.4  # of the bars, in inches
_BAR = 0.75
_TIME = STACKS["time"].parts
# Lowest first. Communication inside a stage is hatched.
_PARTS = {
    "compute_s": PartStyle("compute and memory access", _TIME["compute_s"].colour),
    "comm_s": PartStyle("communication", _TIME["tp_comm_s"].colour, _TIME["tp_comm_s"].hatch),
    "recompute_s": _TIME["recompute_s"],
}
_ON_ANYTHING: Style = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.0}}
_TITLE = 10.0  # points
_LEGEND = 140.0  # points: the least width of the legend
_NUMBER, _LINK = 8.0, 7.0  # points, of fonts
_LETTER = 0.62  # the width of a letter, in heights of the font
_BOX, _LINK_ROW = 0.62, 0.17  # inches: the height of a box, and of a row below
_BEHIND = (0.05, 0.045)  # from a box to the one behind it: stages to the right, inches up
_MOST_BEHIND = 2
_LEAST_GAP = 5.0  # points between lines
_EDGE = 0.47  # from the middle of a stage, which is 1 wide, to each side of its box


@dataclass(frozen=True, slots=True)
class Unit:
    """The placement of the stages of a replica on the units of a tier."""

    tier: str
    stages: int  # that share a unit, or the same units if a stage has several
    per_stage: int  # units of one stage


@dataclass(frozen=True, slots=True)
class StagePlacement:
    """The placement of the stages of a replica on the network."""

    gpus: int  # of a stage in each of its fast domains
    domain: Unit
    outer: tuple[Unit, ...]  # of the tiers between the fast domain and the outermost one, innermost first


def placement_of(plan: Plan, tiers: Sequence[str]) -> StagePlacement:
    """Return the placement of the stages of a plan; `tiers` are the names of all tiers, the fast domain first."""

    def ranks(suffix: str) -> int:
        return plan[f"tp{suffix}"] * plan[f"tp2{suffix}"] * plan[f"cp{suffix}"]

    units = [Unit(tier, plan[f"pp_{tier}"], ranks("") // ranks(f"_{tier}")) for tier in tiers[:-1]]
    return StagePlacement(ranks(f"_{tiers[0]}"), units[0], tuple(units[1:]))


def stages(plan_stages: "Sequence[PlanStage]", placement: StagePlacement, title: str) -> Axes:
    """Draw the stages of a plan; return the upper axis, or raise InputError for more than `MAX_STAGES`."""
    count = len(plan_stages)
    if count > MAX_STAGES:
        raise InputError(f"{count} stages are too many for a picture, which holds {MAX_STAGES}; --json has all")
    width = float(np.clip(0.62 * count, 3.4, 11.0))
    # The links from the previous stage: the tier, or NVLink for the fast domain.
    links = ["NVLink" if stage.link == INNERMOST else stage.link or "" for stage in plan_stages]
    longest = max(map(len, links))
    room = 72 * width / count
    linked = 0 < longest * _LETTER * _LINK <= room
    low = _LINK_ROW * (linked + len(placement.outer))
    layout = FigureLayout.new(width, _BAR_HEIGHT, _BOX + low)
    above, below = layout.axes
    _draw_bars(above, plan_stages)
    # The layout makes no room for a title that is too wide; on the right it may be above the legend.
    letters = int((72 * width + _LEGEND) / (_LETTER * _TITLE))
    lines = [line for part in name_text(title).split("\n") for line in wrap(part, letters)]
    above.set_title("\n".join(lines), loc="left", fontsize=_TITLE)
    _draw_domains(below, count, placement, room)
    if linked:
        for place, link in enumerate(links):
            if link:
                below.text(place - 0.5, -_LINK_ROW / 2, link, ha="center", va="center", size=_LINK)
        _say(below, -_LINK_ROW / 2, "the link between stages")
    # A row of lines for each tier between the fast domain and the outermost one.
    end = 0.5 - max(0.5 - _EDGE, _LEAST_GAP / 2 / room)
    for row, unit in enumerate(placement.outer):
        height = -_LINK_ROW * (linked + row + 0.5)
        for first in range(0, count, unit.stages):
            ends = (first - end, min(first + unit.stages, count) - 1 + end)
            line: Style = {"color": "#555555", "linewidth": 1.2, "solid_capstyle": "butt"}
            below.plot(ends, (height, height), marker="|", markersize=5.0, **line)
        several = f", {unit.per_stage} of a stage" if unit.per_stage > 1 else ""
        _say(below, height, f"a line: a unit of {unit.tier}{several}")
    below.set(ylim=(-low, _BOX), yticks=[])
    layout.settle()
    return above


def _draw_bars(ax: Axes, plan_stages: "Sequence[PlanStage]") -> None:
    places = np.arange(len(plan_stages))
    top = np.zeros(len(plan_stages))
    for name, part in _PARTS.items():
        heights = 1e3 * np.array([getattr(stage, name) for stage in plan_stages])
        if heights.any():
            ax.bar(places, heights, _BAR, bottom=top, **part.bar)
            top = top + heights
    slowest = float(top.max())
    for place, stage in enumerate(plan_stages):
        # At the foot of the bar, on white, so that it can be read on any bar.
        ax.text(place, 0.03 * slowest, f"{stage.num_layers}", ha="center", size=8, **_ON_ANYTHING)
    ax.axhline(slowest, color="black", linestyle="--", linewidth=0.8, label="bottleneck")
    ax.set(xlim=(-0.6, len(plan_stages) - 0.4), ylim=(0.0, 1.08 * slowest))
    ax.set_ylabel("time of a microbatch [ms]")
    ax.tick_params(axis="x", length=0, labelbottom=False)
    ax.plot([], [], " ", label="number: layers of the stage")
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], **BESIDE)


def _draw_domains(ax: Axes, count: int, placement: StagePlacement, room: float) -> None:
    """Draw the boxes, in inches, and number the stages; each stage has `room` points."""
    from matplotlib.patches import Rectangle

    domain = placement.domain
    behind = min(domain.per_stage - 1, _MOST_BEHIND)
    style: Style = {"facecolor": "#eeeeee", "edgecolor": "#555555", "linewidth": 0.8}
    height = _BOX - 0.06 - _BEHIND[1] * behind
    for first in range(0, count, domain.stages):
        width = min(domain.stages, count - first) - 2 * (0.5 - _EDGE) - _BEHIND[0] * behind
        for back in range(behind, -1, -1):
            at = (first - _EDGE + _BEHIND[0] * back, 0.03 + _BEHIND[1] * back)
            ax.add_patch(Rectangle(at, width, height, **style))
    text = f"{domain.per_stage} x {placement.gpus}" if behind else f"{placement.gpus}"
    turned = 90 if len(text) * _LETTER * _NUMBER > 0.8 * room else 0
    for place in range(count):
        middle = place - _BEHIND[0] * behind / 2, 0.03 + height / 2
        ax.text(*middle, text, ha="center", va="center", size=_NUMBER, rotation=turned)
    _say(ax, 0.7 * _BOX, f"{'domains x GPUs' if behind else 'GPUs'} of a stage, one replica")
    _say(ax, 0.3 * _BOX, "overlapping boxes: NVLink domains of a stage" if behind else "a box: an NVLink domain")
    places = range(0, count, max(1, count // 16))
    ax.set_xticks(places, labels=[str(place + 1) for place in places])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("stage")
    ax.spines[:].set_visible(False)


def _say(ax: Axes, height: float, text: str) -> None:
    """Write a text to the right of the axis, at a height in inches."""
    ax.text(1.0, height, f"  {text}", transform=ax.get_yaxis_transform(), va="center", size=_NUMBER)
