"""A plan: one value for each choice, as a command line states it and as a row of a result set stores it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.argument_types import wrong
from dsx.errors import PlanError, SpecError
from dsx.space.choices import BY_NAME, CODES, PLAN_COLUMNS, SEARCHED_COLUMNS, nearest_column
from dsx.space.layer_layout import LAYOUT
from dsx.space.limits import DEGREES

if TYPE_CHECKING:
    from dsx.space.enumerate import Arrays


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan(Mapping[str, Any]):
    """The columns of one plan (docs/choices.md) with their values: whole numbers and names.

        found.plan["tp"], str(found.plan)           # 8, "tp=8 dp=64 microbatch_size=1 nvs.tp=8"
        found.plan | {"recompute": "full"}          # another plan

    There is a value for each choice, but for a strategy that nobody has chosen yet. Once a plan is priced there is also
    what follows from the choices: its `candidate` id, its shares of tiers, and `stage_layers` where it has a cut of its
    own.
    """

    columns: Mapping[str, Any]  # whole numbers and names

    def __getitem__(self, column: str) -> Any:
        return self.columns[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        whole = self.columns.keys() >= BY_NAME.keys() - {"strategy"}
        return f"Plan({self.text!r})" if whole else f"Plan({dict(self.columns)!r})"

    def __str__(self) -> str:
        return self.text

    def __or__(self, columns: Mapping[str, Any]) -> "Plan":
        """Return the plan with other values in some columns.

        Raises InputError for what is no mapping of columns, PlanError for a column or a value that no plan has.
        """
        if not isinstance(columns, Mapping):
            raise wrong("plan | ...", columns, "a mapping of columns is wanted, as in plan | {'recompute': 'full'}")
        known = {*self.columns, *PLAN_COLUMNS, LAYOUT, *(f"nvs.{axis}" for axis in DEGREES)}
        for name, value in columns.items():
            if name not in known:
                raise PlanError(f"unknown setting {name!r}{nearest_column(str(name), known)}")
            _check_value(name, value)
        return Plan({**self.columns, **columns})

    @property
    def codes(self) -> dict[str, int]:
        """The choices as numbers, for rules and costs. The strategy is left out: only a problem numbers strategies."""
        return {
            name: BY_NAME[name].code(self.columns[name]) if name in CODES else int(self.columns[name])
            for name in PLAN_COLUMNS
            if name != "strategy"
        }

    @property
    def text(self) -> str:
        """The plan as settings of the command line; values of 1 and default values are left out."""
        plan = self.codes
        degrees = [f"{axis}={plan[axis]}" for axis in DEGREES if plan[axis] > 1]
        degrees += [f"panels={plan['panels']}"] if plan["panels"] > 1 else []
        shares = [f"nvs.{axis}={plan[f'{axis}_nvs']}" for axis in DEGREES if plan[f"{axis}_nvs"] > 1]
        others = [
            f"{name}={self.columns[name]}"
            for name in SEARCHED_COLUMNS
            if name not in DEGREES and self.columns[name] != BY_NAME[name].default
        ]
        return " ".join([*degrees, f"microbatch_size={plan['microbatch_size']}", *others, *shares])


def _check_value(name: str, value: object) -> None:
    """Raise PlanError for a value that no plan can have in a column of choices."""
    if name in SEARCHED_COLUMNS:
        try:
            BY_NAME[name].code(value.item() if isinstance(value, np.generic) else value)  # pyright: ignore[reportArgumentType]
        except SpecError as error:
            raise PlanError(str(error)) from None
    elif name in (*DEGREES, "panels", "microbatch_size") and not (isinstance(value, int | np.integer) and value >= 1):
        raise PlanError(f"{name}={value!r} must be a whole number of at least 1")


def stacked(plans: Sequence[Plan]) -> "Arrays":
    """Return the columns of N plans without their strategies, names as codes; [N] integers each."""
    codes = [plan.codes for plan in plans]
    return {name: np.array([one[name] for one in codes], dtype=np.int64) for name in PLAN_COLUMNS if name != "strategy"}
