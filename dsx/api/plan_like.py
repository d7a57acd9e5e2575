"""A plan as Python callers give it: a text, settings, a mapping of columns, a `Plan`, or a row of a DataFrame."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dsx.errors import InputError
from dsx.remarks import warn
from dsx.results.schema import COLUMNS, CUT
from dsx.space.choices import SEARCHED_COLUMNS
from dsx.space.limits import DEGREES, EVEN, OPTIMAL
from dsx.space.plan_settings import SIZES

if TYPE_CHECKING:
    from dsx.api.job import Job


class Row(Protocol):
    """A row of a DataFrame, as `frame.iloc[0]` is."""

    def items(self) -> Iterable[tuple[Hashable, Any]]:
        """Yield the columns with their values."""
        ...


PlanLike = str | Sequence[str] | Mapping[str, Any] | Row

_SETTABLE = (*DEGREES, *SIZES, *(f"{axis}_nvs" for axis in DEGREES), *SEARCHED_COLUMNS)
_OF_THE_JOB = ("num_gpus", "global_batch_size", "sequence_length")
# What a row says beside its choices: what it is of, what it costs, and what follows from both.
_NO_SETTINGS = {column.name for column in (*COLUMNS, CUT)} - {*_SETTABLE}


class GivenPlan(NamedTuple):
    """A plan as settings, and what else it says of how it is priced."""

    settings: list[str]  # as the shell takes them: "tp=8", "nvs.tp=8"
    strategy: str | None  # None where it says none
    has_cut: bool  # whether its layers are cut in a way of its own

    @property
    def partition(self) -> str:
        """How its layers are cut into stages."""
        return OPTIMAL if self.has_cut else EVEN


def given_plan(plan: PlanLike | None, choices: Mapping[str, Any], job: "Job") -> GivenPlan:
    """Return a plan with some `choices`, which take the place of what a mapping or a row has in these columns.

    Of a row the choices alone count: the job says on how many GPUs, with which batch and length it is priced, and a
    warning says where that is another job. Raises InputError for what is no plan.
    """
    if isinstance(plan, str):
        return GivenPlan([*plan.split(), *_settings(choices)], None, False)
    if plan is None or hasattr(plan, "items"):
        return _given_columns(_columns(plan), choices, job)
    if not isinstance(plan, Sequence) or not all(isinstance(setting, str) for setting in plan):
        raise _no_plan(plan)
    return GivenPlan([*plan, *_settings(choices)], None, False)


def _columns(plan: Any) -> dict[str, Any]:
    """Return a mapping or a row as a dict; a DataFrame is several rows."""
    if hasattr(plan, "iterrows"):
        raise InputError("a DataFrame has several plans: give one of its rows, as in frame.iloc[0]")
    return {str(name): value for name, value in plan.items()} if plan is not None else {}


def _given_columns(columns: dict[str, Any], choices: Mapping[str, Any], job: "Job") -> GivenPlan:
    _warn_of_another_job(columns, job)
    # A row that dsx made has further columns: tiers of its network, hardware that a sweep varied.
    made = "candidate" in columns
    chosen = {
        name: value for name, value in columns.items() if (name in _SETTABLE if made else name not in _NO_SETTINGS)
    }
    strategy, cut = columns.get("strategy"), columns.get(CUT.name)
    settings = _settings({**chosen, **choices})
    return GivenPlan(settings, None if strategy is None else str(strategy), isinstance(cut, str))


def _warn_of_another_job(columns: Mapping[str, Any], job: "Job") -> None:
    others = [name for name in _OF_THE_JOB if name in columns and columns[name] != getattr(job, name)]
    if others:
        stated = ", ".join(f"{name}={columns[name]}" for name in others)
        own = ", ".join(f"{name}={getattr(job, name)}" for name in others)
        warn(f"the plan is of a job with {stated}, and priced in this one, with {own}")


def _settings(columns: Mapping[str, Any]) -> list[str]:
    names = {name: f"nvs.{name.removesuffix('_nvs')}" if name.endswith("_nvs") else name for name in columns}
    return [f"{names[name]}={_text(value)}" for name, value in columns.items()]


def _text(value: Any) -> str:
    """Return a value as the shell takes it; a row of numbers alone has its whole ones as floats."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_text, value))
    return str(value)


def _no_plan(given: object) -> InputError:
    return InputError(
        f"{type(given).__name__} is no plan: give a text such as 'tp=8 dp=64', a mapping of columns, a Plan, "
        "or a row of a DataFrame"
    )
