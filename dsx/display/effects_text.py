"""The effects of software that a plan lacks, as text and as plain data."""

from typing import Any

from dsx.display.layout import wrapped
from dsx.space.conditions import for_plan, unmet_needs
from dsx.space.plan import Plan
from dsx.space.plan_settings import setting_of
from dsx.space.schedules import SCHEDULES
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.conditions import WITHOUT, Need


def lacked_effects(spec: AssumptionsSpec, plan: Plan) -> dict[str, dict[str, Any]]:
    """Return, by field of an assumption set, what a plan lacks for its value, and the value that it has; SI units.

    An overlap of an axis of one rank is left out, and one that the schedule has by itself.
    """
    own, overlap = for_plan(spec, plan.codes), SCHEDULES[plan.codes["schedule"]].overlap
    hidden = (*overlap.axes, *(("pp",) if overlap.sends else ())) if overlap and plan["pp"] > 1 else ()
    return {
        name: {"needs": condition.text, "value": getattr(spec, name), "priced": getattr(own, name)}
        for name, condition in spec.conditions.stated.items()
        if getattr(own, name) != getattr(spec, name)
        and plan.get(axis := name.removesuffix("_overlap"), 2) > 1
        and axis not in hidden
    }


def effects_text(spec: AssumptionsSpec, plan: Plan) -> str:
    """Return the effects that a plan lacks, a line each; empty if it has all."""
    unmet, lines = unmet_needs(spec, plan.codes), list[str]()
    for name, lacked in lacked_effects(spec, plan).items():
        priced, value = (_quantity(name, lacked[key]) for key in ("priced", "value"))
        because = " and ".join(_unmet_text(need, plan) for need in unmet[name])
        instead = f"{name} = {priced} in place of {value}"
        lost = spec.conditions.stated[name].lost
        lines.append(wrapped(f"{lost} because of {because}: {instead}" if lost else f"{instead} because of {because}"))
    return "\n".join(lines)


def _unmet_text(need: Need, plan: Plan) -> str:
    """Return what a plan has in place of a need: "zero_stage=3 (needed: zero_stage <= 1)"."""
    columns = dict.fromkeys(name for one in need for name in (one.column, *one.with_what) if name in plan)
    values = " ".join(f"{setting_of(name)}={plan[name]}" for name in columns)
    if any(one.relation == WITHOUT for one in need):  # the value names what it has of a long list
        return values
    compared = (
        " ".join([setting_of(one.column), one.relation, *(setting_of(bound) for bound in one.with_what)])
        for one in need
    )
    return f"{values} (needed: {' or '.join(compared)})"


def _quantity(name: str, value: float) -> str:
    return f"{1e6 * value:g} us" if name.endswith("_latency") else f"{value:g}"
