"""How sure it is that plans fit in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from dsx.cost.headroom import probability_of_fitting
from dsx.display.quantities import share
from dsx.pricing.problem import Problem
from dsx.spec.assumptions import AssumptionsSpec

_TIGHT = 0.95  # share of the memory from which on the answer says so
_SURE = 0.9


def fitting(plans: Sequence[Mapping[str, Any]], hbm_capacity: float, assumptions: AssumptionsSpec) -> list[float]:
    """Return the probability that each plan fits; empty if the assumption set does not know its errors."""
    interval = assumptions.memory_interval
    return [probability_of_fitting(interval, plan["peak_bytes"], hbm_capacity) for plan in plans] if interval else []


def margin_text(peak_bytes: float, problem: Problem) -> str:
    """Return a sentence on a plan that fits, but that a search leaves out for its memory margin; else nothing."""
    assumptions, capacity = problem.assumptions_spec, problem.cluster.device.hbm_capacity
    margin = assumptions.memory_margin
    if peak_bytes * (1 + margin) <= capacity:
        return ""
    known = fitting([{"peak_bytes": peak_bytes}], capacity, assumptions)
    chance = f" and fits with a probability of {share(known[0], 1)}" if known else ""
    needed = f"It needs {share(peak_bytes / capacity, 1, 1)} of the memory of a GPU{chance}"
    return f"{needed}: a search leaves it out, with its memory margin of {margin:g}."


def tight_text(plan: Mapping[str, Any], name: str, hbm_capacity: float, assumptions: AssumptionsSpec) -> str:
    """Return a sentence if a plan needs nearly all memory or may well not fit; else nothing."""
    needed = plan["peak_bytes"] / hbm_capacity
    known = fitting([plan], hbm_capacity, assumptions)
    unsure = [probability for probability in known if probability < _SURE]
    if needed <= _TIGHT and not unsure:
        return ""
    chance = f" and fits with a probability of {share(known[0], 1)}" if known else ""
    return f"{name} needs {share(needed, 1, 1)} of the memory of a GPU{chance} (--memory-margin leaves more room)"
