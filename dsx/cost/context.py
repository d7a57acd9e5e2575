"""What a price takes and returns: the assumption set, batches of plans, the cost columns of a step.

`dsx.config.assumption_set.AssumptionsSpec` documents each field of an assumption set under the same name: meaning, unit
and bounds. A new constant is a field there and a field here; the conversion uses the names.

If a search has only one value of a column (`dsx.plans.choices.Searched`), the formulas of the others are not compiled.

The record of the cost columns is the schema: Parquet, pandas, the command line and the documents use its units and
descriptions.

Effects that some plans lack: overlap that software gives to some plans only, graphs that it captures for some. A
condition of the shard key decides a parameter key by key, before a layer is priced. What a condition of the step
decides is not known then, so the passes of a layer are priced with the effect and, as `LayerCosts.without`, without
it; each plan has one of them. An effect never makes a plan slower, so a layer with all of them bounds the others.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args

import numpy as np

from dsx import arrays as xp
from dsx.arrays import Column, PerPlan
from dsx.config.assumption_set import AlgorithmsSpec, AssumptionsSpec, EffectsSpec
from dsx.config.cluster_file import Cluster
from dsx.config.stack import worse
from dsx.cost.stages import Stack
from dsx.plans.choices import SEARCHED_COLUMNS, STEP_COLUMNS
from dsx.plans.enumerate import SearchedCodes
from dsx.plans.violations import FieldCondition, Test, conditions_of
from dsx.records import Array, ArrayLike, Bool, column, leaves, make_record, record, static
from dsx.schedules.schedules import SCHEDULES, Schedule

BF16 = "bf16"  # the precision of multiplies that need no cast of their operands
SUSTAINED = "sustained"


# Beside the real numbers of an assumption set, which are all leaves: other leaves, and structure.
_FURTHER_LEAVES = ("weight_bytes", "gradient_bytes", "dispatcher")  # a dispatcher is its place in `alternatives`
_STRUCTURE = ("charge_replicated_gradients", "protocols", "algorithms", "linear_dtype", "matrix_ceiling")
_STRUCTURE += ("panel_overlap", "pipeline_sends", "optimizer", "tiles")

if TYPE_CHECKING:

    class Assumptions(AssumptionsSpec):
        """The fields of an assumption set that prices take, in SI units: leaves are floats, so they can be fitted."""

        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]
        dispatcher: ArrayLike = 0.0  # pyright: ignore[reportIncompatibleVariableOverride]
        algorithms: tuple[tuple[str, tuple[str, ...]], ...]  # pyright: ignore[reportIncompatibleVariableOverride]
        conditions: tuple[FieldCondition, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]

else:
    _fields = AssumptionsSpec.model_fields
    _numbers = [name for name, field in _fields.items() if field.annotation is float or name in _FURTHER_LEAVES]
    Assumptions = make_record(
        "Assumptions",
        __name__,
        [
            *((name, ArrayLike, dataclasses.field()) for name in _numbers),
            *((name, object, static()) for name in _STRUCTURE),
            ("conditions", tuple[FieldCondition, ...], static(default=())),  # of effects that not all plans have
        ],
    )


def assumptions_from_spec(spec: AssumptionsSpec, family: str | None = None) -> Assumptions:
    """Return the part of an assumption set that pricing uses: leaves as floats, structure as hashable values.

    The slowdown of kernels includes the effects of the set's stack and of a device family, `DeviceSpec.family`.
    """
    values: dict[str, Any] = {name: _hashable(getattr(spec, name)) for name in _STRUCTURE}
    for name in leaves(Assumptions):
        value = getattr(spec, name)
        values[name] = float(alternatives(name).index(value) if isinstance(value, str) else value)
    values["kernel_slowdown"] *= kernel_effect(spec.effects, spec.stack, family)
    return Assumptions(**values, conditions=conditions_of(spec))


def kernel_effect(effects: EffectsSpec, stack: str | None, family: str | None) -> float:
    """Return the factor on the time of kernels by the effects of a stack and of a device family."""
    return math.exp(effects.stack.get(stack or "", 0.0) + effects.generation.get(family or "", 0.0))


def alternatives(name: str) -> tuple[str, ...]:
    """Return the values of a field of an assumption set that is one of a few words, in the order of their numbers."""
    return get_args(AssumptionsSpec.model_fields[name].annotation)


def _hashable(value: object) -> object:
    if isinstance(value, AlgorithmsSpec):
        return tuple((kind.replace("_", "-"), tuple(names)) for kind, names in value)
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


if TYPE_CHECKING:

    @record
    class StepChoices:
        """The choices of N plans, one for each of `STEP_COLUMNS`: [N] floats, shaped to broadcast with the layer costs.

        Names are codes.
        """

        num_gpus: Column
        pp: Column
        dp: Column
        pp_nvs: Column
        dp_nvs: Column
        vpp: Column
        zero_stage: Column
        recompute: Column
        schedule: Column
        zero_replicas: Column
        stored_layers: Column
        offload: Column
        order: Column
        global_batch_size: Column
        num_microbatches: Column
        pp_outer: tuple[Column, ...] = ()  # stages in a unit of each tier between the fast domain and the outermost one
        dp_outer: tuple[Column, ...] = ()  # likewise replicas

else:
    _columns = [(name, Column, dataclasses.field()) for name in STEP_COLUMNS]
    _outer = [(name, tuple[Column, ...], dataclasses.field(default=())) for name in ("pp_outer", "dp_outer")]
    StepChoices = make_record("StepChoices", __name__, [*_columns, *_outer])


class PipelineChoices(NamedTuple):
    """The choices of N plans that the loosest bounds of their step times read; columns are as in StepChoices."""

    pp: Column
    vpp: Column
    num_microbatches: Column
    schedule: Column
    recompute: Column

    @classmethod
    def of(cls, columns: Mapping[str, np.ndarray]) -> "PipelineChoices":
        """Return the choices of integer columns."""
        return cls(*(columns[name].astype(np.float64) for name in cls._fields))


class StageChoices(NamedTuple):
    """The choices of N plans that the seconds and the memory of a stage read besides those of its layers."""

    pp: Column
    vpp: Column
    num_microbatches: Column
    schedule: Column
    offload: Column

    @classmethod
    def of(cls, choices: StepChoices) -> "StageChoices":
        """Return those of all choices."""
        return cls(*(getattr(choices, name) for name in cls._fields))


def pick(values: tuple[int, ...], column: PerPlan, options: Sequence[PerPlan] | Mapping[int, PerPlan]) -> PerPlan:
    """Return `options[column]`, for a `column` that has only `values`."""
    first, *further = values
    chosen = options[first]
    for value in further:
        chosen = xp.where(column == value, options[value], chosen)
    return chosen


@dataclass(frozen=True)
class ChosenPlans:
    """The choices of N plans, and the values that their search may take."""

    choices: StepChoices | StageChoices | PipelineChoices
    searched: SearchedCodes

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules of the search."""
        return [SCHEDULES[code] for code in self.searched.schedule]

    @property
    def interleaved(self) -> bool:
        """Whether stages of some plans may have several chunks."""
        return self.searched.vpp != (1,)

    def by_code(self, column: str, value: Callable[[int], PerPlan]) -> PerPlan:
        """Return for each plan the value of the code that it has in a searched column."""
        codes: tuple[int, ...] = getattr(self.searched, column)
        return pick(codes, getattr(self.choices, column), {code: value(code) for code in codes})

    def by_schedule(self, value: Callable[[Schedule], PerPlan]) -> PerPlan:
        """Return for each plan the value of its schedule."""
        return self.by_code("schedule", lambda code: value(SCHEDULES[code]))

    def scheduled(self, holds: Callable[[Schedule], bool]) -> Bool[Array, "*#plans"] | None:
        """Return which plans have a schedule that satisfies a predicate; None if no schedule of the search does."""
        has = [self.choices.schedule == code for code in self.searched.schedule if holds(SCHEDULES[code])]
        return functools.reduce(xp.maximum, has) if has else None

    def pipelines(self, holds: Callable[[Schedule], bool]) -> Bool[Array, "*#plans"] | None:
        """Return which plans of several stages have such a schedule; None if no schedule of the search is one."""
        has = self.scheduled(holds)
        return None if has is None else (self.choices.pp > 1.0) & has


@dataclass(frozen=True)
class StepPlans(ChosenPlans):
    """A batch of plans with what a step of each is priced from, besides the costs of its layers."""

    choices: StepChoices
    stack: Stack
    cluster: Cluster
    assumptions: Assumptions

    def overlap(self, field: str) -> PerPlan:
        """Return an overlap that a step takes and no layer, as plans have it.

        It is the number 0.0 if no plan of the search can have any.
        """
        value = getattr(self.assumptions, field)
        for condition in of_steps(self.assumptions.conditions, self.searched):
            if condition.field == field:
                if () in condition.needs and condition.otherwise == 0.0:
                    return 0.0
                held = condition.holds({name: getattr(self.choices, name) for name in condition.columns})
                value = xp.where(held, value, _without(condition, value))
        return value


@record
class StepCosts:
    """Cost of one optimizer step of N candidates; every field is an [N] array (or a scalar)."""

    compute_s: Column = column("s", "kernels at their FLOP/s bound, launches included", positive=True)
    memory_s: Column = column("s", "memory time that compute does not hide, of kernels and of offloaded activations")
    tp_comm_s: Column = column("s", "exposed communication of both tensor parallel axes")
    cp_comm_s: Column = column("s", "exposed communication of the context parallel axis")
    ep_comm_s: Column = column("s", "exposed communication of the expert parallel axis")
    pp_comm_s: Column = column("s", "sending activations and their gradients between stages")
    dp_comm_s: Column = column("s", "exposed reduction of gradients and gathering of weights, once a step")
    bubble_s: Column = column("s", "pipeline fill and drain, and stalls for the slowest stage")
    recompute_s: Column = column("s", "recomputing activations for the backward")
    optimizer_s: Column = column("s", "the optimizer's update")
    step_time_s: Column = column("s", "one optimizer step: the sum of the time parts", positive=True)
    weight_bytes: Column = column("bytes", "weights on the worst stage's GPU")
    gradient_bytes: Column = column("bytes", "gradients on the worst stage's GPU")
    optimizer_bytes: Column = column("bytes", "optimizer state on the worst stage's GPU")
    activation_bytes: Column = column("bytes", "saved activations of all microbatches in flight")
    overhead_bytes: Column = column("bytes", "memory that the framework adds to that of the model")
    peak_bytes: Column = column("bytes", "memory of the worst stage's GPU: the sum of the memory parts", positive=True)
    host_bytes: Column = column(
        "bytes", "memory of the host that the GPU of a stage needs, of the stage that needs most, for what is offloaded"
    )
    mfu: Column = column(
        "",
        "model FLOPs utilisation: the model's FLOPs over what the GPUs could do in the step",
        larger_is_better=True,
        positive=True,
    )
    tokens_per_s: Column = column(
        "1/s", "tokens trained per second by the whole job", larger_is_better=True, positive=True
    )
    tokens_per_s_per_gpu: Column = column(
        "1/s", "tokens trained per second by each GPU", larger_is_better=True, positive=True
    )
    goodput: Column = column(
        "",
        "share of a long run that is not lost to failures; NaN where no failures are stated",
        larger_is_better=True,
        needs=("failures",),
    )
    training_days: Column = column(
        "days",
        "days to train `train_tokens` tokens, failures included; NaN where not given",
        positive=True,
        needs=("train_tokens",),
    )
    gpu_hours: Column = column(
        "h", "GPU hours of these days; NaN without `train_tokens`", positive=True, needs=("train_tokens",)
    )
    cost_usd: Column = column(
        "USD",
        "GPU hours at the price of the cluster; NaN where it states none",
        positive=True,
        needs=("train_tokens", "price"),
    )
    energy_kwh: Column = column(
        "kWh",
        "energy that the site draws for these GPU hours; NaN where no power is stated",
        positive=True,
        needs=("train_tokens", "power"),
    )


OF_STEP = ("pp_overlap", "dp_overlap")  # that no layer takes: `StepPlans.overlap`
Fields = tuple[str, ...]  # of an assumption set, whose effects a plan lacks


def of_keys(assumptions: Assumptions, columns: Mapping[str, Any], ones: PerPlan) -> Assumptions:
    """Return parameters with the effects of shard keys, [U] where they depend on the key.

    `columns` has those of the axes that divide the layer; of the others a key has `one`, 1.0 by key.
    """
    changed: dict[str, PerPlan] = {}
    for condition in assumptions.conditions:
        if condition.of_keys:
            held = condition.holds({name: columns.get(name, ones) for name in condition.columns})
            value = getattr(assumptions, condition.field)
            changed[condition.field] = xp.where(held, value, _without(condition, value))
    return replace(assumptions, **changed)


def without(assumptions: Assumptions, fields: Fields) -> Assumptions:
    """Return parameters without some effects."""
    conditions = [condition for condition in assumptions.conditions if condition.field in fields]
    return replace(
        assumptions,
        **{condition.field: _without(condition, getattr(assumptions, condition.field)) for condition in conditions},
    )


def of_plan(assumptions: Assumptions, plan: Mapping[str, int]) -> Assumptions:
    """Return parameters without the effects that conditions of the step deny to one plan; names in it are codes."""
    steps = [condition for condition in assumptions.conditions if not condition.of_keys]
    return without(assumptions, tuple(condition.field for condition in steps if not condition.holds(plan)))


def _without(condition: FieldCondition, value: PerPlan) -> PerPlan:
    return worse(condition.field, value, xp.full_like(value, condition.otherwise), xp.minimum, xp.maximum)


def of_steps(conditions: Sequence[FieldCondition], searched: SearchedCodes) -> tuple[FieldCondition, ...]:
    """Return the conditions that some plans of a search may not meet, without what its searched values decide."""
    narrowed = (_narrowed(condition, searched) for condition in conditions if not condition.of_keys)
    return tuple(condition for condition in narrowed if condition.needs)


def _narrowed(condition: FieldCondition, searched: SearchedCodes) -> FieldCondition:
    needs: list[tuple[Test, ...]] = []
    for need in condition.needs:
        tests: list[Test] = []
        for test in need:
            codes = getattr(searched, test.column) if test.column in SEARCHED_COLUMNS else ()
            if not codes or isinstance(test.bound, str):
                tests.append(test)
                continue
            held = tuple(code for code in codes if test.holds({test.column: code}))
            if len(held) == len(codes):
                break
            tests += [Test(test.column, "in", held)] if held else []
        else:
            needs.append(tuple(tests))
    return replace(condition, needs=tuple(needs))


def lacked(conditions: Sequence[FieldCondition], fields: Sequence[str]) -> tuple[Fields, ...]:
    """Return the sets of effects of `fields` that plans may lack together, by conditions of the step."""
    names = [condition.field for condition in conditions if condition.field in fields]
    return tuple(together for size in range(1, len(names) + 1) for together in combinations(names, size))


def of_plans(
    sets: Sequence[Fields], conditions: Sequence[FieldCondition], columns: Mapping[str, Any]
) -> Callable[[Sequence[Column]], Column]:
    """Return what chooses the value of each plan: of values with all effects first, then without each of `sets`.

    `columns` has the choices of the step, names as codes.
    """
    names = {name for together in sets for name in together}
    holds = {condition.field: condition.holds(columns) for condition in conditions if condition.field in names}
    lacking = [
        functools.reduce(
            operator.and_, [xp.logical_not(held) if name in together else held for name, held in holds.items()]
        )
        for together in sets
    ]

    def chosen(values: Sequence[Column]) -> Column:
        value, *lacking_values = values
        for lacks, lacking_value in zip(lacking, lacking_values, strict=True):
            value = xp.where(lacks, lacking_value, value)
        return value

    return chosen
