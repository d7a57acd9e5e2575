"""Measured setups as arrays: those of one structure are priced together, each with its own model and machine.

Sizes, counts, hardware and choices are arrays over the rows of a structure (`dsx.predict.structure`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from dsx.cost.choices import StepChoices
from dsx.cost.step import Workload
from dsx.cost.work import LayerWork, layer_work
from dsx.graph.derived import FORWARD, DerivedLayer
from dsx.graph.expressions import evaluate
from dsx.graph.model import Model, unsharded
from dsx.hardware.cluster import Cluster, anonymous, cluster_from_spec
from dsx.predict.placement import key_columns, shares
from dsx.predict.structure import Strategies, expert_axes, structure
from dsx.pricing.problem import stack_of
from dsx.runs.reasons import Reason
from dsx.runs.setups import Setup
from dsx.space.choices import BY_NAME, STEP_COLUMNS, STEP_OPEN
from dsx.space.codes import opened
from dsx.space.tiers import choice_shares, key_shares, stride_of_replicas, units
from dsx.spec.assumptions import AssumptionsSpec

# Choices of the step that few rows state.
_FURTHER = tuple(name for name in STEP_OPEN if name not in Setup.__dataclass_fields__)


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
    strategies = Strategies(assumptions)
    members: dict[Any, list[tuple[int, AssumptionsSpec, Model]]] = {}
    reasons: dict[int, Reason] = {}
    for row, setup in enumerate(setups):
        found = strategies.model_of(setup)
        if isinstance(found, Reason):
            reasons[row] = found
        else:
            members.setdefault(structure(setup, *found), []).append((row, *found))
    return [_batch(setups, rows) for rows in members.values()], reasons


def _batch(setups: Sequence[Setup], members: Sequence[tuple[int, AssumptionsSpec, Model]]) -> Batch:
    rows = np.array([row for row, _, _ in members])
    _, spec, first = members[0]
    own = [setups[row] for row in rows]
    dimensions = _stacked([setup.model.dimensions for setup in own])
    keys = key_columns(own, expert_axes(first))
    length = np.array([float(setup.sequence_length) for setup in own])
    made = [layer_work(layer, dimensions, spec, length, keys) for layer in first.kinds]
    tiers = _units(own)
    lying = [key_shares(keys, unit, expert_axes(first)) for unit in tiers]
    works = tuple(
        replace(work, wider=tuple({axis: 1.0 * here[axis] for axis in work.shares} for here in lying)) for work in made
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
            # Of choices that no row states no formula is compiled.
            open=opened({name: sorted(set(_further(own, name))) for name in _FURTHER} | {"vpp": (1, 2)}),
        ),
    )


def _counts(model: Model, members: Sequence[tuple[int, AssumptionsSpec, Model]]) -> list[tuple[DerivedLayer, Any]]:
    """Return each layer kind of a model with its [N] counts.

    Where kinds alternate the models of a structure may have different numbers of entries, but of the same kinds.
    """
    counts = np.array([_by_kind(other) for _, _, other in members], dtype=np.float64)
    return [(layer, counts[:, kind]) for kind, layer in enumerate(model.kinds)]


def _by_kind(model: Model) -> list[int]:
    """Return the layers of each kind."""
    return [sum(count for layer, count in model.layers if layer is kind) for kind in model.kinds]


def _forward_flops(layer: DerivedLayer, dimensions: Mapping[str, Any], length: np.ndarray) -> Any:
    """Return the [N] matrix FLOPs of the forward of one sequence, undivided."""
    values = unsharded(layer, dimensions, length)
    return sum(evaluate(kernel.work[FORWARD].matrix, values) for kernel in layer.kernels)


def _column(records: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.array(leaves, dtype=np.float64), *records)


def _stacked(dimensions: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    return {letter: np.array([float(one[letter]) for one in dimensions]) for letter in dimensions[0]}


def _units(setups: Sequence[Setup]) -> list[np.ndarray]:
    """Return, for each tier between the fast domain and the outermost one, the domains of a unit for each setup."""
    found = [units(cluster_from_spec(setup.cluster).network) for setup in setups]
    return [np.array(column) for column in zip(*found, strict=True)]


def _further(setups: Sequence[Setup], name: str) -> list[int]:
    """Return the codes of a choice that rows state beside the others, or the usual one."""
    usual = BY_NAME[name].code(BY_NAME[name].usual)
    return [dict(setup.further).get(name, usual) for setup in setups]


def _code(name: str, value: int | str) -> int:
    return BY_NAME[name].code(value) if isinstance(value, str) else value


def _choices(setups: Sequence[Setup]) -> StepChoices:
    placed = [shares(setup) for setup in setups]
    own = [name for name in STEP_COLUMNS if name in Setup.__dataclass_fields__]
    columns = {name: [float(_code(name, getattr(setup, name))) for setup in setups] for name in own}
    columns |= {name: [float(code) for code in _further(setups, name)] for name in _FURTHER}
    columns |= {f"{axis}_nvs": [float(one[axis]) for one in placed] for axis in ("pp", "dp")}
    plans = {name: np.array(columns[name], dtype=np.int64) for name in ("pp", "dp", "pp_nvs", "dp_nvs")}
    plans["order"] = np.zeros(len(setups), dtype=np.int64)
    stride = stride_of_replicas(key_columns(setups, ()))
    lying = [choice_shares(plans, stride, unit) for unit in _units(setups)]
    return StepChoices(
        **{name: np.array(column) for name, column in columns.items()},
        pp_wider=tuple(1.0 * here["pp"] for here in lying),
        dp_wider=tuple(1.0 * here["dp"] for here in lying),
    )
