"""Why a space has no candidate: the settings that exclude all of them.

A setting is a blocker if the space has candidates without it and with all other settings. If no single setting is a
blocker, settings are added one after the other, degrees first, and each one that excludes all remaining candidates is a
blocker. The nearest value is taken from the candidates without the blocker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dsx.config.sweep_fields import Limit
from dsx.plans.choices import BY_NAME, CHOICE_COLUMNS, CODES, KEY_COLUMNS, MODEL_AXES, SEARCHED_COLUMNS
from dsx.plans.experts import REPLICA_AXES
from dsx.plans.frameworks import Limitation, Selection
from dsx.plans.placement import divisors
from dsx.plans.rules import OPTIMAL_SCHEDULES, PLACED, nearest_of
from dsx.pricing.problem import Problem
from dsx.records import Int
from dsx.search.spaces import Space

Section = Literal["fix", "limit", "fixed"]

# Degrees first; a column comes before the columns that depend on it.
_ORDER = (*KEY_COLUMNS, *CHOICE_COLUMNS)


@dataclass(frozen=True, slots=True)
class Blocker:
    """A setting of a column that excludes all candidates."""

    section: Section  # of the sweep, or `fixed` of the assumption set
    column: str
    setting: str  # "pp = 5 or 7", "pp >= 100"
    rule: str  # what a search requires of a value
    nearest: str  # "pp = 4"; empty if no value leaves a candidate
    alone: bool  # whether changing this setting alone is enough


@dataclass(frozen=True, slots=True)
class _Setting:
    section: Section
    column: str
    values: Sequence[int | str] = ()
    bounds: Sequence[Limit] = ()  # in their place, of a limit

    @property
    def text(self) -> str:
        if self.section == "limit":
            return " and ".join(f"{self.column} {bound.relation} {bound.bound}" for bound in self.bounds)
        return f"{self.column} = {' or '.join(map(str, self.values))}"


@dataclass(frozen=True, slots=True)
class _BlockerSearch:
    problem: Problem
    num_gpus: Sequence[int]
    global_batch_size: Sequence[int]

    def space(self, settings: Sequence[_Setting], free: Sequence[str]) -> Space:
        """Return the space under some settings; the columns `free` may take any value unless a setting fixes them."""
        fix = {setting.column: setting.values for setting in settings if setting.section == "fix"}
        limit = {setting.column: setting.bounds for setting in settings if setting.section == "limit"}
        values = {setting.column: setting.values for setting in settings if setting.section != "limit"}
        varied = {*free, *limit}
        choices = {name: BY_NAME[name].main if name in varied else self._usual(name) for name in SEARCHED_COLUMNS}
        choices |= {name: values[name] for name in SEARCHED_COLUMNS if name in values}
        return Space(self.problem.searching(choices), self.num_gpus, self.global_batch_size, fix, limit)

    def _usual(self, name: str) -> tuple[int | str, ...]:
        """Return the default of a column, which restricts no other column, or what the framework runs in its place."""
        choice, run = BY_NAME[name], getattr(self.problem.workload.searched, name)
        lacks = run and choice.default_code not in run and name not in self.problem.assumptions_spec.fixed
        return tuple(map(choice.name_of, run)) if lacks else (choice.default,)


def blockers(
    problem: Problem,
    num_gpus: Sequence[int],
    global_batch_size: Sequence[int],
    fix: Selection | None = None,
    limit: Limitation | None = None,
) -> list[Blocker]:
    """Return the blockers of an empty space; none if the GPUs, the batch and the strategies alone exclude all plans.

    `problem` has the fixed choices of its assumption set, even of columns in `fix`.
    """
    fixed = {name: value for name, value in problem.assumptions_spec.fixed.items() if name not in (fix or {})}
    settings = [
        *(_Setting("fixed", name, (value,)) for name, value in fixed.items()),
        *(_Setting("fix", name, tuple(values)) for name, values in (fix or {}).items()),
        *(_Setting("limit", name, bounds=tuple(bounds)) for name, bounds in (limit or {}).items()),
    ]
    settings.sort(
        key=lambda setting: (_ORDER.index(setting.column) if setting.column in _ORDER else 0, setting.section)
    )
    search = _BlockerSearch(problem, num_gpus, global_batch_size)
    if not search.space([], ["ep"]).size:
        return []
    if (product := _product_of_degrees(fix or {}, num_gpus)) is not None:
        return [product]
    single = [
        _blocker(search, setting, [other for other in settings if other is not setting], alone=True)
        for setting in settings
    ]
    sufficient = [blocker for blocker in single if blocker.nearest]
    return sufficient or _one_by_one(search, settings)


def _product_of_degrees(fix: Selection, num_gpus: Sequence[int]) -> Blocker | None:
    """Return several fixed degrees as a blocker if none of their products divides any number of GPUs; else None.

    The nearest value is that of the last of them.
    """
    products, fixed = {(total, 1) for total in num_gpus}, list[str]()
    for axis in (axis for axis in PLACED if axis in fix):
        degrees = [int(degree) for degree in fix[axis]]
        fixed.append(_Setting("fix", axis, tuple(degrees)).text)
        extended = {(total, inner * degree) for total, inner in products for degree in degrees}
        dividing = {(total, inner) for total, inner in extended if total % inner == 0}
        if not dividing:
            if len(fixed) == 1:  # its own rule says more
                return None
            possible = {int(degree) for total, inner in products for degree in divisors(total // inner)}
            rule = f"all degrees multiply to num_gpus, and no product of these divides {_or(num_gpus)}"
            nearest = f"{axis} = {nearest_of(possible, degrees[0])}"
            return Blocker("fix", axis, " and ".join(fixed), rule, nearest, alone=True)
        products = dividing
    return None


def _one_by_one(search: _BlockerSearch, settings: Sequence[_Setting]) -> list[Blocker]:
    kept: list[_Setting] = []
    blocking: list[Blocker] = []
    for setting in settings:
        if search.space([*kept, setting], ["ep"]).size:
            kept.append(setting)
        else:
            blocking.append(_blocker(search, setting, kept, alone=False))
    return blocking


def _blocker(search: _BlockerSearch, setting: _Setting, settings: Sequence[_Setting], alone: bool) -> Blocker:
    column = setting.column
    nearest = _nearest(setting, _values(search.space(settings, ["ep", column]), column))
    return Blocker(setting.section, column, setting.text, _rule(column, search.problem), nearest, alone)


def _values(space: Space, column: str) -> Int[np.ndarray, "values"]:
    """Return the values that the candidates of a space have in a column."""
    if not space.size:
        return np.zeros(0, dtype=np.int64)
    if column in KEY_COLUMNS:
        return np.unique(space.keys[column][space.blocks.keys])
    blocks = space.blocks
    return np.unique(blocks.choices(blocks.segments(0, len(blocks)))[column])


def _nearest(setting: _Setting, values: Int[np.ndarray, "values"]) -> str:
    if not len(values):
        return ""
    if setting.column in CODES:
        return f"{setting.column} = {' or '.join(CODES[setting.column][value] for value in values)}"
    numbers = [bound.bound for bound in setting.bounds] or [int(value) for value in setting.values]
    # A bound may be too large for differences of floats.
    reachable = [min(max(number, int(values.min())), int(values.max())) for number in numbers]
    near = min(values.tolist(), key=lambda value: (min(abs(value - number) for number in reachable), value))
    return f"{setting.column} = {near}"


def _rule(column: str, problem: Problem) -> str:
    """Return what a search requires of a value of a column."""
    strategies = problem.strategies[0] if len(problem.strategies) == 1 else "a searched strategy"
    if column.endswith("_nvs"):
        axis = column.removesuffix("_nvs")
        domain = f"the shares fill a fast domain of {problem.nvs_size} as far as num_gpus allows"
        return f"the share divides {axis} or is that of consecutive ranks, and {domain}"
    if column in MODEL_AXES and not any(column in layer.axes for kinds in problem.kinds for layer in kinds):
        return f"nothing of {problem.model.name} is sharded over {column} under {strategies}"
    if column in REPLICA_AXES:
        return f"{column} divides num_gpus and obeys the rules of {strategies}"
    rule = _RULES_OF_OPTIMAL_CUTS.get(column) if problem.optimal_cuts else None
    limits = problem.limits()
    return (rule or BY_NAME[column].rule).format(
        layers=" or ".join(map(str, limits.even_layers)), stages=limits.max_stages, values=_or(BY_NAME[column].main)
    )


def _or(values: Sequence[object]) -> str:
    return " or ".join(filter(None, (", ".join(map(str, values[:-1])), *map(str, values[-1:]))))


# These replace the rules of the choices if cuts are optimal.
_RULES_OF_OPTIMAL_CUTS: dict[str, str] = {
    "pp": "pp divides num_gpus and is at most {stages}, the layers with embedding and head",
    "vpp": "vpp above 1 needs pp above 1, at most {stages} chunks of all stages, schedule 1f1b, and a num_microbatches "
    "that pp divides; a search tries divisors of the layers, with embedding and head or without",
    "schedule": f"partition optimal covers only {OPTIMAL_SCHEDULES}",
}
