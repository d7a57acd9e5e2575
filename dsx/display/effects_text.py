"""The effects of software that a plan lacks, as text and as plain data."""

from typing import Any

from dsx.display.layout import wrapped
from dsx.space.conditions import for_plan
from dsx.space.plan import Plan
from dsx.space.schedules import SCHEDULES
from dsx.spec.assumptions import AssumptionsSpec


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
    lines: list[str] = []
    for name, lacked in lacked_effects(spec, plan).items():
        priced, value = (_quantity(name, lacked[key]) for key in ("priced", "value"))
        lines.append(wrapped(f"priced with {name} = {priced}: {value} needs {lacked['needs']}"))
    return "\n".join(lines)


def _quantity(name: str, value: float) -> str:
    return f"{1e6 * value:g} us" if name.endswith("_latency") else f"{value:g}"
