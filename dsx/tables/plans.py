"""Plans as text: side by side in tables, their placement, how surely they fit, and what they extrapolate.

A plan that is the fastest, the simplest and the leanest has one column. On two tiers the shares of a fast domain are
the whole placement, so none is printed.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec, TrainedOnSpec, measured_runs
from dsx.config.cluster_file import Cluster, DeviceSpec, peak_flops
from dsx.cost.context import StepCosts
from dsx.cost.interval import Likeness, StepInterval, probability_of_fitting, unlike
from dsx.plans.choices import PLAN_COLUMNS
from dsx.plans.features import features_of
from dsx.plans.placement import PartlyFilled, axes_in, partly_filled, straddling
from dsx.plans.plan import Plan, setting_of
from dsx.plans.rules import DEGREES
from dsx.pricing.problem import Problem
from dsx.results.ranked_by import TIED, Priced
from dsx.results.set_columns import COLUMNS, CUT
from dsx.tables.format import WIDTH, cut_text, hardware_text, hardware_title, quantity, share, shares, table, wrapped
from dsx.text import DataFrame, DataView, printable
from dsx.units import counted, format_quantity

_OF_KIND = {"dense": "a dense model", "experts": "experts"}
_WORDS = {"stack": "the stack {}", "generation": "a device of the family {}", "kind": "{}"}


def extrapolated_text(likeness: Likeness, trained_on: TrainedOnSpec) -> str:
    """Return a sentence on what no measured run has; empty if every part has some, or if there are no measurements."""
    lacking = unlike(likeness, trained_on).items()
    parts = [_WORDS[part].format(_OF_KIND.get(value, printable(value))) for part, value in lacking]
    return f"extrapolated: no measured run has {' or '.join(parts)}" if parts else ""


def less_sure_text(likeness: Likeness, assumptions: str) -> str:
    """Return how far off predictions of a kind of model are, where another kind is predicted more surely."""
    errors = measured_runs().errors.get(assumptions, {})
    of_kind, least = errors.get(likeness.kind), min(errors.values(), key=lambda error: error.median_error, default=None)
    if of_kind is None or least is None or of_kind is least:
        return ""
    rows = f"{counted(of_kind.rows, 'row')} of {counted(of_kind.sources, 'source')}, {of_kind.date}"
    return (
        f"Predicted less surely: {_OF_KIND[likeness.kind]} of sources that no number was fitted to are off by "
        f"{share(of_kind.median_error, 1)} in the median ({rows}), other models by {share(least.median_error, 1)}"
    )


_TIGHT = 0.95  # share of the memory from which on the answer says so
_SURE = 0.9


def fitting(plans: Sequence[DataView], hbm_capacity: float, assumptions: AssumptionsSpec) -> list[float]:
    """Return the probability that each plan fits; empty if the assumption set does not know its errors."""
    interval = assumptions.memory_interval
    return [probability_of_fitting(interval, plan["peak_bytes"], hbm_capacity) for plan in plans] if interval else []


def margin_text(peak_bytes: float, problem: Problem) -> str:
    """Return a sentence on a plan that fits, but that a search leaves out for its memory margin; else nothing."""
    assumptions, capacity = problem.assumptions_spec, problem.cluster.device.hbm_capacity
    margin = assumptions.memory_margin
    if peak_bytes * (1 + margin) <= capacity:
        return ""
    needed, _ = _needed_text({"peak_bytes": peak_bytes}, capacity, assumptions)
    return f"It needs {needed}: a search leaves it out, with its memory margin of {margin:g}."


def _needed_text(plan: DataView, hbm_capacity: float, assumptions: AssumptionsSpec) -> tuple[str, bool]:
    """Return how much of a GPU's memory a plan needs and how likely it fits, and whether it may well not."""
    probabilities = fitting([plan], hbm_capacity, assumptions)
    chance = f" and fits with a probability of {share(probabilities[0], 1)}" if probabilities else ""
    text = f"{share(plan['peak_bytes'] / hbm_capacity, 1, 1)} of the memory of a GPU{chance}"
    return text, any(probability < _SURE for probability in probabilities)


def tight_text(plan: DataView, name: str, hbm_capacity: float, assumptions: AssumptionsSpec) -> str:
    """Return a sentence if a plan needs nearly all memory or may well not fit; else nothing."""
    needed, is_unsure = _needed_text(plan, hbm_capacity, assumptions)
    if plan["peak_bytes"] / hbm_capacity <= _TIGHT and not is_unsure:
        return ""
    return f"{name} needs {needed} (--memory-margin leaves more room)"


def nodes_in_part(plan: Plan, problem: Problem) -> PartlyFilled | None:
    """Return the nodes, or the domains, that a plan fills in part; None if it needs the fewest.

    None too where plans that fill them all are not searched.
    """
    return _nodes_in_part(plan, problem.cluster) if problem.assumptions_spec.uneven_domains else None


def _nodes_in_part(plan: Plan, cluster: Cluster) -> PartlyFilled | None:
    axes = axes_in(plan["order"])
    degrees, shares = ({axis: int(plan[f"{axis}{part}"]) for axis in axes} for part in ("", "_nvs"))
    return partly_filled(degrees, shares, cluster.network.nvs.size, cluster.node_size)


def taken_text(plan: Plan, cluster: Cluster, assumptions: AssumptionsSpec) -> str:
    """Return what a plan takes of nodes or fast domains, and leaves free; empty if it needs no more than it fills."""
    part = _nodes_in_part(plan, cluster) if assumptions.uneven_domains else None
    if part is None:
        return ""
    last = f", {part.last} of the last" if part.last != part.used else ""
    of = f"{counted(part.needed, 'whole node')} of {part.of}"
    if part.of == cluster.network.nvs.size > cluster.node_size:
        of = f"{part.needed:,} domains"
    return (
        f"takes {part.used} GPUs of each fast domain of {cluster.network.nvs.size}{last}: of the {of} that it needs, "
        f"{counted(part.free, 'GPU')} {'stays' if part.free == 1 else 'stay'} free"
    )


def placement_text(plan: Plan, problem: Problem, which: str = "") -> str:
    """Return how many members of each group share a unit of each tier, and the rank order.

    The text begins with `which`, as in "plan 1: ". It is empty on two tiers, and for one GPU, which has no groups. A
    plan that fills nodes in part has a sentence before it.
    """
    network = problem.cluster.network
    taken = taken_text(plan, problem.cluster, problem.assumptions_spec)
    lines = [wrapped(f"{which}{taken}")] if taken else []
    axes = [axis for axis in DEGREES if plan[axis] > 1]
    if network.middle and axes:
        rows = [[tier.name, *(str(plan[f"{axis}_{tier.name}"]) for axis in axes)] for tier in network.tiers[:-1]]
        rows.append([network.tiers[-1].name, *(str(plan[axis]) for axis in axes)])
        lines.append(f"{which}ranks numbered {plan['order']}; members of a group that share a unit of each tier:")
        lines.append(table(["", *axes], rows))
        lines += [
            f"{axis} straddles units of {tier}: it is priced as crossing that tier"
            for axis, tier in straddling(plan.codes, network)
        ]
    return "\n".join(lines)


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
    """Return which plans of a list tie with plan 1, which is as fast as any; empty if there are none."""
    if not (close := within_resolution(plans, TIED)):
        return ""
    which = f"plans 1 {'and' if close == [2] else 'to'} {close[-1]}"
    faster = any(plan["step_time_s"] < plans[0]["step_time_s"] for plan in plans)
    order = "; those launched as they are come first" if faster else ""
    return f"{which} tie: differences of up to {share(TIED, 1, 1)} count as equal{order}"


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


def _shares(plan: Priced) -> list[str]:
    return shares([sum(plan[name] for name in names) for names in SHARES.values()], plan["step_time_s"])


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
    of_first = plans[0].get("hardware", {})
    shown = [
        name
        for name, value in of_first.items()
        if name in hardware or any(plan["hardware"][name] != value for plan in plans)
    ]
    parts = [dict(zip(SHARES, _shares(plan), strict=True)) for plan in plans]
    named = [
        title for title in SHARES if title not in OPTIONAL or any(part[title] not in ("0 %", "-") for part in parts)
    ]
    titles = [*map(hardware_title, shown), *settings.values()]
    header = ["", *titles, "step", "MFU", "memory", *(["fits"] if fits else []), *named]
    rows: list[list[str]] = []
    for at, (plan, part) in enumerate(zip(plans, parts, strict=True)):
        choices = [hardware_text(name, plan["hardware"][name]) for name in shown]
        choices += [str(plan["plan"][name]) for name in settings]
        costs = [format_quantity(plan["step_time_s"], "s"), quantity("mfu", plan["mfu"])]
        costs += [format_quantity(plan["peak_bytes"], "bytes"), *([share(fits[at], 1)] if fits else [])]
        rows.append([f"{at + 1}", *choices, *costs, *(part[title] for title in named)])
    # With a width, plans whose rows are alike have the row of the first one, and lines below the table name the others.
    kept: list[int] = []
    same_texts: list[str] = []
    first: dict[tuple[str, ...], int] = {}
    for at, row in enumerate(rows):
        same = first.setdefault(tuple(row[1:]), at) if width else at
        if same == at:
            kept.append(at)
            continue
        plan, other = plans[at]["plan"], plans[same]["plan"]
        differs = " ".join(f"{setting_of(name)}={plan[name]}" for name in PLAN_COLUMNS if plan[name] != other[name])
        text = f"plan {at + 1} costs the same as plan {same + 1}{f', with {differs}' if differs else ''}"
        same_texts.append(wrapped(text, hanging="  "))
    return "\n".join([with_choices([plans[at] for at in kept], header, [rows[at] for at in kept], width), *same_texts])


def with_choices(
    plans: Sequence[Priced], header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> str:
    """Return a table with all choices of each plan in its row, or in lines below it if the table is too wide."""
    cut = any(plan["plan"].layers for plan in plans)
    texts = [[*([cut_text(plan["plan"].layers)] if cut else []), plan["plan"].text] for plan in plans]
    titles = [*header, *(["layers of stages"] if cut else []), "plan"]
    text = [titles.index(name) for name in ("cluster", "strategy", "layers of stages", "plan") if name in titles]
    wide = table(titles, [[*row, *below] for row, below in zip(rows, texts, strict=True)], text=text)
    if width is None or max(map(len, wide.splitlines())) <= width:
        return wide
    lines = table(header, rows, text=text).splitlines()
    narrow, of_rows = lines[: -len(rows)], lines[-len(rows) :]
    for line, plan in zip(of_rows, plans, strict=True):
        has_stages = cut and plan["plan"]["pp"] > 1
        layers = f"; layers of stages: {cut_text(plan['plan'].layers)}" if has_stages else ""
        narrow += [line, wrapped(f"{plan['plan'].text}{layers}", "   ", "  ")]
    return "\n".join(narrow)


_INDENT = " " * 4  # of the choices of a plan
_OF_BITS = "bf16"  # what sets call the precision of `matrix_flops`
_FEWER_BITS = "fp8"  # that most devices have


def roles_of(plans: Mapping[str, Priced]) -> dict[str, Priced]:
    """Return each plan once, under all its names: {"fastest, leanest": plan}."""
    names: dict[str, list[str]] = {}
    for name, plan in plans.items():
        names.setdefault(plan["plan"]["candidate"], []).append(name)
    return {", ".join(same): plans[same[0]] for same in names.values()}


def mfu_of_peaks(mfu: float, device: DeviceSpec, linear_dtype: str) -> dict[str, float]:
    """Return the MFU of a plan by the peak that it is of: that of 16 bits, and that of the multiplies with weights."""
    mfus = {f"MFU of {device.half_format.upper()} peak": mfu}
    peak = peak_flops(device, linear_dtype)
    if peak != device.matrix_flops:
        mfus[f"MFU of {linear_dtype.upper()} peak"] = mfu * device.matrix_flops / peak
    return mfus


def precision_text(device: DeviceSpec, linear_dtype: str) -> str:
    """Return what prices 8 bits, where the plans are in 16 bits on a device that multiplies 8 bits faster."""
    if linear_dtype != _OF_BITS or peak_flops(device, _FEWER_BITS) <= device.matrix_flops:
        return ""
    other = f"--set assumptions.linear_dtype={_FEWER_BITS}"
    return (
        f"Priced in {device.half_format.upper()}: {other} prices the multiplies with weights in {_FEWER_BITS.upper()}."
    )


def three_plans_text(plans: Mapping[str, Priced], device: DeviceSpec, assumptions: AssumptionsSpec) -> str:
    """Return plans by their names as a table with a column for each, and below it their choices."""
    several = roles_of(plans)
    columns: list[dict[str, str]] = []
    for plan in several.values():
        mfus = mfu_of_peaks(plan["mfu"], device, assumptions.linear_dtype)
        fits = fitting([plan], device.hbm_capacity, assumptions)
        columns.append(
            {
                "step": quantity("step_time_s", plan["step_time_s"]),
                "80 % interval": interval_text(plan["step_time_s_low"], plan["step_time_s_high"]),
                "tokens/s/GPU": f"{plan['tokens_per_s_per_gpu']:,.0f}",
                **{name: share(mfu, 1, 1) for name, mfu in mfus.items()},
                **dict(zip(SHARES, _shares(plan), strict=True)),
                "memory": quantity("peak_bytes", plan["peak_bytes"]),
                "fits": share(fits[0], 1) if fits else "",
                "cost of features": f"{sum(features_of(plan['plan']).values())}",
                "rank order": plan["plan"]["order"],
            }
        )
    rows = [
        [name, *(column[name] for column in columns)]
        for name in columns[0]
        if (name in SHARES and name not in OPTIONAL) or any(column[name] not in ("", "-", "0 %") for column in columns)
    ]
    text = table(["", *several], rows, text=range(len(several) + 1))
    return "\n\n".join([text, "\n".join(choices_text(name, plan["plan"]) for name, plan in several.items())])


def choices_text(name: str, plan: Plan) -> str:
    """Return the choices of a plan after a name, and its features with what each costs, wrapped."""
    used = ", ".join(f"{feature} {points}" for feature, points in features_of(plan).items())
    features = [wrapped(f"features: {used}", _INDENT)] if used else []
    return "\n".join([name, *stated_lines(plan, _INDENT), *features])


def stated_lines(plan: Plan, indent: str) -> list[str]:
    """Return the strategy, the choices and the layers of the stages of a plan, wrapped."""
    lines = [f"{printable(plan['strategy'])}: {plan.text}"]
    if plan.layers and plan["pp"] > 1:
        layers = f"stage_layers={cut_text(plan.layers, ',')}"
        short = len(layers) <= WIDTH - len(indent)  # else it would not be one word of the command line
        lines.append(layers if short else f"layers of stages: {cut_text(plan.layers)}")
    return [wrapped(line, indent) for line in lines]


def interval_text(low: float, high: float) -> str:
    """Return "5.21 s to 6.88 s"; empty if it is not known."""
    ends = [quantity("step_time_s", end) for end in (low, high)]
    return " to ".join(ends) if math.isfinite(low) and math.isfinite(high) else ""


def selection_text(within: float | None, candidates: int, as_launched: bool) -> str:
    """Return how the plans were chosen, in lines; `within` is the resolution of the measurements, None if unknown.

    With `as_launched` they are the best of those alone that need no placement by hand.
    """
    which = " placed as launched, on the fewest nodes and fast domains, and" if as_launched else ""
    as_fast = (
        f"within {share(within, 1)} of the fastest, which measurements do not distinguish" if within else "as fast"
    )
    return wrapped(
        f"Of the plans{which} {as_fast}, the simplest has the features that cost least to set up and to run (points of "
        "data/features/costs.yaml), then the least memory, and the leanest has the least memory of all. Each is the "
        f"best of {'these among ' if which else ''}{counted(candidates, 'candidate')} with their fastest and even "
        "cuts; --top 20 lists the fastest."
    )


_TYPES = {"name": np.object_, "real": np.float64}  # of empty columns; all others are int64
_COSTS = (*StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__)
_KNOWN = {column.name: column for column in (*COLUMNS, CUT)}


def plans_frame(plans: Sequence[DataView], reasons: Sequence[str] = ()) -> DataFrame:
    """Return one row per plan: choices, hardware, costs, and `reject`, which is 0 for a feasible plan.

    `reasons` names the bits of `reject`, lowest bit first. `attrs` has the units and descriptions of the columns that
    every result set has. The columns are in the order of a result set: choices, those that only some sets have, costs.
    """
    import pandas as pd

    rows = [
        {**plan["plan"].data, **plan["hardware"]}
        | {name: plan[name] for name in _COSTS}
        | {"reject": sum(1 << reasons.index(name) for name in plan["reject"])}
        for plan in plans
    ]
    names, last = {name: None for row in rows for name in row}, [*_COSTS, "reject"]
    first = [name for name in _KNOWN if name in names and name not in last]
    order = [*first, *(name for name in names if name not in (*first, *last)), *last]
    empty = {column.name: np.empty(0, _TYPES.get(column.kind, np.int64)) for column in COLUMNS}
    frame = pd.DataFrame(rows, columns=order) if rows else pd.DataFrame(empty)
    columns = {name: _KNOWN[str(name)] for name in frame if name in _KNOWN}
    frame.attrs["units"] = {name: column.unit for name, column in columns.items()}
    frame.attrs["descriptions"] = {name: column.description for name, column in columns.items()}
    return frame
