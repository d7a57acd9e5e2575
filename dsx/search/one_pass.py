"""The plans of an answer, in one pass over the plans of a search: the fastest, and the best of each role.

A framework launches some plans as they are; the others are placed by hand, on nodes that they fill in part or with
ranks in another order. The pass goes through those that are placed as launched, on many GPUs a tenth of all, and then
through the others, of which few may be as fast: each plan is in one of two sets, and is looked at once. The plans of
the roles are looked for meanwhile, in processes beside the search, among the plans of the first set that may be fast
enough. Only where another placement is faster by more than measurements tell are they looked for among all.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dsx.cost.cut_bounds import ROUNDING
from dsx.forked import forked
from dsx.progress import OutOfTimeError, Watch, working
from dsx.search.fastest import SearchCounts, SearchSpaces, TellFirst, fastest_below, fastest_usual, leading
from dsx.search.nearly_fastest import Wanted, nearly_fastest
from dsx.text import Data

# Told the fastest plan that is known, of those placed as launched, and again if the answer is not of these.
TellFastest = Callable[[Data | None, bool], None]
_WORK = "looking for simpler and leaner plans"


class AnswerPlans(NamedTuple):
    """The plans of an answer."""

    of_all: list[Data]  # the fastest of all plans that are known
    plans: list[Data]  # the fastest ones of the answer
    of_roles: list[Data] | None  # None if no time was left to find them
    as_launched: bool  # whether these are the best of the plans that are placed as launched
    counts: SearchCounts


@dataclass(frozen=True, slots=True)
class OnePass:
    """A search for the `most` fastest plans, and for the best one for each role.

    Where the fastest plan of all is placed by hand, and no faster than measurements tell, the answer has plans that are
    placed as launched alone.
    """

    spaces: SearchSpaces
    most: int
    wants: Callable[[float], Sequence[Wanted]]  # what the roles want, from the seconds of a step of the fastest plan
    num_roles: int  # the first ones, whose plans are wanted
    tell_first: TellFirst
    tell_fastest: TellFastest
    watch: Watch | None

    def plans(self) -> AnswerPlans:
        """Return the plans of the answer."""
        if not self.num_roles:
            plans, counts = fastest_below(self.spaces, self.most, np.inf, self.watch, self.tell_first)
            return AnswerPlans(plans, plans, [], as_launched=False, counts=counts)
        with working("enumerating", self.watch):
            launched, by_hand = self.spaces.as_launched, self.spaces.not_as_launched
        longer = max(want.most_s for want in self.wants(1.0)[: self.num_roles])
        usual = fastest_usual(launched, self.most, np.inf, self.watch, self.tell_first, longer)
        if usual.counts.left_s < np.inf:
            return self._ended(usual.plans, usual.counts, by_hand)
        if not usual.plans:
            self.tell_fastest(None, True)
            plans, more = fastest_below(by_hand, self.most, np.inf, self.watch)
            return self._with_roles_of_all(plans, usual.counts.plus(more), by_hand)

        looked = nearly_fastest(usual.sources, usual.varied, usual.plans, self._longest(usual.plans[0]))
        # The leanest plan takes longest to find, and does not wait for the variants: hardly ever are these so much
        # faster that a plan which is nearly as fast as the usual ones is too slow beside them.
        leanest = self._wanted(usual.plans[0])[-1:] if self.num_roles > 1 else []
        with ExitStack() as beside:
            last = beside.enter_context(forked(lambda _: [*map(looked.best, leanest)]))
            plans, counts = usual.with_variants(self.most, np.inf, self.watch)
            if counts.left_s < np.inf:
                return self._ended(plans, counts, by_hand)
            self.tell_fastest(plans[0], True)
            wants, looked = self._wanted(plans[0]), replace(looked, known=plans)
            simple = wants[: len(wants) - len(leanest)]
            first = beside.enter_context(forked(lambda _: [*map(looked.best, simple)]))

            below = plans[-1]["step_time_s"] if len(plans) == self.most else np.inf
            placed, more = fastest_below(by_hand, self.most, below, self.watch)
            of_all, counts = leading([*plans, *placed], self.most), counts.plus(more)
            if plans[0]["step_time_s"] > (within := self._within(of_all[0])):
                beside.close()  # the plans that are looked for there are not those of the answer
                return self._with_roles_of_all(of_all, counts, by_hand)
            wants = [replace(want, most_s=min(want.most_s, within)) for want in wants]
            of_roles: list[Data] | None = None
            with suppress(OutOfTimeError), working(_WORK, self.watch):
                of_roles = [
                    plan if plan["step_time_s"] <= want.most_s else looked.best(want)
                    for want, plan in zip(wants, [*first.result(), *last.result()], strict=True)
                ]
        return AnswerPlans(of_all, of_all if of_all[0] is plans[0] else plans, of_roles, True, counts)

    def _ended(self, plans: list[Data], counts: SearchCounts, by_hand: SearchSpaces) -> AnswerPlans:
        """Return the answer of known plans, placed as launched, where no time is left for those placed `by_hand`."""
        self.tell_fastest(plans[0] if plans else None, True)
        counts = counts.plus(SearchCounts(0, 0, None, 0).unfinished(by_hand.key_bounds))
        return AnswerPlans(plans, plans, None, as_launched=bool(plans), counts=counts)

    def _wanted(self, fastest: Data) -> list[Wanted]:
        return [*self.wants(fastest["step_time_s"])[: self.num_roles]]

    def _longest(self, fastest: Data) -> float:
        """Return the most seconds of a step of the plan of a role."""
        return max(want.most_s for want in self._wanted(fastest))

    def _within(self, fastest: Data) -> float:
        """Return the most seconds of a step that measurements do not tell from those of the fastest plan."""
        return max(want.most_s for want in self.wants(fastest["step_time_s"]))

    def _with_roles_of_all(self, plans: list[Data], counts: SearchCounts, by_hand: SearchSpaces) -> AnswerPlans:
        """Return the answer where the fastest of all plans, `plans`, decide it; `by_hand` has bounds of all keys."""
        self.tell_fastest(plans[0] if plans else None, False)
        if not plans:
            return AnswerPlans(plans, plans, [], as_launched=False, counts=counts)
        of_roles: list[Data] | None = None
        with suppress(OutOfTimeError):
            longest, wants = self._longest(plans[0]), self._wanted(plans[0])
            sources = self.spaces.priced(np.flatnonzero(by_hand.key_bounds <= longest * (1.0 + ROUNDING)))
            looked = nearly_fastest(sources, self.spaces.varied, plans, longest)
            with forked(lambda _: looked.best(wants[-1])) as last, working(_WORK, self.watch):
                of_roles = [*map(looked.best, wants[:-1]), last.result()]
        return AnswerPlans(plans, plans, of_roles, as_launched=False, counts=counts)
