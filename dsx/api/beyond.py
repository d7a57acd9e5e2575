"""What the limits of a framework cost: the fastest plan that it does not run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsx.api.searched import Searched, frameworks_of, limits_broken
from dsx.display.quantities import quantity, share
from dsx.printable import printable
from dsx.space.plan import Plan

_WORTH_SAYING = 0.001  # of the step time


@dataclass(frozen=True, slots=True)
class Beyond:
    """The fastest plan outside a framework, where it is faster than all that the framework runs."""

    plan: Plan
    step_time_s: float  # [s]
    saved: float | None  # of the step time of the fastest plan that the framework runs; None if none fits
    limits: Mapping[str, Any]  # the choices of the plan that the framework does not run
    frameworks: Sequence[str]  # other frameworks that run the plan

    def to_data(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "plan": dict(self.plan),
            "step_time_s": self.step_time_s,
            "saved": self.saved,
            "limits": dict(self.limits),
            "frameworks": list(self.frameworks),
        }


def beyond(found: Searched, priced: Mapping[str, Any] | None, fastest: float | None) -> Beyond | None:
    """Return a priced plan outside the framework; `fastest` is the step time [s] of the fastest plan inside."""
    if priced is None:
        return None
    plan, seconds = priced["plan"], priced["step_time_s"]
    saved = None if fastest is None else 1 - seconds / fastest
    return Beyond(plan, seconds, saved, limits_broken(found, plan), frameworks_of(found, plan))


def beyond_text(found: Searched, other: Beyond | None) -> str:
    """Return what the limits of the framework cost in a line; empty for a framework without limits."""
    name = printable(found.framework.name)
    if found.framework.unlimited:
        return ""
    if other is None or (other.saved is not None and other.saved < _WORTH_SAYING):
        # Plans outside of a framework are not searched over every choice (`dsx.search.fastest`).
        apart = "a limit of schedule, offload or stored_layers apart, which --framework any and --fix search"
        return f"no limit of {name} costs more than {share(_WORTH_SAYING, 1, 1)}, {apart}"
    less = "" if other.saved is None else f", {share(other.saved, 1, 1)} less"
    choices = " ".join(f"{column}={value}" for column, value in other.limits.items())
    names = " and ".join(map(printable, other.frameworks))
    runs = f"{names} run{'s' if len(other.frameworks) == 1 else ''} it" if names else "no framework here runs it"
    return (
        f"without the limits of {name}: {quantity('step_time_s', other.step_time_s)}{less}, with {choices} "
        f"({other.plan.text}); {runs}"
    )
