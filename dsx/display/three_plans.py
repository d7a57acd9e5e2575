"""The three plans of an answer side by side: the fastest, the simplest of those that are as fast, and the leanest.

A plan that is two of them, or all three, has one column.
"""

import math
from collections.abc import Mapping
from typing import Any

from dsx.display.layout import WIDTH, wrapped
from dsx.display.memory_text import fitting
from dsx.display.plan_table import OPTIONAL, SHARES
from dsx.results.objectives import Priced
from dsx.display.quantities import cut_text, quantity, share, shares
from dsx.display.table import table
from dsx.printable import printable
from dsx.space.features import features_of
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import DeviceSpec, peak_flops
from dsx.units import counted

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
    found = {f"MFU of {device.half_format.upper()} peak": mfu}
    peak = peak_flops(device, linear_dtype)
    if peak != device.matrix_flops:
        found[f"MFU of {linear_dtype.upper()} peak"] = mfu * device.matrix_flops / peak
    return found


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
    columns = [_column(plan, device, assumptions) for plan in several.values()]
    shown = [name for name in columns[0] if any(column[name] not in ("", "-", "0 %") for column in columns)]
    shown = [name for name in columns[0] if name in shown or (name in SHARES and name not in OPTIONAL)]
    rows = [[name, *(column[name] for column in columns)] for name in shown]
    text = table(["", *several], rows, text=range(len(several) + 1))
    return "\n\n".join([text, "\n".join(choices_text(name, plan["plan"]) for name, plan in several.items())])


def choices_text(name: str, plan: Any) -> str:
    """Return the choices of a plan after a name, and its features with what each costs, wrapped."""
    used = ", ".join(f"{feature} {points}" for feature, points in features_of(plan).items())
    features = [wrapped(f"features: {used}", _INDENT)] if used else []
    return "\n".join([name, *stated_lines(plan, _INDENT), *features])


def stated_lines(plan: Any, indent: str) -> list[str]:
    """Return the strategy, the choices and the layers of the stages of a plan, wrapped."""
    lines = [f"{printable(plan['strategy'])}: {plan.text}"]
    if "stage_layers" in plan and plan["pp"] > 1:
        stated = f"stage_layers={cut_text(plan['stage_layers'], ',')}"
        short = len(stated) <= WIDTH - len(indent)  # else it would not be one word of the command line
        lines.append(stated if short else f"layers of stages: {cut_text(plan['stage_layers'])}")
    return [wrapped(line, indent) for line in lines]


def _column(plan: Priced, device: DeviceSpec, assumptions: AssumptionsSpec) -> dict[str, str]:
    low, high = (plan[f"step_time_s_{end}"] for end in ("low", "high"))
    parts = shares([sum(plan[name] for name in names) for names in SHARES.values()], plan["step_time_s"])
    fits = fitting([plan], device.hbm_capacity, assumptions)
    features = features_of(plan["plan"])
    return {
        "step": quantity("step_time_s", plan["step_time_s"]),
        "80 % interval": interval_text(low, high),
        "tokens/s/GPU": f"{plan['tokens_per_s_per_gpu']:,.0f}",
        **{name: share(mfu, 1, 1) for name, mfu in mfu_of_peaks(plan["mfu"], device, assumptions.linear_dtype).items()},
        **dict(zip(SHARES, parts, strict=True)),
        "memory": quantity("peak_bytes", plan["peak_bytes"]),
        "fits": share(fits[0], 1) if fits else "",
        "cost of features": f"{sum(features.values())}",
        "rank order": plan["plan"]["order"],
    }


def interval_text(low: float, high: float) -> str:
    """Return "5.21 s to 6.88 s"; empty if it is not known."""
    ends = [quantity("step_time_s", end) for end in (low, high)]
    return " to ".join(ends) if math.isfinite(low) and math.isfinite(high) else ""


def selection_text(within: float | None, candidates: int, as_launched: bool) -> str:
    """Return how the plans were chosen, in lines; `within` is the resolution of the measurements, None if unknown.

    With `as_launched` they are the best of those alone that need no placement by hand.
    """
    which = " placed as launched, on the fewest nodes and fast domains, and" if as_launched else ""
    alike = f"within {share(within, 1)} of the fastest, which measurements do not distinguish" if within else "as fast"
    return wrapped(
        f"Of the plans{which} {alike}, the simplest has the features that cost least to set up and to run (points of "
        "data/features/costs.yaml), then the least memory, and the leanest has the least memory of all. Each is the "
        f"best of {'these among ' if which else ''}{counted(candidates, 'candidate')} with their fastest and even "
        "cuts; --top 20 lists the fastest."
    )
