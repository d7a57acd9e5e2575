"""Predictions of measured setups by the cost model of the searches: setups of one structure are priced together.

Predicted memory as tools count it: tensors, what the allocator holds, all that the driver reports.

The peak of a plan has three layers. Tensors: weights, gradients, optimizer state, activations. The framework's caching
allocator holds them and free blocks that fit no new tensor (`fragmentation`). The driver counts these, and what is
outside of the allocator: the device context, and buffers of the collective library (`overhead`).

Which measured setups share a structure, and the strategy of each.

Setups share a structure if their layers have the same definitions under the same strategy, and their machines the same
kind of network. The strategy of a run is the simplest packaged one that divides what the run divides.

Measured setups as arrays: setups with the same structure and schedule are priced together.

Each has its own model and machine: sizes, counts, hardware and choices are arrays over the setups of a structure
(`dsx.runs.predict`).

The costs of batches of measured setups: once, or many times while a fit changes the assumptions.

Compiling pays off in a fit, which prices the same rows hundreds of times. Rows that are priced once take NumPy.

Fill a missing `recompute` with the least that lets the run fit in memory.

A measured run did fit. Where it does not without recomputation, it must have recomputed: selectively, one region of its
layers (`dsx.plans.choices`), or all of them. Of the values under which it fits the fastest is taken, since
that is what its authors would have chosen; if none fits, the one that needs least memory.

Combinations of regions, and recomputation of only some layers, are not tried: a table that states less than this cannot
tell them apart.

Predictions of measured setups by the cost model of the searches.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.evidence import TrainedOnSpec
from dsx.config.model_file import has_experts
from dsx.cost.arrays import PerPlan
from dsx.cost.context import Assumptions, StepChoices, StepCosts, assumptions_from_spec
from dsx.cost.interval import Likeness, PlanFacts, likeness, plan_facts, sources_like, step_interval, thinness, unlike
from dsx.cost.layer import layer_costs
from dsx.cost.layer_work import OF_WORK, LayerWork, layer_work
from dsx.cost.recomputation import modes_of
from dsx.cost.step import Workload
from dsx.errors import NotationError
from dsx.hardware.cluster import Cluster, anonymous, cluster_from_spec
from dsx.notation.expressions import evaluate, names
from dsx.notation.library import strategy_names
from dsx.notation.model import Model, build_model, counted, unsharded
from dsx.notation.work import FORWARD, DerivedLayer
from dsx.plans.choices import MAIN, NONE, REGION_NAMES, value_of
from dsx.plans.codes import searched_values
from dsx.plans.enumerate import Arrays
from dsx.plans.experts import nests, share_of_shares
from dsx.plans.layer_layout import LAYOUT
from dsx.plans.placement import key_shares, units
from dsx.plans.plan import stacked
from dsx.plans.violations import divided_away, for_plan, on_platform, rule_values
from dsx.pricing.cuts import boundaries_of
from dsx.pricing.problem import Plans, costs, pad, stack_of
from dsx.pricing.problem import price as price_batch
from dsx.pricing.row_costs import on_units, step_choices
from dsx.runs.predicted_rows import Predictions
from dsx.runs.setups import ALLOCATED, DEVICE, RESERVED, Setup
from dsx.runs.table import FURTHER, UnmodelledReason


def counted_memory(costs: StepCosts, assumptions: Assumptions) -> dict[str, PerPlan]:
    """Return the peak bytes of plans by what a tool counts (`dsx.runs.setups`)."""
    return {
        ALLOCATED: costs.peak_bytes - costs.overhead_bytes,
        RESERVED: costs.peak_bytes - assumptions.overhead,
        DEVICE: costs.peak_bytes,
    }


def _assumed(setup: Setup) -> tuple[Any, ...]:
    """Return what selects the assumption set of a setup, besides its plan."""
    software = setup.stack, setup.cluster.device.software
    return *software, setup.fused_attention, setup.unfused, setup.precision, tuple(setup.stated.items())


def _definition_options(spec: AssumptionsSpec) -> tuple[Any, ...]:
    """Return what an assumption set changes in the layer definitions of a model."""
    return tuple(spec.operators), tuple(spec.set.items())


class Strategies:
    """The model of a setup under the strategy that its degrees need; each kind of layer is derived once."""

    def __init__(self, assumptions: AssumptionsSpec) -> None:
        self._assumptions = assumptions
        self._strategies = strategy_names()
        self._built: dict[Any, Model | NotationError] = {}
        self._specs: dict[Any, AssumptionsSpec] = {}
        self._stacks: dict[tuple[str | None, str], AssumptionsSpec] = {}
        self._trees: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._found: dict[Any, tuple[AssumptionsSpec, Model] | UnmodelledReason] = {}

    def model_of(self, setup: Setup) -> tuple[AssumptionsSpec, Model] | UnmodelledReason:
        """Return a setup's assumption set and model; a Reason if no strategy divides the model as the setup does.

        The set has the kernels and the precision of the setup. Raises NotationError if no strategy can divide the layer
        definitions at all: the fault is in the definitions.
        """
        key = id(setup.model), setup.etp, setup.sp, *setup.plan.codes.values(), *_assumed(setup)
        if key not in self._found:
            self._found[key] = self._model_of(setup)
        return self._found[key]

    def _model_of(self, setup: Setup) -> tuple[AssumptionsSpec, Model] | UnmodelledReason:
        spec = self._spec(setup)
        faults: list[NotationError] = []
        for strategy in self._strategies:
            model = self._model(setup, spec, strategy)
            if isinstance(model, NotationError):
                faults.append(model)
            elif _divides_as(model, setup):
                return spec, model
        if len(faults) == len(self._strategies):
            raise faults[0]
        degrees = ", ".join(f"{axis}={setup.plan[axis]}" for axis in ("tp", "cp", "ep"))
        return UnmodelledReason(
            "no strategy divides the model this way", f"{degrees}, etp={setup.etp}, sp={int(setup.sp)}"
        )

    def structure(self, setup: Setup, spec: AssumptionsSpec, model: Model) -> Any:
        """Return a key that is equal for setups of one batch."""
        segments = tuple(tuple(kind for kind, _ in segment) for segment in model.segments)
        layers = (tuple(layer.name for layer in model.kinds), model.kinds[0].strategy, segments)
        key = id(setup.cluster), id(spec)
        if key not in self._trees:
            network = jax.tree.structure(anonymous(cluster_from_spec(setup.cluster)))
            self._trees[key] = network, jax.tree.structure(assumptions_from_spec(spec))
        return layers, tuple(setup.model.dimensions), *self._trees[key], _definition_options(spec)

    def _spec(self, setup: Setup) -> AssumptionsSpec:
        """Return the assumption set under the stack of a setup, with what its row states; one object for all.

        It has the effects of the setup's plan.
        """
        stacked = self._of_stack(setup.stack, setup.cluster.device.software)
        here = for_plan(stacked, setup.plan.codes)
        effects = tuple(getattr(here, name) for name in stacked.conditions.stated)
        key = id(stacked), effects, setup.fused_attention, setup.unfused, setup.precision, tuple(setup.stated.items())
        if key not in self._specs:
            assumed = here
            unfused = {} if setup.fused_attention else assumed.unfused_attention
            tables = [table for name, table in assumed.unfused_operators.items() if name in setup.unfused]
            self._specs[key] = assumed.model_copy(
                update={
                    "set": assumed.set | assumed.set_in_runs | unfused,
                    "operators": [*assumed.operators, *tables],
                    "linear_dtype": setup.precision,
                    **setup.stated,
                }
            )
        return self._specs[key]

    def _of_stack(self, stack: str | None, platform: str) -> AssumptionsSpec:
        """Return the assumption set under a stack on devices of a platform; one object for all setups with both."""
        if (stack, platform) not in self._stacks:
            assumed = self._assumptions if stack is None else self._assumptions.of_stack(stack)
            self._stacks[stack, platform] = on_platform(assumed, platform)
        return self._stacks[stack, platform]

    def _model(self, setup: Setup, spec: AssumptionsSpec, strategy: str) -> Model | NotationError:
        """Return the model under a strategy, or the error if the strategy cannot divide a layer definition."""
        kinds = tuple(entry.layer for entry in setup.model.sequence)
        key = (kinds, tuple(setup.model.dimensions), strategy, _definition_options(spec))
        if key not in self._built:
            try:
                self._built[key] = build_model(setup.model, spec, strategy)
            except NotationError as error:
                self._built[key] = error
        model = self._built[key]
        if isinstance(model, NotationError):
            return model
        counts = [entry.count for entry in counted(setup.model, spec)]
        layers = tuple((layer, count) for (layer, _), count in zip(model.layers, counts, strict=True))
        return replace(model, name=setup.model.name, dimensions=dict(setup.model.dimensions), layers=layers)


def _axes(model: Model) -> set[str]:
    return {axis for layer in model.kinds for axis in layer.axes}


def expert_axes(model: Model) -> set[str]:
    """Return the axes that divide experts, in addition to ep."""
    return {axis for layer in model.kinds for axis in layer.expert_axes}


def columns_of(setups: Sequence[Setup], model: Model) -> Arrays:
    """Return the columns of the plans of N setups, names as codes."""
    columns = stacked([setup.plan for setup in setups])
    return columns | {"ep_nvs": share_of_shares(columns, expert_axes(model), columns["dp_nvs"])}


def _divides_as(model: Model, setup: Setup) -> bool:
    """Return whether a model under its strategy is divided as in a setup, with something left for every rank."""
    axes, body, plan = _axes(model), model.body[0][0], setup.plan
    residual = names(body.boundary_bytes)
    if any(layer.panelled for layer in model.kinds) or "tp2" in axes:
        return False
    if plan["tp"] > 1 and ("tp" in residual) != setup.sp:
        return False
    if (plan["cp"] > 1 and "cp" not in axes) or (plan["ep"] > 1 and "ep" not in axes):
        return False
    divided = expert_axes(model)
    if not nests(plan, divided) or math.prod(plan[axis] for axis in divided) != setup.etp:
        return False
    keys = columns_of([setup], model)
    for layer in model.kinds:
        values = rule_values(layer, setup.model.dimensions, plan["sequence_length"], keys)
        if bool(divided_away(layer, values).any()):
            return False
    return True


# Choices that few rows state; if no row of a batch does, their formulas are not compiled. Recipes set stored_layers.
_RARE = tuple(name for name in FURTHER if name != "stored_layers")


@dataclass(frozen=True, slots=True)
class Batch:
    """N setups with the same structure; the first axis of every leaf is N."""

    rows: np.ndarray  # [N] positions among all setups
    assumptions: Assumptions  # those of each setup's stack, with its kernels and precision
    works: tuple[LayerWork, ...]  # per layer kind
    hardware: Cluster
    choices: StepChoices
    workload: Workload
    boundaries: np.ndarray | None = None  # [N, R, S + 1] of the chunks of stated layouts; None of even cuts


def batches(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> tuple[list[Batch], dict[int, UnmodelledReason]]:
    """Return the setups as batches, and by position the reasons why some cannot be priced."""
    strategies = Strategies(assumptions)
    members: dict[Any, list[tuple[int, AssumptionsSpec, Model]]] = {}
    reasons: dict[int, UnmodelledReason] = {}
    for row, setup in enumerate(setups):
        found = strategies.model_of(setup)
        if isinstance(found, UnmodelledReason):
            reasons[row] = found
        else:
            rounds = setup.plan["vpp"] if LAYOUT in setup.plan else 0
            # Code for all schedules would take most of the time, and nearly all setups have the same one.
            alike = strategies.structure(setup, *found), rounds, setup.plan["schedule"]
            members.setdefault(alike, []).append((row, *found))
    return [_batch(setups, rows) for rows in members.values()], reasons


def _batch(setups: Sequence[Setup], members: Sequence[tuple[int, AssumptionsSpec, Model]]) -> Batch:
    rows = np.array([row for row, _, _ in members])
    _, spec, first = members[0]
    own = [setups[row] for row in rows]
    dimensions = _stacked([setup.model.dimensions for setup in own])
    columns = columns_of(own, first)
    length = columns["sequence_length"].astype(np.float64)
    # Tables of runs have mostly these: batches with the same values share compiled code.
    values = sorted({*range(len(MAIN)), *columns["recompute"].tolist()})
    differing = _differing([spec for _, spec, _ in members])
    unplaced = [
        layer_work(layer, dimensions, spec, length, columns, modes_of([layer], values), differing)
        for layer in first.kinds
    ]
    tiers = _units(own)
    placed = [key_shares(columns, unit, expert_axes(first)) for unit in tiers.values()]
    works = tuple(
        replace(work, outer=tuple({axis: 1.0 * here[axis] for axis in work.shares} for here in placed))
        for work in unplaced
    )
    stacks = [stack_of(model) for _, _, model in members]
    machines = [anonymous(cluster_from_spec(setup.cluster)) for setup in own]
    flops = sum(
        np.broadcast_to(count * _forward_flops(layer, dimensions, length), length.shape)
        for layer, count in _counts(first, members)
    )
    return Batch(
        rows=rows,
        assumptions=_assumptions([spec for _, spec, _ in members], [setup.cluster.device.family for setup in own]),
        works=works,
        hardware=_column(machines),
        choices=step_choices(on_units(columns, tiers), lambda column: column.astype(np.float64), list(tiers)),
        workload=Workload(
            stack=_column(stacks),
            sequence_length=length,
            forward_flops=flops,
            train_tokens=np.full(len(own), np.nan),
            searched=searched_values(
                {name: np.unique(columns[name]) for name in ("schedule", *_RARE)} | {"vpp": (1, 2), "recompute": values}
            ),
        ),
        boundaries=_boundaries(own) if LAYOUT in own[0].plan else None,
    )


def _boundaries(setups: Sequence[Setup]) -> np.ndarray:
    """Return the boundaries of the layouts of setups; of a setup with fewer stages the last ones have no layer."""
    found = [boundaries_of([*map(int, setup.plan[LAYOUT].split(","))], setup.plan["pp"]) for setup in setups]
    deepest = max(rounds.shape[1] for rounds in found)
    return np.stack([pad(rounds, deepest) for rounds in found]).astype(np.float64)


def _counts(model: Model, members: Sequence[tuple[int, AssumptionsSpec, Model]]) -> list[tuple[DerivedLayer, Any]]:
    """Return each layer kind of a model with its [N] counts.

    If kinds alternate, the models of a structure may differ in their number of entries, but not in their kinds.
    """
    counts = np.array([_by_kind(other) for _, _, other in members], dtype=np.float64)
    return [(layer, counts[:, kind]) for kind, layer in enumerate(model.kinds)]


def _by_kind(model: Model) -> list[int]:
    """Return the number of layers of each kind."""
    return [sum(count for layer, count in model.layers if layer is kind) for kind in model.kinds]


def _forward_flops(layer: DerivedLayer, dimensions: Mapping[str, Any], length: np.ndarray) -> Any:
    """Return the [N] matrix FLOPs of the forward of one sequence, on all ranks together."""
    values = unsharded(layer, dimensions, length)
    return sum(evaluate(kernel.work[FORWARD].matrix, values) for kernel in layer.kernels)


def _assumptions(specs: Sequence[AssumptionsSpec], families: Sequence[str]) -> Assumptions:
    """Return the assumptions of setups, whose stacks and device families may differ; leaves are [N]."""
    keys = [(id(spec), family) for spec, family in zip(specs, families, strict=True)]
    known = {key: assumptions_from_spec(spec, key[1]) for key, spec in dict(zip(keys, specs, strict=True)).items()}
    return _column([known[key] for key in keys])


def _differing(specs: Sequence[AssumptionsSpec]) -> dict[str, np.ndarray]:
    """Return, [N], the fields that the work of a layer depends on and in which setups differ."""
    found = {name: np.array([float(getattr(spec, name)) for spec in specs]) for name in OF_WORK}
    return {name: values for name, values in found.items() if np.any(values != values[0])}


def _column(records: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.array(leaves, dtype=np.float64), *records)


def _stacked(dimensions: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    return {letter: np.array([float(one[letter]) for one in dimensions]) for letter in dimensions[0]}


def _units(setups: Sequence[Setup]) -> dict[str, np.ndarray]:
    """Return, by tier between the fast domain and the outermost tier, the domains in a unit of each setup."""
    found = [units(cluster_from_spec(setup.cluster).network) for setup in setups]
    return {f"tier {number}": np.array(column) for number, column in enumerate(zip(*found, strict=True))}


def price(batch: Batch) -> StepCosts:
    """Return the costs of the setups of a batch, [N] NumPy arrays."""
    assumptions = batch.assumptions
    kinds = tuple(layer_costs(work, batch.hardware, assumptions) for work in batch.works)
    boundaries = None if batch.boundaries is None else np.moveaxis(batch.boundaries, 0, -1)
    return price_batch(Plans(kinds, batch.choices, batch.hardware, assumptions), batch.workload, boundaries)


def pricer(batch: Batch) -> Callable[[Assumptions], StepCosts]:
    """Return a function that prices a batch under any assumptions, [N] leaves; JAX can trace and differentiate it.

    The batch is put on the device once. Call this and the returned function under `enable_x64(True)`. Stated layouts
    whose chunks are unlike are priced by a bound below: their order is not replayed.
    """
    given = jax.tree.map(jnp.asarray, _arguments(batch))
    return lambda assumptions: _price_often(*given, assumptions)


def _arguments(batch: Batch) -> tuple[Any, ...]:
    """Return works, hardware, choices, workload and boundaries of a batch: rows first, and a last axis of size one."""
    works = jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf)[..., None], -2, 0), batch.works)
    works = tuple(_spread(work, len(batch.rows)) for work in works)
    choices = jax.tree.map(lambda leaf: leaf[:, None], batch.choices)
    boundaries = None if batch.boundaries is None else batch.boundaries[..., None]
    return works, batch.hardware, choices, batch.workload, boundaries


def _spread(work: LayerWork, count: int) -> LayerWork:
    """Return the work with its launches, which depend on no size, repeated for every row."""
    return replace(work, launches=np.repeat(work.launches, count, axis=0))


def _one(
    works: Any, hardware: Cluster, choices: StepChoices, workload: Workload, boundaries: Any, assumptions: Assumptions
) -> StepCosts:
    kinds = tuple(layer_costs(work, hardware, assumptions) for work in works)
    # The stages of a layout are an axis before those of the other values.
    with nullcontext() if boundaries is None else jax.numpy_rank_promotion("allow"):
        return costs(Plans(kinds, choices, hardware, assumptions), workload, boundaries)


def _price(
    works: Any, hardware: Cluster, choices: Any, workload: Workload, boundaries: Any, assumptions: Assumptions
) -> StepCosts:
    given = (works, hardware, choices, workload, boundaries)
    found = jax.vmap(_one, in_axes=0)(*given, assumptions)
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0]), found)


_price_often = jax.jit(_price)


# Over the memory of a GPU: predictions are not further off. A run that was filled under it fits with it.
MARGIN = 1.25
# The values that are tried, each with one region more or all of the layer.
TRIED = tuple(value for value in dict.fromkeys((*MAIN, *map(value_of, REGION_NAMES))) if value != NONE)


def is_inferred(setup: Setup) -> bool:
    """Return whether the recomputation of a setup is inferred from its memory."""
    return "recompute" in setup.filled and not setup.run.oom


def with_recompute(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> list[Setup]:
    """Return the setups, those with missing `recompute` with the least that fits; none if every value is too much."""
    found = list(setups)
    missing = [row for row, setup in enumerate(setups) if is_inferred(setup)]
    peak, _ = _priced([setups[row] for row in missing], assumptions)
    short = [row for row, size in zip(missing, peak, strict=True) if size > _room(setups[row])]
    if not short:
        return found
    tried = [_recomputing(setups[row], value) for row in short for value in TRIED]
    peaks, seconds = (each.reshape(len(short), len(TRIED)) for each in _priced(tried, assumptions))
    for at, row in enumerate(short):
        fits = peaks[at] <= _room(setups[row])
        best = int(np.argmin(np.where(fits, seconds[at], np.inf) if fits.any() else peaks[at]))
        found[row] = tried[at * len(TRIED) + best]
    return found


def _recomputing(setup: Setup, value: str) -> Setup:
    return replace(setup, plan=setup.plan | {"recompute": value})


def _room(setup: Setup) -> float:
    return MARGIN * setup.cluster.device.hbm_capacity


def _priced(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return the peak bytes and the seconds of setups, [N]; NaN where a setup cannot be priced."""
    peak, seconds = np.full((2, len(setups)), np.nan)
    for batch in batches(setups, assumptions)[0]:
        costs = price(batch)
        peak[batch.rows], seconds[batch.rows] = costs.peak_bytes, costs.step_time_s
    return peak, seconds


def predict(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> Predictions:
    """Return the step time and memory of each setup, or the reason why it cannot be priced."""
    setups = with_recompute(setups, assumptions)
    count = len(setups)
    step, peak, allocated, reserved = (np.full(count, np.nan) for _ in range(4))
    priced, reasons = batches(setups, assumptions)
    for batch in priced:
        costs = price(batch)
        step[batch.rows], peak[batch.rows] = costs.step_time_s, costs.peak_bytes
        memory = counted_memory(costs, batch.assumptions)
        allocated[batch.rows], reserved[batch.rows] = memory[ALLOCATED], memory[RESERVED]
    thin = [thinness(sources_like(likeness_of(one), assumptions.trained_on), bool(one.filled)) for one in setups]
    interval = step_interval(assumptions.interval, step, facts_of(setups, np.array(thin, dtype=np.int64)))
    is_filled = [is_inferred(setup) for setup in setups]
    room = np.where(is_filled, MARGIN, 1.0) * np.array(
        [setup.cluster.device.hbm_capacity for setup in setups], dtype=np.float64
    )
    return Predictions(
        step_time_s=step,
        low=interval.step_time_s_low,
        high=interval.step_time_s_high,
        peak_bytes=peak,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        fits=peak <= room,
        inferred_recompute=tuple(
            str(setup.plan["recompute"]) if filled else None for setup, filled in zip(setups, is_filled, strict=True)
        ),
        reason=tuple(reasons.get(row) for row in range(count)),
    )


def facts_of(setups: Sequence[Setup], thin: np.ndarray | int = 0) -> PlanFacts:
    """Return the facts of these setups that select an interval; `thin` is `dsx.cost.interval.thinness` of each."""
    return plan_facts(
        np.array([setup.plan["num_gpus"] for setup in setups]),
        np.array([setup.cluster.network.nvs.size for setup in setups]),
        np.array([has_experts(setup.model.dimensions) for setup in setups]),
        thin,
    )


def count_unlike(setups: Iterable[Setup | UnmodelledReason], trained_on: TrainedOnSpec) -> dict[str, dict[str, int]]:
    """Return how many setups have what no source has to which a set was fitted, by part of the likeness and value."""
    found: dict[str, Counter[str]] = {}
    for setup in setups:
        if isinstance(setup, Setup):
            for part, value in unlike(likeness_of(setup), trained_on).items():
                found.setdefault(part, Counter())[value] += 1
    return {part: dict(counts.most_common()) for part, counts in found.items()}


def likeness_of(setup: Setup) -> Likeness:
    """Return what measurements may share with a setup."""
    return likeness(setup.stack, setup.cluster.device, setup.model)
