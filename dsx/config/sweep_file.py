"""A sweep file: the model, the clusters, the searched part of the space, and the candidates to keep.

It names the model, the clusters and the assumption set, or their paths; the caller loads them with `near=sweep.file`.
Every cluster at every point of `what_if` is a hardware point; all of them have the same candidates. Each hardware point
has its own best and its own front, so clusters and what-ifs do not compete. `training_days` needs the tokens of the
training, `cost_usd` also the price of a GPU: a sweep states the tokens, a cluster file its price, power and failures.
`plot` does not affect the results; `dsx.pictures` knows which columns a kind of plot needs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dsx.config.cluster_file import ClusterSpec
from dsx.config.documents import Document, load_document, stated_in_code
from dsx.config.load import Assignment, override
from dsx.config.schema import Count, FileKind, Spec, Tokens, usually, validate
from dsx.config.search_path import find_path
from dsx.config.sweep_fields import (
    AxisColumn,
    CandidateColumn,
    Choices,
    ColumnLimits,
    Columns,
    GroupColumn,
    LeastCost,
    Names,
    NamesOrDefault,
    Objective,
    ResultColumn,
    Sizes,
    check_direction,
    contradiction,
    listed,
)
from dsx.config.what_if import WhatIf, WhatIfPoints, is_assumption, stated_fields
from dsx.errors import did_you_mean
from dsx.text import printable

FASTEST = "step_time_s"


class KeepTop(Spec):
    """The `top` candidates of smallest `objective` of each hardware point and group of equal `per` columns.

    `per` may also name columns of the hardware point, without effect.
    """

    top: Count
    objective: LeastCost = FASTEST
    per: list[GroupColumn] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _is_no_front(cls, data: object) -> object:
        if isinstance(data, dict) and "pareto" in data:
            raise ValueError("top and pareto exclude each other: keep the fastest candidates, or a front")
        return data


class KeepPareto(Spec):
    """The feasible candidates that no other one of their hardware point dominates in the `pareto` columns."""

    pareto: Annotated[list[Objective], Field(min_length=1)]


def _arm(value: object) -> str | None:
    match value:
        case str():
            return "<word>"
        case {"top": _} | KeepTop():
            return "<top>"
        case {"pareto": _} | KeepPareto():
            return "<pareto>"
        case _:
            return None


_WORDS = ("all", "feasible")
_FORMS = f"{', '.join(_WORDS)}, {{top: 10}} or {{pareto: [step_time_s, peak_bytes]}}"


def _word(word: str) -> str:
    if word not in _WORDS:
        raise ValueError(f"{word!r} is not one of {_FORMS}{did_you_mean(word, _WORDS)}")
    return word


Keep = Annotated[
    Annotated[Literal["all", "feasible"], BeforeValidator(_word), Tag("<word>")]
    | Annotated[KeepTop, Tag("<top>")]
    | Annotated[KeepPareto, Tag("<pareto>")],
    Discriminator(_arm, "keep", f"expected {_FORMS}"),
]


def objectives(keep: Keep) -> Sequence[str]:
    """Return the columns by which candidates are kept, of a front with their signs; none where all are."""
    match keep:
        case KeepTop(objective=objective):
            return (objective,)
        case KeepPareto(pareto=columns):
            return columns
        case _:
            return ()


PlotKind = Literal["breakdown", "scaling", "heatmap", "front"]


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text)]  # of a value: "8", "1f1b"


class PlotSpec(Spec):
    """A plot of a result set; columns are choices, costs, "cluster", or fields of what_if."""

    kind: PlotKind
    x: Annotated[list[AxisColumn], BeforeValidator(listed)] = Field(default_factory=list)
    y: AxisColumn | None = None
    value: ResultColumn | None = None  # the values of a heatmap's cells
    by: ResultColumn | None = None  # one line, or marker, for each of its values
    # What others are compared with: a value of `by`, as in the legend; on a front a plan, as in "tp=8 pp=16".
    baseline: Text | None = None
    where: dict[AxisColumn, Text] = Field(default_factory=dict)  # only rows with these values

    @property
    def columns(self) -> tuple[str, ...]:
        """All named columns, without the sign of an objective."""
        named = (*self.x, self.y, self.value, self.by, *self.where)
        return tuple(name.removeprefix("-") for name in named if name is not None)

    @field_validator("x", "y")
    @classmethod
    def _fronts_have_objectives_and_others_none(
        cls, names: list[str] | str | None, info: ValidationInfo[Columns | None]
    ) -> list[str] | str | None:
        for name in listed(names) or ():
            if info.data.get("kind", "front") == "front":
                check_direction(name, info.context.larger if info.context else ())
            elif name.startswith("-"):
                raise ValueError(f"{name!r} is an objective, which only a front has; write {name[1:]!r}")
        return names


_OF_CLUSTER = {
    "price": "price: give --set cluster.price='2.5 USD/h' (of one GPU), or 'price: 2.5 USD/h' in its file",
    "power": "power of its device: give --set cluster.device.power='700 W', or 'power: 700 W' in its file",
    "failures": (
        "failures: give --set cluster.failures='{mtbf: 50000 h, restart: 10 min, checkpoint: 1 min}' with your "
        "numbers, or 'failures:' in its file"
    ),
}


def without_tokens(columns: Iterable[str], known: Columns | None) -> str:
    """Return the first of some columns, or objectives, that needs `train_tokens`; empty if none of the `known` does."""
    names = (column.removeprefix("-") for column in columns)
    return next((name for name in names if known and "train_tokens" in known.needs.get(name, ())), "")


def missing_of_cluster(columns: Iterable[str], cluster: ClusterSpec, known: Columns) -> str:
    """Return what a cluster does not state and a column needs, with what to write; empty if it states all of it."""
    stated = {"price": cluster.price, "power": cluster.device.power, "failures": cluster.failures}
    for name in (column.removeprefix("-") for column in columns):
        for need in known.needs.get(name, ()):
            if need in stated and stated[need] is None:
                return f"{name} is asked for, and cluster {printable(cluster.name)!r} states no {_OF_CLUSTER[need]}"
    return ""


# Columns that a sweep states at top level, and that `fix` could contradict.
_SIZES = ("num_gpus", "global_batch_size")  # of a job, of which a sweep may list several
_SETTINGS = ("cluster", *_SIZES, "sequence_length", "strategy")


def _no_setting(name: str) -> str:
    if name in _SETTINGS:
        raise ValueError(f"{name!r} is a setting of the sweep: state it at top level")
    return name


class SweepSpec(Spec):
    """A sweep; `load_sweep` and `sweep_from_data`, which know the columns, create it."""

    file_kind = FileKind("sweep", "a sweep", "dsx sweep")
    open_keys = ("fix", "limit", "plot")  # whose keys the schema checks, as those of what_if

    model: str
    cluster: Annotated[Names, Field(max_length=127)]  # a result set codes its clusters in 8 bits
    num_gpus: Sizes
    global_batch_size: Sizes  # sequences of one step
    sequence_length: Count | None = None  # tokens; None: the model's default
    strategy: NamesOrDefault = Field(default_factory=list)  # empty: all that the framework runs
    framework: str | None = usually(None)  # its name or file; None: that of the assumption set
    fix: dict[Annotated[CandidateColumn, BeforeValidator(_no_setting)], Choices] = Field(default_factory=dict)
    limit: ColumnLimits = Field(default_factory=dict)
    what_if: WhatIfPoints = WhatIf()
    train_tokens: Tokens | None = None  # tokens of the whole training
    partition: Literal["even", "optimal"] = usually("even")  # of the layers into pipeline stages
    operator_times: str | None = usually(None)  # a file of measured kernel times
    assumptions: str = "default"
    keep: Keep = KeepTop(top=10)  # of each job, where the file does not say
    precision: Literal["float32", "float64"] = "float32"
    part_size: Count | None = None  # candidates per part of the result set
    plot: PlotSpec | None = None

    _file: Path | None = PrivateAttr(default=None)
    _document: Document = PrivateAttr(default=Document({}, {(): "sweep"}))

    @field_validator("keep")
    @classmethod
    def _has_numbers(cls, keep: Keep, info: ValidationInfo[Columns | None]) -> Keep:
        if (column := without_tokens(objectives(keep), info.context)) and info.data.get("train_tokens") is None:
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
    def _can_be_drawn(cls, plot: PlotSpec | None, info: ValidationInfo[Columns | None]) -> PlotSpec | None:
        if plot and (column := without_tokens(plot.columns, info.context)) and info.data.get("train_tokens") is None:
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

    @classmethod
    def may_add(cls, path: Sequence[str]) -> bool:
        """Return whether `--set` may add a path: a field of `what_if` has dots."""
        return super().may_add(path) or (len(path) > 1 and path[0] == "what_if")

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


def sweep_from_data(data: Mapping[str, object], columns: Columns, overrides: Sequence[Assignment] = ()) -> SweepSpec:
    """Return the sweep in plain `data`; raises SpecError with all faults."""
    return _sweep(stated_in_code(data, "sweep"), columns, overrides)


def _sweep(
    document: Document, columns: Columns, overrides: Sequence[Assignment], file: Path | None = None
) -> SweepSpec:
    document = override(document, overrides, SweepSpec)
    point = (*columns.point, *stated_fields(document.data.get("what_if")))
    sweep = validate(document, SweepSpec, context=replace(columns, point=point))
    if "keep" not in document.data:  # steps of jobs of other sizes do not compete
        several = [name for name in _SIZES if len(getattr(sweep, name)) > 1]
        sweep = sweep.model_copy(update={"keep": KeepTop(top=10, per=several)})
    sweep._file, sweep._document = file, document
    return sweep
