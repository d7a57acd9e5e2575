"""A plan as a Python argument: a text, settings, a mapping of columns, a `Plan`, or a row of a DataFrame."""

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dsx.api.foreign_words import check_words
from dsx.errors import InputError, PlanError
from dsx.remarks import warn
from dsx.results.schema import COLUMNS, CUT
from dsx.space.choices import SEARCHED_COLUMNS
from dsx.space.layer_layout import LAYOUT, predicts
from dsx.space.limits import DEGREES, EVEN, OPTIMAL
from dsx.space.plan_settings import SHARES, SIZES, setting_of
from dsx.spec.what_if import is_field

if TYPE_CHECKING:
    from dsx.api.job import Job


class Row(Protocol):
    """A row of a DataFrame, such as `frame.iloc[0]`."""

    def items(self) -> Iterable[tuple[Hashable, object]]:
        """Yield the columns with their values."""
        ...


PlanLike = str | Sequence[str] | Mapping[str, object] | Row

_SETTABLE = (*DEGREES, *SIZES, *(f"{axis}_nvs" for axis in DEGREES), *SEARCHED_COLUMNS)
_OF_THE_JOB = ("num_gpus", "global_batch_size", "sequence_length")
# Columns of a row that are no choices: those of its job and hardware, its costs, and derived ones.
_NO_SETTINGS = {column.name for column in (*COLUMNS, CUT)} - {*_SETTABLE}


class GivenPlan(NamedTuple):
    """A plan as settings, with its strategy and the layer layout that it was priced with."""

    settings: list[str]  # as the shell takes them: "tp=8", "nvs.tp=8"
    strategy: str | None  # None if the plan has none
    layout: str | None = None  # of a mapping or a row; None if it has none

    def cut(self, partition: str | None) -> tuple[list[str], str]:
        """Return the settings of a plan that is priced alone, and how searches of its job divide layers.

        The plan keeps its layout unless `partition` asks for another cut. Raises InputError if a setting states a
        layout and `partition` another cut.
        """
        stated = next((setting for setting in self.settings if setting.startswith(f"{LAYOUT}=")), None)
        if partition is not None:
            if stated is not None:
                raise InputError(f"{stated!r} states a layer layout, and partition {partition} another: leave out one")
            return self.settings, partition
        if stated is None and self.layout is None:
            return self.settings, EVEN
        return self.settings if stated else [*self.settings, f"{LAYOUT}={self.layout}"], OPTIMAL

    def of_job(self, job: "Job") -> "Job":
        """Return the job of the plan: a layout with a layer of multi-token prediction trains a model with one."""
        stated = next((one for one in self.settings if one.startswith(f"{LAYOUT}=")), "")
        if job.model.num_prediction_layers or not predicts(stated.removeprefix(f"{LAYOUT}=")):
            return job
        warn(
            f"the layout has m, a layer of multi-token prediction, so {job.model.name} is priced with one, as "
            "--set model.num_prediction_layers=1 has it"
        )
        return job.replace(set={"model.num_prediction_layers": 1})


def given_plan(plan: PlanLike | None, choices: Mapping[str, object], job: "Job") -> GivenPlan:
    """Return a plan with some `choices`, which override the same columns of a mapping or a row.

    Of a row only the choices are used. The job has the GPUs, the batch and the sequence length; a warning tells if the
    row is of another job. A column that is neither a choice nor one of a result stays among the settings, whose reader
    refuses it with the nearest that there is. Raises InputError for an argument that is not a plan, and for a
    value that means another thing in the software of the job.
    """
    if plan is None or hasattr(plan, "items"):
        columns = _columns(plan)
        # A plan of a search has the values of dsx.
        own = {} if columns.keys() & {*_OF_THE_JOB} else columns
        _check_words(_settings({**own, **choices}), job)
        return _given_columns(columns, choices, job)
    if not isinstance(plan, Sequence) or not all(isinstance(setting, str) for setting in plan):
        raise _no_plan(plan)
    words = plan.split() if isinstance(plan, str) else " ".join(plan).split()
    settings = [*words, *_settings(choices)]
    _check_words(settings, job)
    return GivenPlan(settings, None)


def _check_words(settings: Sequence[str], job: "Job") -> None:
    stated = {name: value for name, _, value in (setting.partition("=") for setting in settings)}
    check_words(stated, job.assumptions)


def _columns(plan: Any) -> dict[str, object]:
    """Return a mapping or a row as a dict; InputError for a DataFrame, which has several rows."""
    if hasattr(plan, "iterrows"):
        raise InputError("a DataFrame has several plans: give one of its rows, as in frame.iloc[0]")
    return {str(name): value for name, value in plan.items()} if plan is not None else {}


def _given_columns(columns: dict[str, object], choices: Mapping[str, object], job: "Job") -> GivenPlan:
    _warn_of_another_job(columns, job)
    chosen = {name: value for name, value in columns.items() if not _is_result(name, columns)}
    strategy, layout = columns.get("strategy"), columns.get(LAYOUT)
    settings = _settings({**chosen, **choices})
    # A row of a frame that mixes cuts has no text where its cut is even.
    has_layout = isinstance(layout, str | Sequence)
    return GivenPlan(
        settings, None if strategy is None else str(strategy), _text(LAYOUT, layout) if has_layout else None
    )


def _is_result(name: str, columns: Mapping[str, object]) -> bool:
    """Return whether a column is one that every result has, a number that a sweep varied, or a share of a tier."""
    if name in _NO_SETTINGS:
        return True
    if name in _SETTABLE or name in SHARES:
        return False
    if "." in name:
        return is_field(name)
    # A row has the shares of all axes on a tier of its network, or of none.
    axis, _, tier = name.partition("_")
    return axis in DEGREES and all(f"{other}_{tier}" in columns for other in DEGREES)


def _warn_of_another_job(columns: Mapping[str, object], job: "Job") -> None:
    others = [name for name in _OF_THE_JOB if name in columns and columns[name] != getattr(job, name)]
    if others:
        stated = ", ".join(f"{name}={columns[name]}" for name in others)
        own = ", ".join(f"{name}={getattr(job, name)}" for name in others)
        warn(f"the plan is of a job with {stated}, but it is priced for this one, with {own}")


def _settings(columns: Mapping[str, object]) -> list[str]:
    return [f"{setting_of(name)}={_text(name, value)}" for name, value in columns.items()]


def _text(name: str, value: object) -> str:
    """Return the value of a column as the shell takes it; a purely numeric row has its integers as floats."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bytes | bytearray):
        raise PlanError(f"{name}={value!r}: bytes are no value; give a number or a text, as in tp=8 recompute='full'")
    if isinstance(value, Set):
        value = sorted(value, key=str)  # in the same order every time
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_text(name, one) for one in value)
    return str(value)


def _no_plan(given: object) -> InputError:
    return InputError(
        f"{type(given).__name__} is not a plan: give a text such as 'tp=8 dp=64', a mapping of columns, a Plan, "
        "or a row of a DataFrame"
    )
