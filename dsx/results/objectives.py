"""What plans of several jobs are ranked by.

Jobs of other GPUs and batches do other work in a step, so that its seconds alone do not compare them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsx.argument_types import one_text
from dsx.errors import UnknownNameError

Priced = Mapping[str, Any]  # a plan with its costs, of `dsx.pricing.evaluate` or `dsx.results.plan_rows`


@dataclass(frozen=True, slots=True)
class Objective:
    """A number of a priced plan that is to be as small, or as large, as possible."""

    name: str
    value: Callable[[Priced], float]
    largest: bool = False

    def order(self, plan: Priced) -> float:
        """Return what sorts plans, the best first."""
        return -self.value(plan) if self.largest else self.value(plan)


def _column(name: str) -> Callable[[Priced], float]:
    return lambda plan: float(plan[name])


OBJECTIVES: Mapping[str, Objective] = {
    one.name: one
    for one in (
        Objective("tokens_per_s_per_gpu", _column("tokens_per_s_per_gpu"), largest=True),
        Objective("tokens_per_s", _column("tokens_per_s"), largest=True),
        Objective("step_time_s", _column("step_time_s")),
        Objective("mfu", _column("mfu"), largest=True),
        Objective("peak_bytes", _column("peak_bytes")),
    )
}


def objective_named(name: object) -> Objective:
    """Return an objective; raises UnknownNameError for a name that is none."""
    if (known := OBJECTIVES.get(one_text("objective", name, "mfu"))) is None:
        raise UnknownNameError("objective", str(name), OBJECTIVES)
    return known


def ranked_by_count(plans: Sequence[dict[str, Any]], objective: Objective) -> list[dict[str, Any]]:
    """Return plans in groups of the same GPUs, in each the best first, and the group of the best plan first.

    Each has its cluster under `hardware`. Equal plans keep their order.
    """

    def gpus(plan: Priced) -> tuple[str, int]:
        return plan["hardware"]["cluster"], plan["plan"]["num_gpus"]

    ranked = sorted(plans, key=objective.order)
    groups = {of: at for at, of in enumerate(dict.fromkeys(map(gpus, ranked)))}
    return sorted(ranked, key=lambda plan: groups[gpus(plan)])
