"""Measured setups as arrays: setups with the same structure and schedule are priced together.

Each has its own model and machine: sizes, counts, hardware and choices are arrays over the setups of a structure
(`dsx.predict.structure`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from dsx.cost.assumptions import Assumptions, assumptions_from_spec
from dsx.cost.choices import StepChoices
from dsx.cost.recompute_modes import modes_of
from dsx.cost.step import Workload
from dsx.cost.work import OF_WORK, LayerWork, layer_work
from dsx.graph.derived import FORWARD, DerivedLayer
from dsx.graph.expressions import evaluate
from dsx.graph.model import Model, unsharded
from dsx.hardware.cluster import Cluster, anonymous, cluster_from_spec
from dsx.predict.structure import Strategies, columns_of, expert_axes
from dsx.pricing.batch import pad
from dsx.pricing.cuts import boundaries_of
from dsx.pricing.problem import stack_of
from dsx.pricing.row_costs import on_units, step_choices
from dsx.runs.reasons import Reason
from dsx.runs.run_table import FURTHER
from dsx.runs.setups import Setup
from dsx.space.codes import searched_values
from dsx.space.layer_layout import LAYOUT
from dsx.space.recompute_values import MAIN
from dsx.space.tiers import key_shares, units
from dsx.spec.assumptions import AssumptionsSpec

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


def batches(setups: Sequence[Setup], assumptions: AssumptionsSpec) -> tuple[list[Batch], dict[int, Reason]]:
    """Return the setups as batches, and by position the reasons why some cannot be priced."""
    strategies = Strategies(assumptions)
    members: dict[Any, list[tuple[int, AssumptionsSpec, Model]]] = {}
    reasons: dict[int, Reason] = {}
    for row, setup in enumerate(setups):
        found = strategies.model_of(setup)
        if isinstance(found, Reason):
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
