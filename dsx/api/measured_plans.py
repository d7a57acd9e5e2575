"""The plans whose kernels are measured: the best of a job or of a result set, or a spread over a model's shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsx.api.best import best
from dsx.api.inputs import file_of
from dsx.api.job import Job
from dsx.api.result_row import inputs_of
from dsx.errors import NothingFeasible, SpecError
from dsx.graph.model import Model, build_model, layer_check
from dsx.graph.notation import AXES
from dsx.measuring.cases import Case, cases_of, in_turn
from dsx.pricing.measured_kernels import key_of
from dsx.results.plan_rows import fastest
from dsx.results.store import read_manifest
from dsx.space.choices import KEY_COLUMNS
from dsx.space.strategy_rules import allowed
from dsx.spec.assumptions import AssumptionsSpec, load_assumptions
from dsx.spec.load import Given
from dsx.spec.model import load_model
from dsx.spec.overrides import Assignment

# Of a spread: the tensor-parallel degrees that a fast domain has room for, and sequences of a microbatch.
_SPREAD = {"tp": (1, 2, 4, 8), "microbatch_size": (1, 2, 4)}


@dataclass(frozen=True, slots=True)
class MeasuredPlans:
    """Plans of a model under one strategy and sequence length, as a key table."""

    model: Model
    assumptions: AssumptionsSpec
    sequence_length: int
    keys: Mapping[str, np.ndarray]


def cases(plans: Sequence[MeasuredPlans]) -> list[Case]:
    """Return the distinct kernels of several plans, in the order in which they are measured."""
    found = [case for one in plans for case in cases_of(one.model, one.assumptions, one.sequence_length, one.keys)]
    return in_turn({case.key: case for case in reversed(found)}.values())


def plans_of_job(job: Job, top: int) -> list[MeasuredPlans]:
    """Return the `top` fastest plans of a job; raises NothingFeasible, with the reason, if none fits."""
    found = best(job, top)
    if not found.plans:
        raise NothingFeasible(found.infeasible)
    models = dict(zip(found.problem.strategies, found.problem.models, strict=True))
    return _grouped([(plan, models[plan["strategy"]], job.assumptions) for plan in found.plans])


def plans_of_set(folder: Path, top: int) -> list[MeasuredPlans]:
    """Return the `top` fastest plans of a result set.

    Raises StoreError if the set cannot be read, NothingFeasible if none of its rows fits.
    """
    manifest = read_manifest(folder)
    rows = fastest(folder, top)
    if not rows:
        raise NothingFeasible(f"no plan to measure: none of the rows of {folder} is feasible")
    stated = dict(zip(manifest.names["strategy"], manifest.spec["resolved"]["strategy"], strict=True))
    found: list[tuple[Mapping[str, Any], Model, AssumptionsSpec]] = []
    models: dict[str, tuple[Model, AssumptionsSpec]] = {}
    for row in rows:
        strategy = row["plan"]["strategy"]
        if strategy not in models:
            inputs = inputs_of(folder, manifest, row["hardware"])
            built = build_model(inputs.model, inputs.assumptions, stated[strategy], inputs.near)
            models[strategy] = (built, inputs.assumptions)
        found.append((row["plan"], *models[strategy]))
    return _grouped(found)


def spread_of_model(
    model: Given, assumptions: Given, overrides: Mapping[str, Sequence[Assignment]], sequence_length: int | None
) -> list[MeasuredPlans]:
    """Return tensor-parallel degrees and microbatch sizes of a model, under the default strategy.

    Raises SpecError for a file that cannot be read, an override of a cluster, and a strategy that allows none of them.
    """
    for path, value in overrides["cluster"]:
        raise SpecError(f"--set cluster.{path}={value}: no cluster is read here; shapes do not depend on one")
    near = file_of(model)
    assumed = load_assumptions(assumptions, overrides["assumptions"])
    spec = load_model(model, overrides["model"], None, layer_check(near, assumed))
    built = build_model(spec, assumed, assumed.default_strategy, near)
    length = sequence_length or spec.default_sequence_length
    degrees, sizes = (column.ravel() for column in np.meshgrid(_SPREAD["tp"], _SPREAD["microbatch_size"]))
    ones = np.ones_like(degrees)
    keys = {name: ones for name in (*KEY_COLUMNS, *AXES, "panels")} | {
        "strategy": np.zeros_like(degrees),
        "tp": degrees,
        "microbatch_size": sizes,
    }
    good = np.asarray(allowed(built.body_layer, spec.dimensions, length, keys))
    if not good.any():
        raise SpecError(
            f"strategy {assumed.default_strategy!r} runs none of tp={','.join(map(str, _SPREAD['tp']))} on model "
            f"{spec.name!r}: give a job, with --cluster, --num-gpus and --global-batch-size"
        )
    return [MeasuredPlans(built, assumed, length, {name: column[good] for name, column in keys.items()})]


def _grouped(plans: Sequence[tuple[Mapping[str, Any], Model, AssumptionsSpec]]) -> list[MeasuredPlans]:
    """Return plans in groups of one model, strategy and sequence length."""
    groups: dict[tuple[int, int], list[tuple[Mapping[str, Any], Model, AssumptionsSpec]]] = {}
    for plan, model, assumptions in plans:
        groups.setdefault((id(model), plan["sequence_length"]), []).append((plan, model, assumptions))
    made: list[MeasuredPlans] = []
    for (_, length), members in groups.items():
        tables = [key_of(plan) for plan, _, _ in members]
        keys = {name: np.concatenate([one[name] for one in tables]) for name in tables[0]}
        made.append(MeasuredPlans(members[0][1], members[0][2], int(length), keys))
    return made
