"""Measured setups priced by the cost model of the searches, and the rows of a run table beside these predictions.

Setups of one structure are priced together. They share a structure if their layers have the same definitions under the
same strategy, and their machines the same kind of network. The strategy of a run is the simplest packaged one that
divides what the run divides. Each setup has its own model and machine: sizes, counts, hardware and choices are arrays
over the setups of a batch.

The peak memory of a plan has three layers; tools count one, two or all of them. Tensors: weights, gradients, optimizer
state, activations. The framework's caching allocator holds them and free blocks that fit no new tensor
(`fragmentation`). The driver counts these, and what is outside of the allocator: the device context, and buffers of the
collective library (`overhead`).

A missing `recompute` is filled with the least that lets the run fit in memory, since a measured run did fit. Where it
does not fit without recomputation, it must have recomputed: selectively, one region of its layers
(`dsx.plans.choices`), or all of them. Of the values under which it fits the fastest is taken, since that is what its
authors would have chosen; if none fits, the one that needs least memory. Combinations of regions, and recomputation of
only some layers, are not tried: a table that states less than this cannot distinguish them.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np

from dsx.arrays import PerPlan, PlanFloats, PlanInts
from dsx.config.assumption_set import AssumptionsSpec, TrainedOnSpec
from dsx.config.cluster_file import Cluster, anonymous, cluster_from_spec
from dsx.config.model_file import has_experts
from dsx.cost.context import Assumptions, StepChoices, StepCosts, assumptions_from_spec
from dsx.cost.interval import Likeness, PlanFacts, likeness, plan_facts, sources_like, step_interval, thinness, unlike
from dsx.cost.layer import layer_costs
from dsx.cost.layer_work import OF_WORK, LayerWork, layer_work
from dsx.cost.recomputation import modes_of
from dsx.cost.step import Workload
from dsx.errors import NotationError
from dsx.notation.expressions import evaluate, names
from dsx.notation.library import strategy_names
from dsx.notation.model import Model, build_model, counted, unsharded
from dsx.notation.work import FORWARD
from dsx.plans.choices import CHOICES, MAIN, NONE, REGION_NAMES, value_of
from dsx.plans.enumerate import Arrays, searched_values
from dsx.plans.experts import nests, share_of_shares
from dsx.plans.layer_layout import LAYOUT
from dsx.plans.placement import key_shares, units
from dsx.plans.plan import stacked
from dsx.plans.violations import divided_away, for_plan, on_platform, rule_values
from dsx.pricing.cuts import boundaries_of
from dsx.pricing.problem import Plans, pad, stack_of
from dsx.pricing.problem import price as price_plans
from dsx.pricing.row_costs import PlanCosts, on_units, step_choices
from dsx.records import Float, Over, tree_map
from dsx.runs.setups import ALLOCATED, DEVICE, RESERVED, Setup, Setups, measured_bytes, measured_step_time
from dsx.runs.table import FURTHER, MeasuredRun, UnmodelledReason

V = TypeVar("V")

# Choices that few rows state; if no row of a batch does, their formulas are not compiled. Recipes set stored_layers.
_RARE = tuple(name for name in FURTHER if name != "stored_layers")


def counted_memory(costs: StepCosts, assumptions: Assumptions) -> dict[str, PerPlan]:
    """Return the peak bytes of plans by what a tool counts (`dsx.runs.setups`)."""
    return {
        ALLOCATED: costs.peak_bytes - costs.overhead_bytes,
        RESERVED: costs.peak_bytes - assumptions.overhead,
        DEVICE: costs.peak_bytes,
    }


def _once(memo: dict[Hashable, V], key: Hashable, make: Callable[[], V]) -> V:
    """Return the value of a key, which is made the first time."""
    if key not in memo:
        memo[key] = make()
    return memo[key]


def _definition_options(spec: AssumptionsSpec) -> Hashable:
    """Return what an assumption set changes in the layer definitions of a model."""
    return tuple(spec.operators), tuple(spec.set.items())


class PricedBy(NamedTuple):
    """What a setup is priced by, besides its cluster."""

    spec: AssumptionsSpec
    assumptions: Assumptions  # of the spec, on a device of the family of the setup
    model: Model


class Strategies:
    """The model of a setup under the strategy that its degrees need; each kind of layer is derived once."""

    def __init__(self, assumptions: AssumptionsSpec) -> None:
        self._strategies = strategy_names()
        self._of_setup: dict[Hashable, PricedBy | UnmodelledReason] = {}
        self._of_stack = cache(
            lambda stack, platform: on_platform(assumptions.of_stack(stack) if stack else assumptions, platform)
        )
        self._sets: dict[Hashable, tuple[AssumptionsSpec, Assumptions]] = {}
        self._built: dict[Hashable, Model | NotationError] = {}

    def model_of(self, setup: Setup) -> PricedBy | UnmodelledReason:
        """Return a setup's assumption set, with its kernels and precision, and model; a Reason if no strategy fits.

        Raises NotationError if no strategy can divide the layer definitions at all: the fault is in the definitions.
        """
        key = setup.model.name, setup.etp, setup.sp, *setup.plan.codes.values(), *_selects_set(setup)
        return _once(self._of_setup, key, lambda: self._model_of(setup))

    def _model_of(self, setup: Setup) -> PricedBy | UnmodelledReason:
        of_stack = self._of_stack(setup.stack, setup.cluster.device.software)
        of_plan = for_plan(of_stack, setup.plan.codes)
        effects = tuple(getattr(of_plan, name) for name in of_stack.conditions.stated)

        def make() -> tuple[AssumptionsSpec, Assumptions]:
            unfused = {} if setup.fused_attention else of_plan.unfused_attention
            tables = [table for name, table in of_plan.unfused_operators.items() if name in setup.unfused]
            layers = {"set": of_plan.set | of_plan.set_in_runs | unfused, "operators": [*of_plan.operators, *tables]}
            spec = of_plan.model_copy(update=layers | {"linear_dtype": setup.precision, **setup.assumptions})
            return spec, assumptions_from_spec(spec, setup.cluster.device.family)

        spec, assumptions = _once(self._sets, (effects, *_selects_set(setup)), make)
        faults: list[NotationError] = []
        for strategy in self._strategies:
            model = self._model(setup, spec, strategy)
            if isinstance(model, NotationError):
                faults.append(model)
            elif _divides_as(model, setup):
                return PricedBy(spec, assumptions, model)
        if len(faults) == len(self._strategies):
            raise faults[0]
        degrees = ", ".join(f"{axis}={setup.plan[axis]}" for axis in ("tp", "cp", "ep"))
        detail = f"{degrees}, etp={setup.etp}, sp={int(setup.sp)}"
        return UnmodelledReason("no strategy divides the model this way", detail)

    def _model(self, setup: Setup, spec: AssumptionsSpec, strategy: str) -> Model | NotationError:
        """Return the model under a strategy, or the error if the strategy cannot divide a layer definition."""

        def build() -> Model | NotationError:
            try:
                return build_model(setup.model, spec, strategy)
            except NotationError as error:
                return error

        kinds = tuple(entry.layer for entry in setup.model.sequence)
        key = kinds, tuple(setup.model.dimensions), strategy, _definition_options(spec)
        model = _once(self._built, key, build)
        if isinstance(model, NotationError):
            return model
        counts = [entry.count for entry in counted(setup.model, spec)]
        layers = tuple((layer, count) for (layer, _), count in zip(model.layers, counts, strict=True))
        return replace(model, name=setup.model.name, dimensions=dict(setup.model.dimensions), layers=layers)


def _selects_set(setup: Setup) -> tuple[Hashable, ...]:
    """Return what selects the assumption set of a setup, besides its plan."""
    software, device = setup.stack, setup.cluster.device
    return (
        software,
        device.software,
        device.family,
        setup.fused_attention,
        setup.unfused,
        setup.precision,
        tuple(setup.assumptions.items()),
    )


def _expert_axes(model: Model) -> set[str]:
    """Return the axes that divide experts, in addition to ep."""
    return {axis for layer in model.kinds for axis in layer.expert_axes}


def _columns(setups: Sequence[Setup], model: Model) -> Arrays:
    """Return the columns of the plans of setups, names as codes."""
    columns = stacked([setup.plan for setup in setups])
    return columns | {"ep_nvs": share_of_shares(columns, _expert_axes(model), columns["dp_nvs"])}


def _divides_as(model: Model, setup: Setup) -> bool:
    """Return whether a model under its strategy is divided as in a setup, with something left for every rank."""
    axes, plan = {axis for layer in model.kinds for axis in layer.axes}, setup.plan
    if any(layer.panelled for layer in model.kinds) or "tp2" in axes:
        return False
    if plan["tp"] > 1 and ("tp" in names(model.body[0][0].boundary_bytes)) != setup.sp:
        return False
    if (plan["cp"] > 1 and "cp" not in axes) or (plan["ep"] > 1 and "ep" not in axes):
        return False
    divided = _expert_axes(model)
    if not nests(plan, divided) or math.prod(plan[axis] for axis in divided) != setup.etp:
        return False
    columns = _columns([setup], model)
    return not any(
        bool(divided_away(layer, rule_values(layer, setup.model.dimensions, plan["sequence_length"], columns)).any())
        for layer in model.kinds
    )


@dataclass(frozen=True, slots=True)
class _Member:
    """A setup with what it is priced by."""

    row: int  # its position among all setups
    setup: Setup
    cluster: Cluster
    spec: AssumptionsSpec
    assumptions: Assumptions
    model: Model

    @property
    def structure(self) -> Hashable:
        """What is equal for the setups of one batch."""
        segments = tuple(tuple(kind for kind, _ in segment) for segment in self.model.segments)
        layers = tuple(layer.name for layer in self.model.kinds), self.model.kinds[0].strategy, segments
        trees = tree_map(lambda _: None, (anonymous(self.cluster), self.assumptions))
        rounds = self.setup.plan["vpp"] if LAYOUT in self.setup.plan else 0
        # Code for all schedules would take most of the time, and nearly all setups have the same one.
        schedule = self.setup.plan["schedule"]
        return layers, tuple(self.setup.model.dimensions), trees, _definition_options(self.spec), rounds, schedule


@dataclass(frozen=True, slots=True)
class Batch:
    """Setups with the same structure."""

    rows: PlanInts  # positions among all setups
    assumptions: Assumptions  # of each setup's stack, with its kernels and precision
    works: tuple[Over[LayerWork, "..."], ...]  # per layer kind
    hardware: Cluster
    choices: StepChoices
    workload: Workload
    boundaries: Float[np.ndarray, "plans rounds boundaries"] | None = None  # of stated layouts; None of even cuts


def batches(
    setups: Sequence[Setup], assumptions: AssumptionsSpec
) -> tuple[list[Over[Batch, "..."]], dict[int, UnmodelledReason]]:
    """Return the setups as batches, and by position the reasons why some cannot be priced."""
    strategies = Strategies(assumptions)
    members: dict[Hashable, list[_Member]] = {}
    reasons: dict[int, UnmodelledReason] = {}
    for row, setup in enumerate(setups):
        priced_by = strategies.model_of(setup)
        if isinstance(priced_by, UnmodelledReason):
            reasons[row] = priced_by
            continue
        member = _Member(row, setup, cluster_from_spec(setup.cluster), *priced_by)
        members.setdefault(member.structure, []).append(member)
    return [_batch(batch) for batch in members.values()], reasons


def _batch(members: Sequence[_Member]) -> Batch:
    setups, models = [member.setup for member in members], [member.model for member in members]
    first, spec = models[0], members[0].spec
    expert_axes = _expert_axes(first)
    dimensions = {
        letter: np.array([float(setup.model.dimensions[letter]) for setup in setups])
        for letter in setups[0].model.dimensions
    }
    columns = _columns(setups, first)
    length = columns["sequence_length"].astype(np.float64)
    # Tables of runs have mostly these: batches with the same values share compiled code.
    values = sorted({*range(len(MAIN)), *columns["recompute"].tolist()})
    # The domains in a unit of each setup, by tier between the fast domain and the outermost tier.
    by_tier = zip(*(units(member.cluster.network) for member in members), strict=True)
    tiers = {f"tier {number}": np.array(column) for number, column in enumerate(by_tier)}
    placed = [key_shares(columns, unit, expert_axes) for unit in tiers.values()]
    fields = {name: np.array([float(getattr(member.spec, name)) for member in members]) for name in OF_WORK}
    differing = {name: numbers for name, numbers in fields.items() if np.any(numbers != numbers[0])}
    works = [
        layer_work(layer, dimensions | differing, spec, length, columns, modes_of([layer], values))
        for layer in first.kinds
    ]
    boundaries = None
    if LAYOUT in setups[0].plan:
        rounds = [boundaries_of(setup.plan.layers, setup.plan["pp"]) for setup in setups]
        # Of a setup with fewer stages the last ones have no layer.
        deepest = max(of_setup.shape[1] for of_setup in rounds)
        boundaries = np.stack([pad(of_setup, deepest) for of_setup in rounds]).astype(np.float64)
    return Batch(
        rows=np.array([member.row for member in members]),
        assumptions=_column([member.assumptions for member in members]),
        works=tuple(
            replace(work, outer=tuple({axis: 1.0 * shares[axis] for axis in work.shares} for shares in placed))
            for work in works
        ),
        hardware=_column([anonymous(member.cluster) for member in members]),
        choices=step_choices(on_units(columns, tiers), lambda column: column.astype(np.float64), list(tiers)),
        workload=Workload(
            stack=_column([stack_of(model) for model in models]),
            sequence_length=length,
            **_model_flops(models, dimensions, length),
            train_tokens=np.full(len(members), np.nan),
            searched=searched_values(
                {name: np.unique(columns[name]) for name in ("schedule", *_RARE)} | {"vpp": (1, 2), "recompute": values}
            ),
        ),
        boundaries=boundaries,
    )


def _column(records: Sequence[V]) -> V:
    """Return one record whose leaves are the numbers of records, [plans]."""
    return tree_map(lambda *leaves: np.array(leaves, dtype=np.float64), *records)


def _model_flops(
    models: Sequence[Model], dimensions: Mapping[str, PlanFloats], length: PlanFloats
) -> dict[str, PlanFloats]:
    """Return the fields of `Workload` with the matrix FLOPs of one sequence, on all ranks together.

    If kinds alternate, the models of a structure may differ in their number of entries, but not in their kinds.
    """
    counts = np.array(
        [[sum(count for layer, count in model.layers if layer is kind) for kind in model.kinds] for model in models],
        dtype=np.float64,
    )
    forward = gradient = np.zeros(length.shape)
    for kind, layer in enumerate(models[0].kinds):
        values = unsharded(layer, dimensions, length)
        of_forward = sum(evaluate(kernel.work[FORWARD].matrix, values) for kernel in layer.kernels)
        of_gradients = sum(evaluate(kernel.gradient_flops, values) for kernel in layer.kernels)
        forward, gradient = forward + counts[:, kind] * of_forward, gradient + counts[:, kind] * of_gradients
    return {"forward_flops": forward, "gradient_flops": gradient}


def price(batch: Batch) -> PlanCosts:
    """Return the costs of the setups of a batch, NumPy arrays."""
    assumptions = batch.assumptions
    kinds = tuple(layer_costs(work, batch.hardware, assumptions) for work in batch.works)
    boundaries = None if batch.boundaries is None else np.moveaxis(batch.boundaries, 0, -1)
    return price_plans(Plans(kinds, batch.choices, batch.hardware, assumptions), batch.workload, boundaries)


# Over the memory of a GPU: predictions are not further off. A run that was filled under it fits with it.
MARGIN = 1.25
# The values that are tried, each with one region more or all of the layer.
TRIED = tuple(value for value in dict.fromkeys((*MAIN, *map(value_of, REGION_NAMES))) if value != NONE)


def is_inferred(setup: Setup) -> bool:
    """Return whether the recomputation of a setup is inferred from its memory."""
    return "recompute" in setup.filled and not setup.run.oom


def with_recompute(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> list[Setup]:
    """Return the setups, those with missing `recompute` with the least that fits; none if every value is too much."""
    filled = list(setups)
    missing = [row for row, setup in enumerate(setups) if is_inferred(setup)]
    peak, _ = _priced([setups[row] for row in missing], assumptions)
    short = [row for row, size in zip(missing, peak, strict=True) if size > _room(setups[row])]
    if not short:
        return filled
    tried = [replace(setups[row], plan=setups[row].plan | {"recompute": value}) for row in short for value in TRIED]
    peaks, seconds = (column.reshape(len(short), len(TRIED)) for column in _priced(tried, assumptions))
    for at, row in enumerate(short):
        fits = peaks[at] <= _room(setups[row])
        best = int(np.argmin(np.where(fits, seconds[at], np.inf) if fits.any() else peaks[at]))
        filled[row] = tried[at * len(TRIED) + best]
    return filled


def _room(setup: Setup) -> float:
    return MARGIN * setup.cluster.device.hbm_capacity


def _priced(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return the peak bytes and the seconds of setups, [N]; NaN where a setup cannot be priced."""
    peak, seconds = np.full((2, len(setups)), np.nan)
    for batch in batches(setups, assumptions)[0]:
        costs = price(batch)
        peak[batch.rows], seconds[batch.rows] = costs.peak_bytes, costs.step_time_s
    return peak, seconds


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of N setups, in order. A setup with a reason has NaN, and its `fits` is meaningless."""

    step_time_s: np.ndarray  # [N] float64
    low: np.ndarray  # [N] s, lower end of the 80 % interval; NaN if the assumption set states none
    high: np.ndarray  # [N] s, its upper end
    peak_bytes: np.ndarray  # [N] on the fullest GPU
    allocated_bytes: np.ndarray  # [N] the part of peak_bytes in tensors
    reserved_bytes: np.ndarray  # [N] the part of peak_bytes that the framework's allocator holds
    # [N] bool, whether peak_bytes fit in the memory of a GPU; with the margin of the inference where the recomputation
    # is inferred.
    fits: np.ndarray
    inferred_recompute: tuple[str | None, ...]  # [N] the value of `recompute` where it is inferred
    reason: tuple[UnmodelledReason | None, ...]  # [N] why a setup cannot be priced; None if it was


# Prices setups under an assumption set; raises InputError if a layer definition or a table of the set is at fault.
Predict = Callable[[Sequence[Setup], AssumptionsSpec], Predictions]


@dataclass(frozen=True, slots=True)
class PredictedRows:
    """N rows of a run table, in order; NaN is a missing value."""

    id: tuple[str, ...]
    source: tuple[str, ...]
    measured_s: np.ndarray  # [N] step time
    predicted_s: np.ndarray  # [N]
    low: np.ndarray  # [N] s
    high: np.ndarray  # [N] s
    measured_bytes: np.ndarray  # [N] on the fullest GPU
    predicted_bytes: np.ndarray  # [N] counted as the measured bytes: tensors, the allocator's, or all
    oom: np.ndarray  # [N] 1 ran out of memory, 0 ran, NaN not known
    fits: np.ndarray  # [N] bool, as predicted; false in rows with a reason
    group: tuple[Hashable, ...]  # [N] the same for rows that differ only in configuration
    layout: tuple[Hashable, ...]  # [N] the configuration
    inferred_recompute: tuple[str | None, ...]  # [N] the value of `recompute` where it is inferred
    reason: tuple[UnmodelledReason | None, ...]  # [N] why a row is not modelled

    @property
    def modelled(self) -> np.ndarray:
        """[N] bool: rows without a reason."""
        return np.array([reason is None for reason in self.reason], dtype=bool)


def predict(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> Predictions:
    """Return the step time and memory of each setup, or the reason why it cannot be priced."""
    setups = with_recompute(setups, assumptions)
    step, peak, allocated, reserved = np.full((4, len(setups)), np.nan)
    priced, reasons = batches(setups, assumptions)
    for batch in priced:
        costs = price(batch)
        step[batch.rows], peak[batch.rows] = costs.step_time_s, costs.peak_bytes
        memory = counted_memory(costs, batch.assumptions)
        allocated[batch.rows], reserved[batch.rows] = memory[ALLOCATED], memory[RESERVED]
    thin = [thinness(sources_like(likeness_of(setup), assumptions.trained_on), bool(setup.filled)) for setup in setups]
    interval = step_interval(assumptions.interval, step, facts_of(setups, np.array(thin, dtype=np.int64)))
    inferred = [is_inferred(setup) for setup in setups]
    capacity = np.array([setup.cluster.device.hbm_capacity for setup in setups], dtype=np.float64)
    return Predictions(
        step_time_s=step,
        low=interval.step_time_s_low,
        high=interval.step_time_s_high,
        peak_bytes=peak,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        fits=peak <= np.where(inferred, MARGIN, 1.0) * capacity,
        inferred_recompute=tuple(str(s.plan["recompute"]) if is_inferred(s) else None for s in setups),
        reason=tuple(reasons.get(row) for row in range(len(setups))),
    )


def compare(
    runs: Sequence[MeasuredRun], setups: Setups, predict: Predict, assumptions: AssumptionsSpec
) -> PredictedRows:
    """Return `runs` with the predictions of their `setups`; a run whose setup is a Reason is not predicted."""
    priced = [setup if isinstance(setup, Setup) else None for setup in setups]
    rows = [row for row, setup in enumerate(priced) if setup]
    predictions = predict([setup for setup in priced if setup], assumptions)
    position = {row: place for place, row in enumerate(rows)}  # in the predictions
    inferred = dict(zip(rows, predictions.inferred_recompute, strict=True))
    pairs = [*zip(runs, priced, strict=True)]
    seconds = [measured_step_time(setup) if setup else run.measured_iter_s for run, setup in pairs]
    memory = [measured_bytes(run) for run in runs]
    reasons: list[UnmodelledReason | None] = []
    for row, (run, setup) in enumerate(zip(runs, setups, strict=True)):
        faults = [fault for fault in (setup, seconds[row], memory[row]) if isinstance(fault, UnmodelledReason)]
        if not faults and seconds[row] is None and memory[row] is None and run.oom is None:
            faults = [UnmodelledReason("nothing was measured")]
        reasons.append(faults[0] if faults else predictions.reason[position[row]])
    modelled = np.array([reason is None for reason in reasons], dtype=bool)

    def predicted(values: np.ndarray) -> np.ndarray:
        of_runs = np.full(len(runs), np.nan)
        of_runs[rows] = values
        return np.where(modelled, of_runs, np.nan)

    def counts(kind: str) -> np.ndarray:
        return np.array([setup is not None and setup.counted == kind for setup in priced], dtype=bool)

    # If the table does not say, a run with a measured time did not run out of memory.
    failed = [
        False if run.oom is None and isinstance(time, float) else run.oom
        for run, time in zip(runs, seconds, strict=True)
    ]
    return PredictedRows(
        id=tuple(run.id for run in runs),
        source=tuple(run.source_id for run in runs),
        measured_s=_numbers(seconds),
        predicted_s=predicted(predictions.step_time_s),
        low=predicted(predictions.low),
        high=predicted(predictions.high),
        measured_bytes=_numbers(memory),
        predicted_bytes=np.select(
            [counts(ALLOCATED), counts(RESERVED)],
            [predicted(predictions.allocated_bytes), predicted(predictions.reserved_bytes)],
            predicted(predictions.peak_bytes),
        ),
        oom=_numbers(failed),
        fits=predicted(predictions.fits) == 1,
        group=tuple(setup and group_of(setup) for setup in priced),
        layout=tuple(setup and layout_of(setup) for setup in priced),
        inferred_recompute=tuple(inferred.get(row) for row in range(len(runs))),
        reason=tuple(reasons),
    )


def _numbers(values: Sequence[float | bool | UnmodelledReason | None]) -> np.ndarray:
    numbers = [math.nan if value is None or isinstance(value, UnmodelledReason) else float(value) for value in values]
    return np.array(numbers, dtype=np.float64)


def group_of(setup: Setup) -> Hashable:
    """Return what is the same in rows that differ only in configuration: source, model, machine, job and precision."""
    network = setup.cluster.network.net
    machine = ((setup.run.gpu or "").lower(), setup.gpus_per_node, network.bandwidth, network.nic_bandwidth)
    job = tuple(setup.plan[choice.name] for choice in CHOICES if choice.level == "job")
    return (setup.run.source_id, setup.sizes, *machine, *job, setup.precision)


def layout_of(setup: Setup) -> Hashable:
    """Return the configuration of a setup: its plan, sequence parallelism, kernels."""
    return (*setup.plan.codes.values(), setup.plan.layers, setup.sp, setup.fused_attention, setup.unfused)


def facts_of(setups: Sequence[Setup], thin: np.ndarray | int = 0) -> PlanFacts:
    """Return the facts of these setups that select an interval; `thin` is `dsx.cost.interval.thinness` of each."""
    return plan_facts(
        np.array([setup.plan["num_gpus"] for setup in setups]),
        np.array([setup.cluster.network.nvs.size for setup in setups]),
        np.array([has_experts(setup.model.dimensions) for setup in setups]),
        thin,
    )


def count_unlike(setups: Setups, trained_on: TrainedOnSpec) -> dict[str, dict[str, int]]:
    """Return how many setups have what no source has to which a set was fitted, by part of the likeness and value."""
    counts: dict[str, Counter[str]] = {}
    for setup in setups:
        if isinstance(setup, Setup):
            for part, value in unlike(likeness_of(setup), trained_on).items():
                counts.setdefault(part, Counter())[value] += 1
    return {part: dict(values.most_common()) for part, values in counts.items()}


def likeness_of(setup: Setup) -> Likeness:
    """Return what measurements may share with a setup."""
    return likeness(setup.stack, setup.cluster.device, setup.model)
