"""The plans of an answer: what each is the best at, and how much slower than the fastest one it may be.

Of plans as fast as the fastest, to what is printed of a step time, the one whose features cost least stands for them:
many differ in nothing that has a price, such as more context parallel ranks for larger microbatches.
"""

from collections.abc import Sequence
from typing import TypeVar

from dsx.search.nearly_fastest import Wanted

FASTEST, SIMPLEST, LEANEST = ROLES = ("fastest", "simplest", "leanest")
TIED = 1e-3  # of a step time: it prints the same

P = TypeVar("P")


def wanted_by_role(step_time_s: float, resolution: float | None) -> tuple[Wanted, Wanted, Wanted]:
    """Return what each role wants, in the order of `ROLES`; `step_time_s` is that of the fastest plan.

    `resolution` is the relative difference of step time that measurements cannot rank, None if it is not known.
    """
    within = step_time_s * (1 + max(resolution or 0.0, TIED))
    return Wanted(step_time_s * (1 + TIED), simple=True), Wanted(within, simple=True), Wanted(within)


def by_role(plans: Sequence[P], costs: Sequence[int]) -> dict[str, P]:
    """Return plans by role, for all roles or the first ones: each is what its role wants, in the order of `ROLES`.

    `costs` are those of the features of the plans. The simplest is the fastest where it costs as much: less memory does
    not make a slower plan simpler.
    """
    found: dict[str, P] = dict(zip(ROLES, plans, strict=False))
    if SIMPLEST in found and costs[0] == costs[1]:
        found[SIMPLEST] = found[FASTEST]
    return found
