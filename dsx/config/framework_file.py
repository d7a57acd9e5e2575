"""A framework: the plans that a training framework runs, as boxes of strategies and choices.

A box has strategies, values of choices (`fix`) and bounds on them (`limit`), in the grammar of a sweep. A framework
runs a plan that is in any of its boxes. What a file states beside its list of boxes holds for every box. So do its
`needs`, in the grammar of `dsx.config.stack`: a box is split into one for each comparison of which one must hold.

Its plans are priced as it runs them: with the stack that it names, and with the fields of an assumption set that it
can have no other way (`assume`), which win over those of any stack.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, field_validator

from dsx.config.assumption_set import Optimizer
from dsx.config.documents import Document, Plain, merged
from dsx.config.load import Given, statements
from dsx.config.schema import FileKind, Sourced, Spec, validate
from dsx.config.search_path import names
from dsx.config.stack import Need, Needs
from dsx.config.sweep_fields import (
    Choices,
    ColumnLimit,
    Limit,
    Names,
    PlanLimit,
    PlanLimits,
    ProductLimit,
    Relation,
    check_number,
    divisors_of,
)
from dsx.errors import did_you_mean

ANY_LAYER = "any"  # in place of an option of layers
MOST_BOXES = 32  # each is a bit of an integer in a search


@dataclass(frozen=True)
class FrameworkColumns:
    """What a framework file may mention; the validation context of a framework."""

    choices: tuple[str, ...]  # columns that a box may restrict
    job: tuple[str, ...]  # columns of the job, which no framework restricts
    named: tuple[str, ...]  # choices with named values


def _column(name: str, info: ValidationInfo[FrameworkColumns | None]) -> str:
    columns = info.context
    if columns is None or name in columns.choices:
        return name
    if name in columns.job:
        raise ValueError(f"{name!r} belongs to the job; expected a choice of the plan, such as 'zero_stage'")
    raise ValueError(f"unknown column {name!r}{did_you_mean(name, columns.choices)}")


Column = Annotated[str, AfterValidator(_column)]
NumberColumn = Annotated[Column, AfterValidator(check_number)]


class BoxSpec(Spec):
    """Plans that a framework runs: every combination of some strategies and choices."""

    strategy: Names | None = None  # None: those of the framework
    optimizers: list[Optimizer] | None = None  # None: those of the framework
    fix: dict[Column, Choices] = Field(default_factory=dict)
    limit: dict[NumberColumn, PlanLimits] = Field(default_factory=dict)
    source: str | None = None


class OnGenerationSpec(Spec):
    """What differs of a framework on devices of one generation, which lack what it is usually built on."""

    without: str  # what they lack
    source: str
    assume: dict[str, Plain] = Field(default_factory=dict)  # as that of the framework, over which it wins
    fix: dict[Column, Choices] = Field(default_factory=dict)  # values that every box is limited to


class FrameworkSpec(Spec):
    """A framework; `load_framework` creates it."""

    file_kind = FileKind("framework", "a framework", "--framework", "frameworks")
    keys_of_file = ("extends",)

    name: str
    description: str
    source: str
    stack: Annotated[str | None, Sourced] = None  # that its plans are priced with; None: that of the assumption set
    assume: dict[str, Plain] = Field(default_factory=dict)  # field of an assumption set -> its value, with its source
    flags: str | None = None  # the launch files whose words state its settings; None: those of the usual ones
    strategy: Names | None = None  # None: every strategy
    # Optimizers of the matrices of the body that it has, `optimizer` of an assumption set.
    optimizers: list[Optimizer] = Field(default_factory=lambda: ["adam"])
    without_experts: list[str] = Field(default_factory=list)  # strategies that only models without experts can have
    fix: dict[Column, Choices] = Field(default_factory=dict)
    limit: dict[NumberColumn, PlanLimits] = Field(default_factory=dict)
    with_tied_head: dict[Column, Choices] = Field(default_factory=dict)  # values that only such models are limited to
    # Regions of layers that it recomputes only in models whose layers have some other regions too.
    recomputed_beside: dict[str, list[str]] = Field(default_factory=dict)
    # Kinds of exchanges over cp, by an option of layers beside which it has no others; `any`: in all layers.
    cp_exchanges: dict[str, list[str]] = Field(default_factory=dict)
    on_generation: dict[str, OnGenerationSpec] = Field(default_factory=dict)  # by the family of devices
    # Equal parts of a sequence that each rank of cp holds; None: cp divides sequences of any length.
    cp_parts: Annotated[int, Field(ge=1)] | None = None
    # Strategies whose ranks of tp hold equal parts of each of these parts.
    tp_parts: list[str] = Field(default_factory=list)
    needs: Needs = Field(default_factory=list)  # of every plan: columns compared with numbers and with each other
    runs: Annotated[list[BoxSpec], Field(min_length=1, max_length=MOST_BOXES)]

    _document: Document = PrivateAttr(default=Document({}, {(): "framework"}))

    @field_validator("without_experts")
    @classmethod
    def _listed(cls, strategies: list[str], info: ValidationInfo) -> list[str]:
        for name in strategies:
            if name not in (listed := info.data.get("strategy") or []):
                raise ValueError(f"{name!r} is not among the strategies that are listed{did_you_mean(name, listed)}")
        return strategies

    @field_validator("runs")
    @classmethod
    def _stated_once(cls, runs: list[BoxSpec], info: ValidationInfo) -> list[BoxSpec]:
        ways = math.prod(sum(1 + (part.relation == "!=") for part in need) for need in info.data.get("needs", ()))
        if len(runs) * ways > MOST_BOXES:
            raise ValueError(f"{len(runs)} boxes with {ways} ways to meet needs are more than {MOST_BOXES}")
        for section in ("fix", "limit"):
            for box in runs:
                for column in getattr(box, section).keys() & info.data.get(section, {}).keys():
                    raise ValueError(f"{section} states {column!r} for all boxes, and one of them states it again")
        return runs

    def boxes(self, experts: bool) -> tuple[BoxSpec, ...]:
        """Return the boxes for models with or without experts, each with what the framework states for all of them."""
        boxes: list[BoxSpec] = []
        for box in self.runs:
            strategy = self._strategies_of(box)
            if experts and strategy is not None:
                strategy = [name for name in strategy if name not in self.without_experts]
            shared = {"strategy": strategy, "fix": self.fix | box.fix}
            for way in itertools.product(*map(_bounds, self.needs)):  # one bound of each need
                limit = self.limit | box.limit
                for column, bound in way:
                    limit = _limited(limit, column, bound)
                boxes.append(box.model_copy(update=shared | {"limit": limit}))
        return tuple(boxes)

    def _strategies_of(self, box: BoxSpec) -> list[str] | None:
        return self.strategy if box.strategy is None else box.strategy

    def _fixing(self, fix: dict[str, list[int | str]]) -> "FrameworkSpec":
        """Return the framework with boxes that are limited to values of some columns."""
        boxes = [box.model_copy(update={"fix": box.fix | fix}) for box in self.runs]
        return self.model_copy(update={"runs": boxes})

    def of_sequence(self, length: int) -> "FrameworkSpec":
        """Return the framework for sequences of so many tokens, whose cp shares out equal parts, `cp_parts` a rank."""
        if self.cp_parts is None or "cp" in self.fix:
            return self
        of_part, remainder = divmod(length, self.cp_parts)
        degrees = [1] if remainder else divisors_of(of_part)
        runs = [part for box in self.runs for part in self._of_equal_parts(box, length)] if self.tp_parts else self.runs
        return self.model_copy(update={"fix": self.fix | {"cp": degrees}, "runs": runs})

    def _of_equal_parts(self, box: BoxSpec, length: int) -> Iterator[BoxSpec]:
        """Yield a box for each rule of what tp divides: the sequence, the parts that ranks of cp hold, or nothing."""
        strategies = self._strategies_of(box) or []
        divided = [name for name in strategies if name in self.tp_parts]
        for cp, parts in ((Limit("==", 1), 1), (Limit(">", 1), self.cp_parts or 1)) if divided else ():
            limit = _limited(_limited(box.limit, "cp", cp), "tp", ProductLimit("cp", length // parts))
            yield box.model_copy(update={"strategy": divided, "limit": limit})
        if undivided := [name for name in strategies if name not in self.tp_parts]:
            yield box.model_copy(update={"strategy": undivided})

    def without_cp(self, strategies: Collection[str]) -> "FrameworkSpec":
        """Return the framework without context parallelism under some strategies."""
        runs: list[BoxSpec] = []
        for box in self.runs:
            of_box = self._strategies_of(box) or []
            without = {"strategy": [name for name in of_box if name in strategies], "fix": box.fix | {"cp": [1]}}
            remaining = {"strategy": [name for name in of_box if name not in strategies]}
            parts = [box.model_copy(update=without), box.model_copy(update=remaining)]
            runs += parts if without["strategy"] else [box]
        return self.model_copy(update={"runs": [box for box in runs if box.strategy != []]})

    def of_head(self, tied: bool) -> "FrameworkSpec":
        """Return the framework for models whose head is tied to the embedding, or is not."""
        return self._fixing(self.with_tied_head) if tied and self.with_tied_head else self

    def on(self, generation: str | None) -> "FrameworkSpec":
        """Return the framework on devices of a generation; None: of one without anything of its own."""
        changes = self.on_generation.get(generation or "")
        if changes is None:
            return self
        framework = self._fixing(changes.fix).model_copy(update={"assume": self.assume | changes.assume})
        inner = self._document.inside("on_generation", generation or "").places
        framework._document = Document(self._document.data, self._document.places | inner)
        return framework

    def with_optimizer(self, optimizer: Optimizer) -> "FrameworkSpec":
        """Return the framework with the boxes that have an optimizer; there may be none."""
        with_it = [box for box in self.runs if optimizer in (box.optimizers or self.optimizers)]
        return self.model_copy(update={"runs": with_it})

    def strategies(self, experts: bool) -> tuple[str, ...] | None:
        """Return the strategies that it runs on models with or without experts; None if it runs every strategy."""
        of_boxes = [box.strategy for box in self.boxes(experts)]
        return None if None in of_boxes else tuple(dict.fromkeys(name for of_box in of_boxes for name in of_box or ()))

    @property
    def fields(self) -> Document:
        """The fields of an assumption set that it states, with their places."""
        inner = self._document.inside("assume").places
        return Document(dict(self.assume), {(): f"framework {self.name!r}"} | inner)

    @property
    def unlimited(self) -> bool:
        """Whether a box has every plan."""
        return any(box.strategy is None and not (box.fix or box.limit) for box in self.boxes(experts=True))

    def runs_strategy(self, name: str, experts: bool) -> bool:
        """Return whether it runs a strategy on models with or without experts."""
        strategies = self.strategies(experts)
        return strategies is None or name in strategies

    def place(self, *path: str | int) -> str:
        """Return "file:line" of a part of the framework."""
        return self._document.place(path)


def _bounds(need: Need) -> list[tuple[str, Limit | ColumnLimit]]:
    """Return the bounds of columns of which one must hold; a number that a column is not is below or above it."""
    bounds: list[tuple[str, Limit | ColumnLimit]] = []
    for comparison in need:
        (bound,), relation = comparison.with_what, comparison.relation
        for side in ("<", ">") if relation == "!=" else (cast("Relation", relation),):
            bounds.append(
                (comparison.column, Limit(side, int(bound)) if bound.isdecimal() else ColumnLimit(side, bound))
            )
    return bounds


def _limited(limit: dict[str, list[PlanLimit]], column: str, bound: PlanLimit) -> dict[str, list[PlanLimit]]:
    return limit | {column: [*limit.get(column, ()), bound]}


def load_framework(
    reference: Given, columns: FrameworkColumns | None = None, near: Path | None = None
) -> FrameworkSpec:
    """Return a framework, given by name, path or content; `near` is the file that mentions it.

    Raises UnknownNameError, or SpecError with all faults of the file.
    """
    document = merged(statements(FrameworkSpec, reference, near))
    spec = validate(document, FrameworkSpec, context=columns)
    spec._document = document
    return spec


def framework_names() -> Sequence[str]:
    """Return the sorted names of the frameworks in the search path."""
    return names("frameworks", ".yaml")
