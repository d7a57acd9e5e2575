"""A problem: a model on a cluster under an assumption set, for the strategies that are compared."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np

from dsx.cost.assumptions import Assumptions, assumptions_from_spec
from dsx.cost.step import Workload
from dsx.errors import SpecError
from dsx.graph.derived import FORWARD, DerivedLayer, derive
from dsx.graph.expressions import evaluate, names
from dsx.graph.library import load_layer, load_operators
from dsx.graph.model import Model, build_model, layer_text, unsharded
from dsx.hardware.cluster import Cluster, anonymous, cluster_from_spec
from dsx.space.rules import GENERAL, MEMORY, VANISHES, Reason, strategy_reasons
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import ClusterSpec
from dsx.spec.model import ModelSpec

T = TypeVar("T")

# Columns that this version does not search, and the only value of each that it prices.
PRICED = {"zero_stage": 1, "recompute": "none", "schedule": "1f1b", "vpp": 1, "ep": 1}


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that is common to the candidates of a search."""

    model: ModelSpec
    assumptions_spec: AssumptionsSpec
    strategies: tuple[str, ...]
    models: tuple[Model, ...]  # the model under each strategy
    cluster: Cluster
    hardware: Cluster  # the hardware points: the same without names, leaves of [H]; what compiled functions take
    assumptions: Assumptions  # leaves of [H]
    workload: Workload
    sequence_length: int

    @property
    def layers(self) -> tuple[DerivedLayer, ...]:
        """The layer of each strategy."""
        return tuple(model.layers[0][0] for model in self.models)

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return self.models[0].num_layers

    @property
    def nvs_size(self) -> int:
        """GPUs of a fast domain."""
        return self.cluster.network.nvs.size

    @property
    def num_points(self) -> int:
        """Hardware points that are priced side by side; one, unless a sweep varies the hardware."""
        return len(self.hardware.device.hbm_capacity)

    def at_point(self, point: int) -> tuple[Cluster, Assumptions]:
        """Return hardware and assumptions of one point, with floats as leaves."""
        return jax.tree.map(lambda leaf: float(leaf[point]), (self.hardware, self.assumptions))

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why a plan may be rejected; bit i of `reject` is reason i."""
        found: dict[str, dict[str, list[str]]] = {}
        for name, layer in zip(self.strategies, self.layers, strict=True):
            for reason in strategy_reasons(layer):
                found.setdefault(reason.name, {}).setdefault(reason.description, []).append(name)
        merged = [
            Reason(name, "; ".join(f"{text} ({', '.join(users)})" for text, users in texts.items()))
            for name, texts in found.items()
        ]
        return (MEMORY, VANISHES, *(reason for reason, _ in GENERAL), *merged)

    def fingerprint(self) -> dict[str, str]:
        """Return, per strategy, a hash of everything that was derived from its texts."""
        return {
            name: hashlib.sha256(repr(_content(layer)).encode()).hexdigest()
            for name, layer in zip(self.strategies, self.layers, strict=True)
        }


def _as_point(record: T) -> T:
    return jax.tree.map(lambda leaf: np.array([leaf], dtype=np.float64), record)


def _content(layer: DerivedLayer) -> tuple[object, ...]:
    """Return what a layer's texts say, without where they lie."""
    rules = [(rule.left, rule.relation, rule.right, rule.reason) for rule in layer.rules]
    return (layer.definitions, layer.kernels, layer.weights, layer.boundary_bytes, layer.divided, rules)


def make_problem(
    model: ModelSpec,
    cluster: ClusterSpec,
    assumptions: AssumptionsSpec,
    strategies: Sequence[str],
    sequence_length: int | None = None,
    train_tokens: float | None = None,
    near: Path | None = None,
) -> Problem:
    """Build a problem; `near` is the file that names the strategies.

    Raises SpecError for what this version does not price.
    """
    _check_fixed(assumptions)
    if len(model.layers) > 1:
        kinds = ", ".join(f"{entry.count} x {entry.kind}" for entry in model.layers)
        raise SpecError(f"model {model.name!r} has several layer kinds ({kinds}); one kind is priced so far")
    length = sequence_length or model.default_sequence_length
    models = tuple(build_model(model, assumptions, strategy, near) for strategy in strategies)
    for built, strategy in zip(models, strategies, strict=True):
        layer = built.layers[0][0]
        used = {*layer.axes, *(name for expr in layer.definitions.values() for name in names(expr))}
        for axis in ("dp", "ep"):
            if axis in used:
                raise SpecError(f"{layer.name!r} under {strategy!r} uses {axis}; that is derived, but not priced yet")
    called = tuple(built.layers[0][0].strategy for built in models)
    for name in called:
        if called.count(name) > 1:
            raise SpecError(f"two strategies are called {name!r}: give one of the texts another name")
    machine = cluster_from_spec(cluster)
    return Problem(
        model=model,
        assumptions_spec=assumptions,
        strategies=called,
        models=models,
        cluster=machine,
        hardware=_as_point(anonymous(machine)),
        assumptions=_as_point(assumptions_from_spec(assumptions)),
        workload=Workload(
            num_layers=float(models[0].num_layers),
            sequence_length=float(length),
            forward_flops=forward_flops(model, assumptions, strategies[0], length, near),
            train_tokens=float("nan") if train_tokens is None else float(train_tokens),
        ),
        sequence_length=length,
    )


def forward_flops(
    model: ModelSpec, assumptions: AssumptionsSpec, strategy: str, sequence_length: int, near: Path | None = None
) -> float:
    """Return the matrix FLOPs of the forward of one sequence through all layers, undivided.

    Panels, in which a multiply also counts its first addition, are left out: the count is the same under every
    strategy.
    """
    table = load_operators(assumptions.operators, near)
    total = 0
    for entry in model.layers:
        layer = load_layer(layer_text(entry.kind, model.name, assumptions), strategy, table, near)
        plain = derive(replace(layer, operators=tuple(replace(op, panelled=False) for op in layer.operators)))
        values = unsharded(plain, model.dimensions, sequence_length)
        total += entry.count * sum(evaluate(kernel.work[FORWARD].matrix, values) for kernel in plain.kernels)
    return float(total)


def _check_fixed(assumptions: AssumptionsSpec) -> None:
    for column, value in assumptions.fixed.items():
        if column not in PRICED:
            raise SpecError(
                f"assumption set {assumptions.name!r}: 'fixed' holds {column!r}, which is not a column that can be "
                f"held fixed there (those are {', '.join(PRICED)}); use 'fix:' of a sweep"
            )
        if value != PRICED[column]:
            raise SpecError(
                f"assumption set {assumptions.name!r}: {column} = {value} is not priced yet; "
                f"only {column} = {PRICED[column]} is"
            )
