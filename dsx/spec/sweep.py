"""A sweep file: which model on which clusters, in which part of the space, and what to keep.

Names in it are names or paths of model, clusters and assumption set; they are loaded by the caller, with
`near=sweep.file`. Every cluster at every point of `what_if` is a hardware point; the candidates are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from dsx.spec.column_names import CandidateColumn, Columns, NumberColumn
from dsx.spec.document import Document, stated_in_code
from dsx.spec.keep import Keep, KeepPareto, KeepTop
from dsx.spec.load import Spec
from dsx.spec.locate import find_path
from dsx.spec.overrides import Assignment, override
from dsx.spec.plot import PlotSpec
from dsx.spec.points import WhatIfPoints, stated_fields
from dsx.spec.quantities import Count, Positive
from dsx.spec.ranges import Choices, Limits, Names, NamesOrDefault, Sizes
from dsx.spec.validate import validate
from dsx.spec.what_if import WhatIf, is_belief
from dsx.spec.yaml_text import load_document

# Columns that a sweep states at top level; in `fix` they could contradict it.
_SETTINGS = ("cluster", "num_gpus", "global_batch_size", "sequence_length", "strategy")

_DAYS = "training_days"


def _no_setting(name: str) -> str:
    if name in _SETTINGS:
        raise ValueError(f"{name!r} is a setting of the sweep: state it at top level")
    return name


class SweepSpec(Spec):
    """A sweep; made by `load_sweep` or `sweep_from_data`, which know the columns."""

    model: str
    cluster: Annotated[Names, Field(max_length=127)]  # a result set has a code of 8 bits for its cluster
    num_gpus: Sizes
    global_batch_size: Sizes  # sequences of one step
    sequence_length: Count | None = None  # tokens; the model's default where not given
    strategy: NamesOrDefault = Field(default_factory=list)  # none: the default of the assumption set
    fix: dict[Annotated[CandidateColumn, BeforeValidator(_no_setting)], Choices] = Field(default_factory=dict)
    limit: dict[NumberColumn, Limits] = Field(default_factory=dict)
    what_if: WhatIfPoints = WhatIf()
    train_tokens: Positive | None = None  # tokens of the whole training
    partition: Literal["even", "optimal"] = "even"  # of the layers into the stages of a pipeline
    operator_times: str | None = None  # a file of measured times of kernels
    assumptions: str = "default"
    keep: Keep = KeepTop(top=10)
    precision: Literal["float32", "float64"] = "float32"
    part_size: Count | None = None  # candidates that are priced for one part of the set
    plot: PlotSpec | None = None

    _file: Path | None = PrivateAttr(default=None)
    _document: Document = PrivateAttr(default=Document({}, {(): "sweep"}))

    @field_validator("keep")
    @classmethod
    def _has_numbers(cls, keep: Keep, info: ValidationInfo) -> Keep:
        days = isinstance(keep, KeepPareto) and any(name.removeprefix("-") == _DAYS for name in keep.pareto)
        if days and info.data.get("train_tokens") is None:
            raise ValueError(f"{_DAYS} is an objective only where the sweep gives train_tokens")
        return keep

    @field_validator("plot")
    @classmethod
    def _can_be_drawn(cls, plot: PlotSpec | None, info: ValidationInfo) -> PlotSpec | None:
        if plot is not None and _DAYS in plot.columns and info.data.get("train_tokens") is None:
            raise ValueError(f"{_DAYS} can be drawn only where the sweep gives train_tokens")
        return plot

    @field_validator("operator_times")
    @classmethod
    def _of_one_machine(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None:
            return None
        varied = [path for path in info.data.get("what_if", WhatIf()).fields if not is_belief(path)]
        if len(info.data.get("cluster", [])) > 1:
            varied = ["cluster"]
        if varied:
            raise ValueError(
                f"times are measured on one machine, and the sweep varies {varied[0]}: leave out either, or make a "
                "sweep for each machine with times of its own"
            )
        return name

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A result set is known by what its sweep states: one that states none of what came later stays what it was.
        later = {"operator_times": None, "partition": "even"}
        return {name: value for name, value in write(self).items() if name not in later or value != later[name]}

    @property
    def file(self) -> Path | None:
        """The file that the sweep was read from; what it names is looked for beside it."""
        return self._file

    def place(self, *path: str) -> str:
        """Return "file:line" of a part of the sweep, or the ``--set`` that states it."""
        return self._document.place(path)

    def __eq__(self, other: object) -> bool:
        """Return whether both state the same, wherever they were read from."""
        return isinstance(other, SweepSpec) and self.model_dump() == other.model_dump()


def load_sweep(path: str | Path, columns: Columns, overrides: Sequence[Assignment] = ()) -> SweepSpec:
    """Return the sweep in the file at `path`, with `overrides` set; `columns` are those it may mention.

    Raises SpecError for a file that cannot be read, or that lists all its faults.
    """
    file = find_path("sweep", str(path))
    return _sweep(load_document(file), columns, overrides, file)


def sweep_from_data(
    data: Mapping[str, Any], columns: Columns, overrides: Sequence[Assignment] = (), file: Path | None = None
) -> SweepSpec:
    """Return the sweep that `data` states, as if it had been read from `file`.

    Raises SpecError that lists all faults.
    """
    return _sweep(stated_in_code(data, str(file) if file else "sweep"), columns, overrides, file)


def _sweep(document: Document, columns: Columns, overrides: Sequence[Assignment], file: Path | None) -> SweepSpec:
    document = override(document, overrides, "sweep", _may_add)
    point = (*columns.point, *stated_fields(document.data.get("what_if")))
    sweep = validate(document, SweepSpec, context=replace(columns, point=point))
    sweep._file, sweep._document = file, document
    return sweep


def _may_add(path: tuple[str, ...]) -> bool:
    # What is behind fix, limit, what_if and plot is checked by the schema.
    inside = (len(path) == 2 and path[0] in ("fix", "limit", "plot")) or (len(path) > 1 and path[0] == "what_if")
    return inside or (len(path) == 1 and path[0] in SweepSpec.model_fields)
