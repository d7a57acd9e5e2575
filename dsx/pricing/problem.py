"""A problem, a model on a cluster under an assumption set for one or more strategies; and a batch of its plans.

Every given plan is priced here: an evaluated plan, a measured run, the winners of a search, a row with its own layer
layout. Only the hot loop of a search, which needs no more than the smallest of millions, has a kernel of its own
(`dsx.search.tiles.hot`); a test holds both to the same costs. A batch is priced on NumPy, since nothing is compiled
then: thousands of plans take milliseconds.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from dsx.arrays import Rounds
from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.cluster_file import Cluster, ClusterSpec, anonymous, cluster_from_spec
from dsx.config.framework_file import ANY_LAYER, FrameworkSpec
from dsx.config.model_file import ModelSpec, has_experts
from dsx.config.operator_files import OperatorTimes
from dsx.config.topology import NetworkSpec
from dsx.cost.context import Assumptions, StepChoices, StepCosts, assumptions_from_spec
from dsx.cost.interval import Likeness, likeness
from dsx.cost.layer import LayerCosts
from dsx.cost.measured_kernels import TimesTable, times_table
from dsx.cost.recomputation import values_with_effect
from dsx.cost.stage import StageCosts
from dsx.cost.stages import Stack
from dsx.cost.step import Workload, step_costs
from dsx.errors import SpecError, did_you_mean
from dsx.notation.expressions import evaluate, names
from dsx.notation.library import kernel_names, load_operators
from dsx.notation.model import Model, build_model, counted, unsharded
from dsx.notation.work import FORWARD, DerivedLayer, derive, layers_hash
from dsx.plans.choices import BY_NAME, SEARCHED_COLUMNS
from dsx.plans.enumerate import run_by, searched_values
from dsx.plans.frameworks import Boxes, boxes_of, of_regions
from dsx.plans.rules import EVEN, OPTIMAL, RULES, Limits, Reason
from dsx.plans.violations import HOST_MEMORY, MEMORY, VANISHES, on_platform, strategy_reasons
from dsx.records import Shaped, tree_map
from dsx.schedules.schedules import codes_where


def pad(column: Shaped[np.ndarray, "*of _"], length: int) -> Shaped[np.ndarray, "*of {length}"]:
    """Return an array padded to `length` with its last values."""
    if column.shape[-1] == length:
        return column
    return np.pad(column, [(0, 0)] * (column.ndim - 1) + [(0, length - column.shape[-1])], mode="edge")


class Plans(NamedTuple):
    """A batch of plans; leaves may be scalars that all plans share."""

    kinds: Sequence[LayerCosts]
    choices: StepChoices
    cluster: Cluster
    assumptions: Assumptions


def stage_costs(plans: Plans, workload: Workload) -> StageCosts:
    """Return the costs of any stage of plans."""
    return StageCosts(plans.choices, workload.searched, workload.stack, plans.cluster, plans.assumptions, plans.kinds)


def costs(plans: Plans, workload: Workload, boundaries: Rounds | None = None) -> StepCosts:
    """Return the costs of plans. Cuts are even unless `boundaries` give them."""
    return step_costs(plans.kinds, plans.choices, workload, plans.cluster, plans.assumptions, boundaries)


def price(plans: Plans, workload: Workload, boundaries: Rounds | None = None, float64: bool = True) -> StepCosts:
    """Return the costs of plans as NumPy arrays in float64 or float32; arguments are those of `costs`."""
    dtype = np.float64 if float64 else np.float32
    return costs(*tree_map(lambda leaf: np.asarray(leaf, dtype), (plans, workload, boundaries)))


def none_priced(float64: bool = True) -> StepCosts:
    """Return the costs of no plan."""
    nothing = np.zeros(0, np.float64 if float64 else np.float32)
    return StepCosts(**dict.fromkeys(StepCosts.__dataclass_fields__, nothing))


T = TypeVar("T")
MAX_LAYERS = 1024  # of a chain that is cut optimally: one or two gigabytes, and tens of seconds


def check_length(num_layers: int, what: str, cure: str) -> None:
    """Raise SpecError if the chain `what` is too long to be cut optimally; `cure` says what to do instead."""
    if num_layers > MAX_LAYERS:
        raise SpecError(
            f"{what} has {num_layers:,} layers, but an optimal cut takes at most {MAX_LAYERS:,}: its memory grows with "
            f"the square of the layers; {cure}"
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that the candidates of a search share."""

    model: ModelSpec
    assumptions_spec: AssumptionsSpec
    strategies: tuple[str, ...]
    models: tuple[Model, ...]  # the model under each strategy
    network: NetworkSpec  # as the cluster file describes it; the tiers are derived from it
    cluster: Cluster
    hardware: Cluster  # the hardware points for compiled functions: `cluster` without names, leaves [H]
    assumptions: Assumptions  # leaves [H]
    likeness: Likeness  # what measurements may share with its plans
    workload: Workload
    sequence_length: int
    operator_times: TimesTable | None = None  # measured times that replace the roofline of kernels
    partition: str = EVEN  # one of `dsx.plans.choices.PARTITIONS`
    framework: FrameworkSpec | None = None  # whose plans are searched; None: all plans
    merged: bool = False  # whether a plan that several strategies have is searched once, under the first of them

    @property
    def boxes(self) -> Boxes:
        """The plans that the framework runs."""
        return boxes_of(self.framework, self.strategies, has_experts(self.model.dimensions))

    @property
    def kinds(self) -> tuple[tuple[DerivedLayer, ...], ...]:
        """The layer kinds of each strategy, in the same order."""
        return tuple(model.kinds for model in self.models)

    @property
    def layers(self) -> tuple[DerivedLayer, ...]:
        """The body layer under each strategy."""
        return tuple(model.body_layer for model in self.models)

    @property
    def expert_axes(self) -> tuple[tuple[str, ...], ...]:
        """The other axes that shard experts, besides ep, under each strategy."""
        return tuple(
            tuple(dict.fromkeys(axis for layer in kinds for axis in layer.expert_axes)) for kinds in self.kinds
        )

    @property
    def num_layers(self) -> int:
        """The body layers of the model, which a pipeline cuts into stages."""
        return self.models[0].num_body_layers

    @property
    def num_end_layers(self) -> int:
        """The layers before and after the body: embedding and head."""
        return len(self.workload.stack.first) + len(self.workload.stack.last)

    @property
    def optimal_cuts(self) -> bool:
        """Whether each plan has its optimal cut; otherwise cuts are even."""
        return self.partition == OPTIMAL

    def limits(self, strategy: int = 0) -> Limits:
        """Return the limits that rules compare a plan of a strategy with."""
        stack = self.workload.stack
        return Limits(
            self.num_layers,
            self.nvs_size,
            self.expert_axes[strategy],
            self.partition,
            len(stack.first),
            len(stack.last),
            self.models[0].num_predictions,
            counts_ends=bool(stack.first and stack.last),
            uneven=self.assumptions_spec.uneven_domains,
        )

    def with_partition(self, partition: str) -> "Problem":
        """Return the problem with another partition; SpecError for too many layers for an optimal cut."""
        if partition == OPTIMAL:
            check_layers(self.model, self.assumptions_spec)
        return replace(self, partition=partition)

    def searching(self, fix: Mapping[str, Sequence[int | str]]) -> "Problem":
        """Return the problem with the values of `fix` in place of fixed choices of its assumption set.

        Raises SpecError for a value that a column does not have.
        """
        values = {name: [BY_NAME[name].code(value) for value in fix[name]] for name in SEARCHED_COLUMNS if name in fix}
        searched = {name: getattr(self.workload.searched, name) for name in SEARCHED_COLUMNS} | values
        return replace(self, workload=replace(self.workload, searched=searched_values(searched)))

    def run_by(self, framework: FrameworkSpec) -> "Problem":
        """Return the problem with the plans of a framework, without searched values that it never runs."""
        regions = {name for layers in self.kinds for layer in layers for name in layer.region_names}
        tied = any(weight.tied for model in self.models for layer in model.last for weight in layer.weights)
        framework = framework.on(self.likeness.generation).of_sequence(self.sequence_length).of_head(tied)
        lacks = [
            strategy
            for strategy, model in zip(self.strategies, self.models, strict=True)
            if any(_lacks_exchanges(framework, layer) for layer, _ in model.body)
        ]
        framework = of_regions(framework, regions).without_cp(lacks)
        searched = run_by(framework, self.strategies, has_experts(self.model.dimensions), self.workload.searched)
        return replace(self, framework=framework, workload=replace(self.workload, searched=searched))

    def without_margin(self) -> "Problem":
        """Return the problem with all memory for a plan: a search leaves room for errors of its prediction."""
        margin = np.zeros_like(self.assumptions.memory_margin)
        return replace(self, assumptions=replace(self.assumptions, memory_margin=margin))

    @property
    def nvs_size(self) -> int:
        """The GPUs of a fast domain."""
        return self.cluster.network.nvs.size

    @property
    def node_size(self) -> int:
        """The GPUs of a node, as of its cluster."""
        return self.cluster.node_size

    def check_sizes(self, num_gpus: Sequence[int]) -> None:
        """Raise SpecError for a job that is larger than the cluster, if the cluster has a size."""
        tiers = self.cluster.network.tiers
        size = tiers[-1].size
        for number in num_gpus:
            if size and number > size:
                below = [1, *(tier.size for tier in tiers)]
                levels = " * ".join(
                    f"{tier.name}={tier.size // inner}" for tier, inner in zip(tiers, below, strict=False)
                )
                raise SpecError(
                    f"num_gpus = {number}: cluster {self.cluster.name!r} has {levels} = {size} GPUs, "
                    f"{number - size} too few"
                )

    @property
    def num_points(self) -> int:
        """The hardware points that are priced together; one, unless a sweep varies the hardware."""
        return np.size(self.hardware.device.hbm_capacity)

    def at_point(self, point: int) -> tuple[Cluster, Assumptions]:
        """Return the hardware and the assumptions of one point, with floats as leaves."""
        return tree_map(lambda leaf: float(leaf[point]), (self.hardware, self.assumptions))

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons to reject a plan; bit i of `reject` is reason i."""
        users_of: dict[str, dict[str, list[str]]] = {}
        for name, layer in zip(self.strategies, self.layers, strict=True):
            for reason in strategy_reasons(layer):
                users_of.setdefault(reason.name, {}).setdefault(reason.description, []).append(name)
        merged = [
            Reason(name, "; ".join(f"{text} ({', '.join(users)})" for text, users in texts.items()))
            for name, texts in users_of.items()
        ]
        return (MEMORY, VANISHES, HOST_MEMORY, *RULES, *merged)

    def fingerprint(self) -> dict[str, str]:
        """Return, per strategy, a hash of everything that is derived from its layer definitions."""
        return {name: layers_hash(kinds) for name, kinds in zip(self.strategies, self.kinds, strict=True)}


def _lacks_exchanges(framework: FrameworkSpec, layer: DerivedLayer) -> bool:
    """Return whether a layer exchanges over cp as a framework does not beside the options of the layer."""
    options = {ANY_LAYER, *(option for option, is_set in layer.options.items() if is_set)}
    kinds = {kind for kind, _ in layer.exchanges("cp")}
    return any(option in options and not kinds <= {*has} for option, has in framework.cp_exchanges.items())


def _as_point(record: T) -> T:
    return tree_map(lambda leaf: np.array([leaf], dtype=np.float64), record)


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """What a problem has besides its model, cluster, assumption set and strategies; fields are as in `Problem`."""

    sequence_length: int | None = None  # tokens; by default that of the model
    train_tokens: float | None = None
    near: Path | None = None  # the file that names the strategies
    operator_times: OperatorTimes | None = None
    partition: str = EVEN
    framework: FrameworkSpec | None = None
    merged: bool = False


_DEFAULTS = ProblemOptions()


def make_problem(
    model: ModelSpec,
    cluster: ClusterSpec,
    assumptions: AssumptionsSpec,
    strategies: Sequence[str],
    options: ProblemOptions = _DEFAULTS,
    models: Sequence[Model] | None = None,
) -> Problem:
    """Build a problem; `models` are the model under each strategy, if they are built already.

    Raises SpecError for a strategy that cannot be priced yet and for a model with too many layers for an optimal cut,
    and OperatorTimesError for a row of the operator times that names no kernel.
    """
    near, times = options.near, options.operator_times
    if options.partition == OPTIMAL:
        check_layers(model, assumptions)
    assumptions = on_platform(assumptions, cluster.device.software)
    length = options.sequence_length or model.default_sequence_length
    built = (priceable_model(model, assumptions, strategy, near) for strategy in strategies)
    models = tuple(built if models is None else models)
    without_experts = not any("ep" in layer.axes for built in models for layer in built.kinds)
    machine = cluster_from_spec(cluster)
    # On two tiers a plan may have any placement, so the order has no effect.
    one_order = {"order": [0]} if not machine.network.middle else {}
    layers = [layer for model in models for layer in model.kinds]
    fixed = (
        one_order
        | {"recompute": values_with_effect(layers), "schedule": codes_where(lambda schedule: schedule.exact)}
        | _fixed(assumptions)
        | ({"ep": [1]} if without_experts else {})
    )
    own_names = tuple(built.kinds[0].strategy for built in models)
    for name in own_names:
        if own_names.count(name) > 1:
            raise SpecError(f"two strategies have the name {name!r}: rename one of them in its definition")
    problem = Problem(
        model=model,
        assumptions_spec=assumptions,
        strategies=own_names,
        models=models,
        network=cluster.network,
        cluster=machine,
        hardware=_as_point(anonymous(machine)),
        assumptions=_as_point(assumptions_from_spec(assumptions, cluster.device.family)),
        likeness=likeness(assumptions.stack, cluster.device, model),
        workload=Workload(
            stack=stack_of(models[0]),
            sequence_length=float(length),
            **model_flops(models[0], assumptions, length),
            train_tokens=float("nan") if options.train_tokens is None else float(options.train_tokens),
            searched=searched_values(fixed),
        ),
        sequence_length=length,
        operator_times=times and _table(times, assumptions, models, near),
        partition=options.partition,
        merged=options.merged,
    )
    return problem if options.framework is None else problem.run_by(options.framework)


def check_layers(model: ModelSpec, assumptions: AssumptionsSpec) -> None:
    """Raise SpecError for a model with too many layers for an optimal cut."""
    check_length(
        sum(entry.count for entry in counted(model, assumptions)),
        f"model {model.name!r}",
        "an even cut has no such limit (partition even of best, evaluate and sweep)",
    )


def priceable_model(model: ModelSpec, assumptions: AssumptionsSpec, strategy: str, near: Path | None = None) -> Model:
    """Return a model under a strategy; raises InputError if it cannot be built, or cannot be priced yet."""
    built = build_model(model, assumptions, strategy, near)
    for layer in built.kinds:
        used = {*layer.axes, *(name for expr in layer.definitions.values() for name in names(expr))}
        if "dp" in used:
            raise SpecError(f"{layer.name!r} under {strategy!r} shards over dp, which is derived but not priced yet")
    return built


def _table(
    times: OperatorTimes, assumptions: AssumptionsSpec, models: Sequence[Model], near: Path | None
) -> TimesTable:
    # A file may hold kernels of several models: kernels of other layer definitions are known but match nothing here.
    titles = {kernel.title for model in models for layer in model.kinds for kernel in layer.kernels if kernel.fused}
    return times_table(times, load_operators(assumptions.operators, near), titles | kernel_names())


def stack_of(model: Model) -> Stack:
    """Return the layers of a model as a stack, for the cost of a step."""
    segments = model.segments
    runs = [*itertools.takewhile(lambda run: not run[0].graph.output_gradients, model.layers)]
    # A stage with a frozen embedding alone counts as one that gets a gradient back.
    num_constant = sum(count for _, count in runs) if len(runs) > model.leading else 0
    trained = [model.kinds.index(layer) for layer, _ in model.layers[len(runs) :]]
    first_of_last = len(model.kinds) - len(model.last)
    return Stack(
        counts=tuple(tuple(float(count) for _, count in segment) for segment in segments),
        segments=tuple(tuple(kind for kind, _ in segment) for segment in segments),
        first=tuple(range(len(model.first))),
        last=tuple(range(first_of_last, len(model.kinds))),
        num_constant=num_constant,
        first_trained=trained[0] if num_constant and trained else None,
    )


def model_flops(built: Model, assumptions: AssumptionsSpec, sequence_length: int) -> dict[str, float]:
    """Return the fields of `Workload` with the matrix FLOPs of one sequence through all layers on one GPU.

    Panels are left out, because a multiply in panels also counts its first addition, and what an assumption set does
    not count is counted. So the numbers are the same under every strategy.
    """
    forward = gradient = 0
    for layer, count in built.layers:
        values = unsharded(layer, built.dimensions, sequence_length)
        if layer.panelled or assumptions.uncounted:
            layer = derive(replace(layer, operators=tuple(replace(op, panelled=False) for op in layer.operators)))
        forward += count * sum(evaluate(kernel.work[FORWARD].matrix, values) for kernel in layer.kernels)
        gradient += count * sum(evaluate(kernel.gradient_flops, values) for kernel in layer.kernels)
    return {"forward_flops": float(forward), "gradient_flops": float(gradient)}


def _fixed(assumptions: AssumptionsSpec) -> dict[str, list[int]]:
    """Return the fixed choices of an assumption set; raises SpecError for a wrong column or value."""
    codes: dict[str, list[int]] = {}
    for column, value in assumptions.fixed.items():
        where = f"assumption set {assumptions.name!r}"
        if column not in SEARCHED_COLUMNS:
            raise SpecError(
                f"{where}: 'fixed' cannot fix {column!r}{did_you_mean(column, SEARCHED_COLUMNS)} "
                f"(known: {', '.join(SEARCHED_COLUMNS)}); use 'fix:' of a sweep"
            )
        try:
            codes[column] = [BY_NAME[column].code(value)]
        except SpecError as error:
            raise SpecError(f"{where}: fixed: {error}") from None
    return codes
