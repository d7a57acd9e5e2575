"""Measured setups as arrays: those of one structure are priced together, each with its own model and machine.

Setups share a structure where their layers have the same texts under the same strategy and the machine has the same
kind of network; sizes, counts, hardware and choices are arrays over the rows. The strategy of a run is the simplest of
the packaged ones that divides what the run says is divided. Ranks are placed as Megatron-LM numbers them: tp innermost,
then cp, dp and pp.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsx.cost.assumptions import Assumptions
from dsx.cost.choices import StepChoices
from dsx.cost.columns import StepCosts
from dsx.cost.layer import layer_costs
from dsx.cost.step import Workload, step_costs
from dsx.cost.work import LayerWork, layer_work
from dsx.errors import NotationError
from dsx.graph.derived import FORWARD, DerivedLayer
from dsx.graph.expressions import evaluate, names
from dsx.graph.library import strategy_names
from dsx.graph.model import Model, build_model, counted, unsharded
from dsx.hardware.cluster import Cluster, anonymous, cluster_from_spec
from dsx.measured.reasons import Reason
from dsx.measured.setups import Setup
from dsx.search.problem import stack_of
from dsx.space.codes import OFFLOAD, RECOMPUTE, SCHEDULES, opened
from dsx.space.experts import expert_share, nests
from dsx.space.rules import MODEL_AXES, divided_away, rule_values
from dsx.space.tiers import choice_shares, key_shares, stride_of_replicas, units
from dsx.spec.assumptions import AssumptionsSpec

_PLACED = ("tp", "cp", "dp", "pp")  # innermost first
# Choices that no column of a run table says, so that no formula of them is compiled.
_NOT_IN_TABLES = {"zero_replicas": (1,), "offload": (OFFLOAD.index("none"),)}


@dataclass(frozen=True, slots=True)
class Batch:
    """N setups of one structure; every leaf begins with N."""

    rows: np.ndarray  # [N] positions among all setups
    spec: AssumptionsSpec  # the assumption set as these setups need it
    works: tuple[LayerWork, ...]  # per layer kind
    hardware: Cluster
    choices: StepChoices
    workload: Workload


def batches(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> tuple[list[Batch], dict[int, Reason]]:
    """Return the setups as batches, and why some cannot be priced, by position."""
    strategies = _Strategies(assumptions)
    members: dict[Any, list[tuple[int, AssumptionsSpec, Model]]] = {}
    reasons: dict[int, Reason] = {}
    for row, setup in enumerate(setups):
        found = strategies.model_of(setup)
        if isinstance(found, Reason):
            reasons[row] = found
        else:
            members.setdefault(_structure(setup, *found), []).append((row, *found))
    return [_batch(setups, rows) for rows in members.values()], reasons


def _structure(setup: Setup, spec: AssumptionsSpec, model: Model) -> Any:
    """Return what setups of one batch have in common."""
    segments = tuple(tuple(kind for kind, _ in segment) for segment in model.segments)
    texts = (tuple(layer.name for layer in model.kinds), model.kinds[0].strategy, segments)
    network = jax.tree.structure(anonymous(cluster_from_spec(setup.cluster)))
    return texts, tuple(setup.model.dimensions), spec.linear_dtype, setup.fused_attention, network


class _Strategies:
    """The model of a setup under the strategy that its degrees ask for; each kind of layer derived once."""

    def __init__(self, assumptions: AssumptionsSpec) -> None:
        self._assumptions = assumptions
        self._strategies = strategy_names()
        self._built: dict[Any, Model | None] = {}

    def model_of(self, setup: Setup) -> tuple[AssumptionsSpec, Model] | Reason:
        stored = {} if setup.fused_attention else self._assumptions.unfused_blocks
        spec = self._assumptions.model_copy(
            update={"blocks": self._assumptions.blocks | stored, "linear_dtype": setup.precision}
        )
        for strategy in self._strategies:
            model = self._model(setup, spec, strategy)
            if model is not None and _divides_as(model, setup):
                return spec, model
        degrees = ", ".join(f"{axis}={getattr(setup, axis)}" for axis in ("tp", "cp", "ep"))
        return Reason("no strategy divides the model so", f"{degrees}, sp={int(setup.sp)}")

    def _model(self, setup: Setup, spec: AssumptionsSpec, strategy: str) -> Model | None:
        """Return the model under a strategy; None where a layer text cannot be divided so."""
        kinds = tuple(entry.kind for entry in setup.model.layers)
        key = (kinds, tuple(setup.model.dimensions), strategy, setup.fused_attention)
        if key not in self._built:
            try:
                self._built[key] = build_model(setup.model, spec, strategy)
            except NotationError:
                self._built[key] = None
        model = self._built[key]
        if model is None:
            return None
        counts = [entry.count for entry in counted(setup.model, spec)]
        layers = tuple((layer, count) for (layer, _), count in zip(model.layers, counts, strict=True))
        return replace(model, name=setup.model.name, dimensions=dict(setup.model.dimensions), layers=layers)


def _axes(model: Model) -> set[str]:
    return {axis for layer in model.kinds for axis in layer.axes}


def _expert_axes(model: Model) -> set[str]:
    return {axis for layer in model.kinds for axis in layer.expert_axes}


def _divides_as(model: Model, setup: Setup) -> bool:
    """Return whether a model under its strategy is divided as a setup says, and leaves every rank something."""
    axes, body = _axes(model), model.body[0][0]
    residual = names(body.boundary_bytes)
    if any(layer.panelled for layer in model.kinds) or "tp2" in axes:
        return False
    if setup.tp > 1 and ("tp" in residual) != setup.sp:
        return False
    if (setup.cp > 1 and "cp" not in axes) or (setup.ep > 1 and "ep" not in axes):
        return False
    degrees = {axis: getattr(setup, axis, 1) for axis in (*MODEL_AXES, "dp")}
    if not nests(degrees, _expert_axes(model)):
        return False
    keys = _key_columns([setup], _expert_axes(model))
    for layer in model.kinds:
        values = rule_values(layer, setup.model.dimensions, setup.sequence_length, keys)
        if bool(divided_away(layer, values).any()):
            return False
    return True


def _batch(setups: Sequence[Setup], members: Sequence[tuple[int, AssumptionsSpec, Model]]) -> Batch:
    rows = np.array([row for row, _, _ in members])
    _, spec, first = members[0]
    own = [setups[row] for row in rows]
    dimensions = _stacked([setup.model.dimensions for setup in own])
    keys = _key_columns(own, _expert_axes(first))
    length = np.array([float(setup.sequence_length) for setup in own])
    made = [layer_work(layer, dimensions, spec, length, keys) for layer in first.kinds]
    tiers = _units(own)
    lying = [key_shares(keys, unit, _expert_axes(first)) for unit in tiers]
    works = tuple(
        replace(work, wider=tuple({axis: 1.0 * shares[axis] for axis in work.shares} for shares in lying))
        for work in made
    )
    stacks = [stack_of(model) for _, _, model in members]
    machines = [anonymous(cluster_from_spec(setup.cluster)) for setup in own]
    flops = sum(
        np.broadcast_to(count * _forward_flops(layer, dimensions, length), length.shape)
        for layer, count in _counts(first, members)
    )
    return Batch(
        rows=rows,
        spec=spec,
        works=works,
        hardware=_column(machines),
        choices=_choices(own),
        workload=Workload(
            stack=_column(stacks),
            sequence_length=length,
            forward_flops=flops,
            train_tokens=np.full(len(own), np.nan),
            open=opened(_NOT_IN_TABLES | {"vpp": (1, 2), "stored_layers": ()}),
        ),
    )


def _counts(model: Model, members: Sequence[tuple[int, AssumptionsSpec, Model]]) -> list[tuple[DerivedLayer, Any]]:
    """Return each entry of a model's layers with its [N] counts."""
    counts = np.array([[count for _, count in other.layers] for _, _, other in members], dtype=np.float64)
    return [(layer, counts[:, entry]) for entry, (layer, _) in enumerate(model.layers)]


def _forward_flops(layer: DerivedLayer, dimensions: Mapping[str, Any], length: np.ndarray) -> Any:
    """Return the [N] matrix FLOPs of the forward of one sequence, undivided."""
    values = unsharded(layer, dimensions, length)
    return sum(evaluate(kernel.work[FORWARD].matrix, values) for kernel in layer.kernels)


def _column(records: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.array(leaves, dtype=np.float64), *records)


def _stacked(dimensions: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    return {letter: np.array([float(one[letter]) for one in dimensions]) for letter in dimensions[0]}


def _key_columns(setups: Sequence[Setup], expert_axes: Collection[str]) -> dict[str, np.ndarray]:
    ones = np.ones(len(setups))
    columns = {axis: np.array([getattr(setup, axis, 1) for setup in setups]) for axis in MODEL_AXES}
    shares = [_shares(setup) for setup in setups]
    columns |= {f"{axis}_nvs": np.array([one.get(axis, 1) for one in shares]) for axis in (*MODEL_AXES, "dp")}
    columns["ep_nvs"] = expert_share(columns, expert_axes)
    return columns | {"panels": ones, "microbatch_size": np.array([setup.microbatch_size for setup in setups])}


def _shares(setup: Setup) -> dict[str, int]:
    """Return how many members of each axis share a fast domain."""
    left = min(setup.cluster.network.nvs.size, setup.num_gpus)
    found: dict[str, int] = {}
    for axis in _PLACED:
        found[axis] = math.gcd(getattr(setup, axis), left)
        left //= found[axis]
    return found


def _units(setups: Sequence[Setup]) -> list[np.ndarray]:
    """Return, for each tier between the fast domain and the outermost one, the domains of a unit for each setup."""
    found = [units(cluster_from_spec(setup.cluster).network) for setup in setups]
    return [np.array(column) for column in zip(*found, strict=True)]


def _choices(setups: Sequence[Setup]) -> StepChoices:
    shares = [_shares(setup) for setup in setups]
    columns = {
        name: [float(getattr(setup, name)) for setup in setups]
        for name in (
            "num_gpus",
            "global_batch_size",
            "pp",
            "dp",
            "num_microbatches",
            "vpp",
            "zero_stage",
            "stored_layers",
        )
    }
    columns |= {
        name: [float(codes.index(getattr(setup, name))) for setup in setups]
        for name, codes in (("recompute", RECOMPUTE), ("schedule", SCHEDULES))
    }
    columns |= {name: [float(value)] * len(setups) for name, (value,) in _NOT_IN_TABLES.items()}
    columns |= {f"{axis}_nvs": [float(one[axis]) for one in shares] for axis in ("pp", "dp")}
    plans = {name: np.array(columns[name], dtype=np.int64) for name in ("pp", "dp", "pp_nvs", "dp_nvs")}
    plans["order"] = np.zeros(len(setups), dtype=np.int64)
    stride = stride_of_replicas(_key_columns(setups, ()))
    lying = [choice_shares(plans, stride, unit) for unit in _units(setups)]
    return StepChoices(
        **{name: np.array(column) for name, column in columns.items()},
        pp_wider=tuple(1.0 * shares["pp"] for shares in lying),
        dp_wider=tuple(1.0 * shares["dp"] for shares in lying),
    )


def _one(
    works: Any, hardware: Cluster, choices: StepChoices, workload: Workload, assumptions: Assumptions
) -> StepCosts:
    kinds = tuple(layer_costs(work, hardware, assumptions) for work in works)
    return step_costs(kinds, choices, workload, hardware, assumptions)


def price(batch: Batch, assumptions: Assumptions) -> StepCosts:
    """Return the costs of the setups of a batch, [N]; traceable and differentiable in `assumptions`."""
    return _price_once(*arguments(batch), assumptions)


def pricer(batch: Batch) -> Callable[[Assumptions], StepCosts]:
    """Return `price` of a batch for many assumptions: the batch is put on the device once.

    To be made and called under `enable_x64(True)`.
    """
    given = jax.tree.map(jnp.asarray, arguments(batch))
    return lambda assumptions: _price_often(*given, assumptions)


def arguments(batch: Batch) -> tuple[Any, ...]:
    """Return a batch as what `_price` takes: rows first, then a last axis of one."""
    works = jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf)[..., None], -2, 0), batch.works)
    works = tuple(_spread(work, len(batch.rows)) for work in works)
    choices = jax.tree.map(lambda leaf: leaf[:, None], batch.choices)
    return works, batch.hardware, choices, batch.workload


def _spread(work: LayerWork, count: int) -> LayerWork:
    """Return the work with the launches, which no size changes, for every row."""
    return replace(work, launches=np.repeat(work.launches, count, axis=0))


def _price(works: Any, hardware: Cluster, choices: Any, workload: Workload, assumptions: Assumptions) -> StepCosts:
    found = jax.vmap(_one, in_axes=(0, 0, 0, 0, None))(works, hardware, choices, workload, assumptions)
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0]), found)


# Optimised code is ten times as fast, and takes several times as long to compile: it pays where a fit prices the same
# rows hundreds of times.
_price_once = jax.jit(_price, compiler_options={"xla_backend_optimization_level": 0})
_price_often = jax.jit(_price)
