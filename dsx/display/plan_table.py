"""Tables of plans: step time, memory, shares of the step, and the plans within the resolution of the first."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dsx.display.layout import wrapped
from dsx.display.quantities import cut_text, hardware_text, hardware_title, quantity, share, shares
from dsx.display.table import table
from dsx.results.objectives import Priced
from dsx.results.roles import TIED
from dsx.space.choices import PLAN_COLUMNS
from dsx.space.plan_settings import setting_of
from dsx.units import format_quantity



def within_resolution(plans: Sequence[Priced], resolution: float | None) -> list[int]:
    """Return the numbers of the plans whose step time is within the resolution of the first one's, counted from 1.

    The plans are of one job, the fastest first. `resolution` is the relative difference of step time below which the
    measurements cannot rank plans; None if the assumption set states none, and the list is then empty.
    """
    if resolution is None or not plans:
        return []
    most = plans[0]["step_time_s"] * (1 + resolution)
    return [number for number, plan in enumerate(plans[1:], 2) if plan["step_time_s"] <= most]


def resolution_text(plans: Sequence[Priced], resolution: float | None) -> str:
    """Return a sentence on the plans within the resolution of plan 1; empty if there are none."""
    close = within_resolution(plans, resolution)
    if resolution is None or not close:
        return ""
    which = "plan 2 is" if len(close) == 1 else f"plans 2 to {close[-1]} are"
    more = "; plans that are not shown may be within it too (--top)" if close[-1] == len(plans) else ""
    return f"{which} within {100 * resolution:.2g} % of plan 1, the resolution of the measurements{more}"


def tied_text(plans: Sequence[Priced]) -> str:
    """Return which plans of a list, the fastest first, tie with plan 1; empty if there are none."""
    close = within_resolution(plans, TIED)
    which = f"plans 1 {'and' if close == [2] else 'to'} {close[-1]}" if close else ""
    return f"{which} tie: differences of up to {share(TIED, 1, 1)} count as equal" if close else ""


def tie_text(plans: Sequence[Priced], fastest: str) -> str:
    """Return that the first of some plans ties with a faster one, which `fastest` names; empty if none is faster."""
    first, least = plans[0]["step_time_s"], min(plan["step_time_s"] for plan in plans)
    if first <= least:
        return ""
    more = 100 * (first / least - 1)
    by = f"{more:.2g}" if more >= 0.01 else "less than 0.01"
    return (
        f"The fastest is one of a tie: it takes {by} % more than {fastest}, below "
        f"the {share(TIED, 1, 1)} that count as equal, and its features cost least of these."
    )


# The shares of a step in a table of plans, each with the cost columns that it sums; together they are the whole step.
SHARES = {
    "compute": ("compute_s", "memory_s"),
    "recompute": ("recompute_s",),
    "communication": ("tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s"),
    "bubble": ("bubble_s",),
    "optimizer": ("optimizer_s",),
}
OPTIONAL = ("recompute", "optimizer")  # shown where a plan has such a share


_SETTINGS = {"num_gpus": "GPUs", "global_batch_size": "batch", "strategy": "strategy"}


def plans_text(
    plans: Sequence[Priced],
    with_settings: bool = False,
    hardware: Collection[str] = (),
    with_strategy: bool = False,
    fits: Sequence[float] = (),
    width: int | None = None,
) -> str:
    """Return plans as a table: step time, MFU, memory and the shares of the step.

    `with_settings` adds the GPUs, the batch and the strategy, `with_strategy` the strategy. The strategy and hardware
    columns are shown if they vary from plan to plan, and those in `hardware` always. `fits` has the probability that
    each plan fits in memory, if it is known. The shares of a step add up to
    100 %; recompute and optimizer have a column if a plan has such a share. With a `width`, plans whose
    rows are alike are one, and a table that is wider has the choices of each plan in lines of their own.
    """
    several = with_strategy or len({plan["plan"]["strategy"] for plan in plans}) > 1
    settings = _SETTINGS if with_settings else {name: _SETTINGS[name] for name in ("strategy",) if several}
    shown = [*(name for name in plans[0].get("hardware", ()) if name in hardware or _varies(plans, name))]
    titles = [*map(hardware_title, shown), *settings.values()]
    parts = [
        shares([sum(plan[name] for name in names) for names in SHARES.values()], plan["step_time_s"]) for plan in plans
    ]
    named = [
        (at, title)
        for at, title in enumerate(SHARES)
        if title not in OPTIONAL or any(part[at] not in ("0 %", "-") for part in parts)
    ]
    memory = ["memory", "fits"] if fits else ["memory"]
    header = ["", *titles, "step", "MFU", *memory, *(title for _, title in named)]
    rows = []
    for number, (plan, part) in enumerate(zip(plans, parts, strict=True), 1):
        rows.append(
            [
                f"{number}",
                *(hardware_text(name, plan["hardware"][name]) for name in shown),
                *(str(plan["plan"][name]) for name in settings),
                format_quantity(plan["step_time_s"], "s"),
                quantity("mfu", plan["mfu"]),
                format_quantity(plan["peak_bytes"], "bytes"),
                *([share(fits[number - 1], 1)] if fits else []),
                *(part[at] for at, _ in named),
            ]
        )
    # With a width, plans whose rows are alike have the row of the first one, and lines below the table name the others.
    first: dict[tuple[str, ...], int] = {}
    alike = {at: first.setdefault(tuple(row[1:]), at) if width else at for at, row in enumerate(rows)}
    kept = [at for at, same in alike.items() if at == same]
    others = [_alike_text(plans, at, same) for at, same in alike.items() if at != same]
    return "\n".join([with_choices([plans[at] for at in kept], header, [rows[at] for at in kept], width), *others])


def with_choices(
    plans: Sequence[Priced], header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> str:
    """Return a table with all choices of each plan in its row, or in lines below it if the table is too wide."""
    cut = any("stage_layers" in plan["plan"] for plan in plans)
    texts = [[*([cut_text(plan["plan"].get("stage_layers"))] if cut else []), plan["plan"].text] for plan in plans]
    titles = [*header, *(["layers of stages"] if cut else []), "plan"]
    text = [titles.index(name) for name in ("cluster", "strategy", "layers of stages", "plan") if name in titles]
    found = table(titles, [[*row, *below] for row, below in zip(rows, texts, strict=True)], text=text)
    if width is None or max(map(len, found.splitlines())) <= width:
        return found
    head, lines = _lines(header, rows, text)
    below = [_below(plan["plan"], cut) for plan in plans]
    return "\n".join([*head, *(line for pair in zip(lines, below, strict=True) for line in pair)])


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]], text: Collection[int]) -> tuple[list[str], list[str]]:
    """Return the lines of the header, and of the rows, of a table."""
    lines = table(header, rows, text=text).splitlines()
    return lines[: -len(rows)], lines[-len(rows) :]


def _below(plan: Any, with_cut: bool) -> str:
    layers = f"; layers of stages: {cut_text(plan.get('stage_layers'))}" if with_cut and plan["pp"] > 1 else ""
    return wrapped(f"{plan.text}{layers}", "   ", "  ")


def _alike_text(plans: Sequence[Priced], at: int, same: int) -> str:
    """Return a line on a plan that costs what an earlier one does."""
    one, other = plans[at]["plan"], plans[same]["plan"]
    differs = " ".join(f"{setting_of(name)}={one[name]}" for name in PLAN_COLUMNS if one[name] != other[name])
    return wrapped(f"plan {at + 1} costs the same as plan {same + 1}{f', with {differs}' if differs else ''}", "", "  ")


def _varies(plans: Sequence[Priced], name: str) -> bool:
    return any(plan["hardware"][name] != plans[0]["hardware"][name] for plan in plans)
