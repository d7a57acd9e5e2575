"""A sweep file: which model on which cluster, in which part of the space, and what to keep.

Names in it are names or paths of model, cluster and assumption set; they are loaded by the caller, with
`near=sweep.file`. Not modelled yet: hardware what-ifs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator

from dsx.spec.column_names import CandidateColumn, Columns, NumberColumn
from dsx.spec.document import Document
from dsx.spec.keep import Keep, KeepPareto, KeepTop
from dsx.spec.load import Spec
from dsx.spec.locate import find_path
from dsx.spec.overrides import Assignment, override
from dsx.spec.quantities import Count, Positive
from dsx.spec.ranges import Choices, Limits, Sizes
from dsx.spec.validate import validate
from dsx.spec.yaml_text import load_document

# Candidate columns that a sweep states at top level; in `fix` they could contradict it.
_SETTINGS = ("num_gpus", "global_batch_size", "sequence_length", "strategy")


def _no_setting(name: str) -> str:
    if name in _SETTINGS:
        raise ValueError(f"{name!r} is a setting of the sweep: state it at top level")
    return name


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


class SweepSpec(Spec):
    """A sweep; made by `load_sweep` or `sweep_from_data`, which know the columns."""

    model: str
    cluster: str
    num_gpus: Sizes
    global_batch_size: Sizes  # sequences of one step
    sequence_length: Count | None = None  # tokens; the model's default where not given
    # The assumption set's default strategy where none is given.
    strategy: Annotated[list[str], BeforeValidator(_listed), AfterValidator(_once)] = Field(
        default_factory=list, min_length=1
    )
    fix: dict[Annotated[CandidateColumn, AfterValidator(_no_setting)], Choices] = Field(default_factory=dict)
    limit: dict[NumberColumn, Limits] = Field(default_factory=dict)
    train_tokens: Positive | None = None  # tokens of the whole training
    assumptions: str = "default"
    keep: Keep = KeepTop(top=10)
    precision: Literal["float32", "float64"] = "float32"

    _file: Path | None = PrivateAttr(default=None)

    @field_validator("keep")
    @classmethod
    def _has_numbers(cls, keep: Keep, info: ValidationInfo) -> Keep:
        days = isinstance(keep, KeepPareto) and any(name.removeprefix("-") == "training_days" for name in keep.pareto)
        if days and info.data.get("train_tokens") is None:
            raise ValueError("training_days is an objective only where the sweep gives train_tokens")
        return keep

    @property
    def file(self) -> Path | None:
        """The file that the sweep was read from; what it names is looked for beside it."""
        return self._file

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
    data: dict[str, Any], columns: Columns, overrides: Sequence[Assignment] = (), file: Path | None = None
) -> SweepSpec:
    """Return the sweep that plain `data` states, as if it had been read from `file`.

    Raises SpecError that lists all faults.
    """
    return _sweep(Document(data, {(): str(file) if file else "sweep"}), columns, overrides, file)


def _sweep(document: Document, columns: Columns, overrides: Sequence[Assignment], file: Path | None) -> SweepSpec:
    sweep = validate(override(document, overrides, "sweep", _may_add), SweepSpec, context=columns)
    sweep._file = file
    return sweep


def _may_add(path: tuple[str, ...]) -> bool:
    # The names behind fix and limit are columns, which the schema checks.
    of_columns = len(path) == 2 and path[0] in ("fix", "limit")
    return of_columns or (len(path) == 1 and path[0] in SweepSpec.model_fields)
