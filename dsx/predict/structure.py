"""Which measured setups share a structure, and the strategy of each.

Setups share a structure if their layers have the same definitions under the same strategy, and their machines the same
kind of network. The strategy of a run is the simplest packaged one that divides what the run divides.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from dsx.cost.assumptions import assumptions_from_spec
from dsx.errors import NotationError
from dsx.graph.expressions import names
from dsx.graph.library import strategy_names
from dsx.graph.model import Model, build_model, counted
from dsx.hardware.cluster import anonymous, cluster_from_spec
from dsx.runs.reasons import Reason
from dsx.runs.setups import Setup
from dsx.space.conditions import for_plan, on_platform
from dsx.space.enumerate import Arrays
from dsx.space.expert_nesting import nests, share_of_shares
from dsx.space.plan import stacked
from dsx.space.strategy_rules import divided_away, rule_values
from dsx.spec.assumptions import AssumptionsSpec


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
        self._found: dict[Any, tuple[AssumptionsSpec, Model] | Reason] = {}

    def model_of(self, setup: Setup) -> tuple[AssumptionsSpec, Model] | Reason:
        """Return a setup's assumption set and model; a Reason if no strategy divides the model as the setup does.

        The set has the kernels and the precision of the setup. Raises NotationError if no strategy can divide the layer
        definitions at all: the fault is in the definitions.
        """
        key = id(setup.model), setup.etp, setup.sp, *setup.plan.codes.values(), *_assumed(setup)
        if key not in self._found:
            self._found[key] = self._model_of(setup)
        return self._found[key]

    def _model_of(self, setup: Setup) -> tuple[AssumptionsSpec, Model] | Reason:
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
        return Reason("no strategy divides the model this way", f"{degrees}, etp={setup.etp}, sp={int(setup.sp)}")

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
