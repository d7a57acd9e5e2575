"""A sweep file: the model, the clusters, the searched part of the space, and the candidates to keep.

It names the model, the clusters and the assumption set, or their paths; the caller loads them with `near=sweep.file`.
Every cluster at every point of `what_if` is a hardware point; all of them have the same candidates.
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

from dsx.spec.column_limits import ColumnLimits, contradiction
from dsx.spec.column_names import CandidateColumn, Columns
from dsx.spec.document import Document, stated_in_code
from dsx.spec.keep import Keep, KeepTop, objectives
from dsx.spec.load import Spec
from dsx.spec.locate import find_path
from dsx.spec.overrides import Assignment, override
from dsx.spec.plot_spec import PlotSpec
from dsx.spec.points import WhatIfPoints, stated_fields
from dsx.spec.ranges import Choices, Names, NamesOrDefault, Sizes
from dsx.spec.run_columns import without_tokens
from dsx.spec.validated import validate
from dsx.spec.value_types import Count, Tokens
from dsx.spec.what_if import WhatIf, is_assumption
from dsx.spec.yaml_text import load_document

# Columns that a sweep states at top level, and that `fix` could contradict.
_SIZES = ("num_gpus", "global_batch_size")  # of a job, of which a sweep may list several
_SETTINGS = ("cluster", *_SIZES, "sequence_length", "strategy")


def _no_setting(name: str) -> str:
    if name in _SETTINGS:
        raise ValueError(f"{name!r} is a setting of the sweep: state it at top level")
    return name


class SweepSpec(Spec):
    """A sweep; `load_sweep` and `sweep_from_data`, which know the columns, create it."""

    model: str
    cluster: Annotated[Names, Field(max_length=127)]  # a result set codes its clusters in 8 bits
    num_gpus: Sizes
    global_batch_size: Sizes  # sequences of one step
    sequence_length: Count | None = None  # tokens; None: the model's default
    strategy: NamesOrDefault = Field(default_factory=list)  # empty: all that the framework runs
    framework: str | None = None  # its name or file; None: that of the assumption set
    fix: dict[Annotated[CandidateColumn, BeforeValidator(_no_setting)], Choices] = Field(default_factory=dict)
    limit: ColumnLimits = Field(default_factory=dict)
    what_if: WhatIfPoints = WhatIf()
    train_tokens: Tokens | None = None  # tokens of the whole training
    partition: Literal["even", "optimal"] = "even"  # of the layers into pipeline stages
    operator_times: str | None = None  # a file of measured kernel times
    assumptions: str = "default"
    keep: Keep = KeepTop(top=10)  # of each job, where the file does not say
    precision: Literal["float32", "float64"] = "float32"
    part_size: Count | None = None  # candidates per part of the result set
    plot: PlotSpec | None = None

    _file: Path | None = PrivateAttr(default=None)
    _document: Document = PrivateAttr(default=Document({}, {(): "sweep"}))

    @field_validator("keep")
    @classmethod
    def _has_numbers(cls, keep: Keep, info: ValidationInfo) -> Keep:
        if (column := without_tokens(objectives(keep))) and info.data.get("train_tokens") is None:
            raise ValueError(f"{column} can be an objective only if the sweep states train_tokens")
        return keep

    @field_validator("limit")
    @classmethod
    def _leaves_values(cls, limit: ColumnLimits, info: ValidationInfo) -> ColumnLimits:
        for column, bounds in limit.items():
            if fault := contradiction(column, bounds, info.data.get("fix", {}).get(column, ())):
                raise ValueError(fault)
        return limit

    @field_validator("plot")
    @classmethod
    def _can_be_drawn(cls, plot: PlotSpec | None, info: ValidationInfo) -> PlotSpec | None:
        if plot and (column := without_tokens(plot.columns)) and info.data.get("train_tokens") is None:
            raise ValueError(f"{column} can be drawn only if the sweep states train_tokens")
        return plot

    @field_validator("operator_times")
    @classmethod
    def _of_one_machine(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None:
            return None
        varied = [path for path in info.data.get("what_if", WhatIf()).fields if not is_assumption(path)]
        if len(info.data.get("cluster", [])) > 1:
            varied = ["cluster"]
        if varied:
            raise ValueError(
                f"times are measured on one machine, but the sweep varies {varied[0]}: leave out one of the two, or "
                "write a sweep for each machine with its own times"
            )
        return name

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Result sets are identified by a hash of their sweep, which fields added later must not change by default.
        later = {"operator_times": None, "partition": "even", "framework": None}
        return {name: value for name, value in write(self).items() if name not in later or value != later[name]}

    @property
    def file(self) -> Path | None:
        """The file of the sweep; the names in it are searched from its folder."""
        return self._file

    def place(self, *path: str) -> str:
        """Return "file:line" of a part of the sweep, or the ``--set`` that sets it."""
        return self._document.place(path)

    def __eq__(self, other: object) -> bool:
        """Return whether both state the same, whatever their files."""
        return isinstance(other, SweepSpec) and self.model_dump() == other.model_dump()


def load_sweep(path: str | Path, columns: Columns, overrides: Sequence[Assignment] = ()) -> SweepSpec:
    """Return the sweep in the file at `path`, with `overrides` set; `columns` are the ones that it may mention.

    Raises SpecError for a file that cannot be read, or with all faults of the file.
    """
    file = find_path("sweep", str(path))
    return _sweep(load_document(file), columns, overrides, file)


def sweep_from_data(
    data: Mapping[str, Any], columns: Columns, overrides: Sequence[Assignment] = (), file: Path | None = None
) -> SweepSpec:
    """Return the sweep in plain `data`, whose names are searched from the folder of `file`.

    Raises SpecError with all faults.
    """
    return _sweep(stated_in_code(data, str(file) if file else "sweep"), columns, overrides, file)


def _sweep(document: Document, columns: Columns, overrides: Sequence[Assignment], file: Path | None) -> SweepSpec:
    document = override(document, overrides, "sweep", [(name,) for name in SweepSpec.model_fields], _may_add)
    point = (*columns.point, *stated_fields(document.data.get("what_if")))
    sweep = validate(document, SweepSpec, context=replace(columns, point=point))
    if "keep" not in document.data:  # steps of jobs of other sizes do not compete
        several = [name for name in _SIZES if len(getattr(sweep, name)) > 1]
        sweep = sweep.model_copy(update={"keep": KeepTop(top=10, per=several)})
    sweep._file, sweep._document = file, document
    return sweep


def _may_add(path: tuple[str, ...]) -> bool:
    # The schema checks the keys inside fix, limit, what_if and plot.
    return (len(path) == 2 and path[0] in ("fix", "limit", "plot")) or (len(path) > 1 and path[0] == "what_if")
