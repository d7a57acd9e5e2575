"""The rules of all strategies, one record each, and the limits that they compare a plan with.

A rule is a predicate on integer columns. An enumeration applies it to millions of plans, as soon as it has the columns
that the rule reads. `dsx why` applies it to one plan; the record then also says what is wrong, and which value is
nearest.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.plans.choices import CODES, MODEL_AXES, NONE_CODE
from dsx.plans.experts import REPLICA_AXES, Columns, Truth, W, Whole, nesting_ranks, nests, zero_replicas_nest
from dsx.plans.layer_layout import Chain
from dsx.plans.placement import (
    ORDERS,
    all_divisors,
    axes_in,
    divisors,
    ep_ranks_adjacent,
    even_shares,
    exact_fill,
    expert_share,
    in_order,
    lies_consecutively,
    of_order,
    replicas_spanned,
    shares_of,
)
from dsx.plans.placement import placed as shares_product
from dsx.records import Bool, Int, Shaped
from dsx.schedules.schedules import SCHEDULES, Schedule, codes_where, names_of

# How a pipeline cuts the layers into stages. A search has one; it is no column of a plan.
PARTITIONS = EVEN, OPTIMAL = ("even", "optimal")
GIVEN = "given"  # of a plan that states its layer layout; no search has it

# The axes whose degrees multiply to the GPUs and that are placed on fast domains, in the order of the columns. ep nests
# in them.
PLACED = (*REPLICA_AXES, "pp", "dp")
DEGREES = (*MODEL_AXES, "pp", "dp")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a plan is rejected."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that rules compare a plan with."""

    num_layers: int
    nvs_size: int
    expert_axes: tuple[str, ...] = ()  # other axes that shard experts, besides ep, under the strategy of the plan
    partition: str = EVEN
    # Embedding and head, which any cut but an even one may place on stages of their own.
    num_first_layers: int = 0
    num_last_layers: int = 0
    num_predictions: int = 0  # layers of multi-token prediction, part of the head
    counts_ends: bool = False  # whether an even cut may count embedding and head as a layer each
    uneven: bool = True  # whether groups may lie unevenly on fast domains, and plans leave GPUs of them free
    node_size: int = 1  # GPUs of a node, of which plans need the fewest, and fill all but the last; 1: any plan does
    in_rank_order: bool = False  # whether domains have consecutive ranks alone
    otherwise: bool = False  # whether plans are wanted that these two leave out, and no others

    @property
    def chain(self) -> Chain:
        """The layers that a layout divides."""
        return Chain(self.num_first_layers, self.num_layers, self.num_last_layers, self.num_predictions)

    @property
    def even_layers(self) -> tuple[int, ...]:
        """The numbers of layers that the chunks of an even cut may divide (`dsx.cost.stages`)."""
        return (self.num_layers, self.num_layers + 2) if self.counts_ends else (self.num_layers,)

    def divides(self, chunks: Whole) -> Bool[np.ndarray, "*#plans"]:
        """Return whether there is an even cut into so many chunks."""
        return np.logical_or.reduce([layers % chunks == 0 for layers in self.even_layers])

    def fills(self, stages: Whole) -> Truth:
        """Return whether an even cut has a layer for each of so many stages, which need not divide the layers."""
        layers = self.even_layers[-1]
        return (stages - 1) * -(-layers // stages) < layers

    @property
    def layers_text(self) -> str:
        """The layers that an even cut divides, in words."""
        counted = f", nor {self.num_layers + 2} with embedding and head" if self.counts_ends else ""
        return f"{self.num_layers} layer{'' if self.num_layers == 1 else 's'}{counted}"

    @property
    def max_stages(self) -> int:
        """Stages of the deepest pipeline: every layer that its cut counts is a stage."""
        return self.even_layers[-1] if self.partition == EVEN else self.chain.num_layers

    @property
    def stage_counts(self) -> Int[np.ndarray, "values"]:
        """The numbers of stages that the layers may be cut into."""
        return all_divisors(self.even_layers) if self.partition == EVEN else np.arange(1, self.max_stages + 1)

    @property
    def tried_layers(self) -> Sequence[int]:
        """The numbers of layers whose divisors a search tries as chunks per stage."""
        return self.even_layers if self.partition == EVEN else range(self.num_layers, self.chain.num_layers + 1)


def fill(num_gpus: Whole, nvs_size: int) -> Int[np.ndarray, "*#plans"]:
    """Return how many GPUs of a fast domain a job uses: the largest divisor of `num_gpus` that is at most its size.

    Every divisor of the GPU count is a product of shares that divide their degrees. So this is the largest product of
    shares that does not exceed the domain.
    """
    sizes = np.arange(1, min(nvs_size, int(np.max(num_gpus))) + 1)
    return np.max(np.where(np.asarray(num_gpus)[..., None] % sizes == 0, sizes, 0), axis=-1)


@functools.lru_cache(maxsize=4096)
def fills(num_gpus: int, limits: Limits) -> tuple[int, ...]:
    """Return the GPUs of a fast domain that a job may use where shares divide their degrees, most first.

    They divide `num_gpus`, and no multiple that fits does. Without `uneven` there is only the largest one.
    """
    fits = [size for size in divisors(num_gpus).tolist()[::-1] if size <= limits.nvs_size]
    if not limits.uneven:
        return (fits[0],)
    return tuple(size for size in fits if not any(more > size and more % size == 0 for more in fits))


@functools.lru_cache(maxsize=4096)
def may_lie_unevenly(num_gpus: int, limits: Limits) -> bool:
    """Return whether consecutive ranks of some plan lie on fast domains as no divisors of its degrees do.

    They do not in one domain, nor where of any two degrees, and a domain, one divides the other.
    """
    degrees = divisors(num_gpus)
    chained = not (degrees[1:] % degrees[:-1]).any() and limits.nvs_size in degrees
    return limits.uneven and num_gpus > limits.nvs_size and not chained


def placed(table: Mapping[str, W], axes: tuple[str, ...] = PLACED) -> W:
    """Return the product of the shares of `axes`: the GPUs of a fast domain that they take."""
    return shares_product(table, axes)


Codes = Mapping[str, int]  # one plan by column, names as codes
Detail = Callable[[Codes, Limits], str]


@dataclass(frozen=True, slots=True)
class _Words:
    """The words that a rule may use of a plan in braces: its columns, and `_PHRASES`."""

    plan: Codes
    limits: Limits

    def __getitem__(self, name: str) -> object:
        return _PHRASES[name](self.plan, self.limits) if name in _PHRASES else self.plan[name]


@dataclass(frozen=True, slots=True)
class PlanRule(Reason):
    """A rule that a plan must obey."""

    reads: tuple[str, ...]  # columns
    holds: Callable[[Columns, Limits], Truth]
    detail: str | Detail  # how a plan breaks the rule, with its numbers
    nearest: str | Detail = ""  # values that obey the rule

    def message(self, plan: Codes, limits: Limits) -> str:
        """Return what is wrong with a plan that breaks the rule."""
        detail, nearest = (
            text.format_map(_Words(plan, limits)) if isinstance(text, str) else text(plan, limits)
            for text in (self.detail, self.nearest)
        )
        return f"{detail}; nearest: {nearest}" if nearest else detail


OPTIMAL_SCHEDULES = names_of(schedule for schedule in SCHEDULES if schedule.optimal_cut)
_INTERLEAVED = names_of(schedule for schedule in SCHEDULES if schedule.interleaved)
_DOMAIN = tuple(f"{axis}_nvs" for axis in PLACED)
_NESTED = (*REPLICA_AXES, "ep", "dp")


def optimal_cut_covers(schedule: Whole | Sequence[int]) -> Bool[np.ndarray, "*#plans"]:
    """Return whether plans of a schedule have a best cut: an optimal one, or with several chunks a balanced one."""
    return np.isin(schedule, codes_where(lambda record: record.optimal_cut))


def _per_schedule(schedule: Whole, number: Callable[[Schedule], int]) -> Shaped[np.ndarray, "*#plans"]:
    return np.array([number(record) for record in SCHEDULES])[schedule]


def microbatch_groups(pp: Whole, vpp: Whole, schedule: Whole) -> Int[np.ndarray, "*#plans"]:
    """Return the groups in which a schedule runs microbatches; interleaved pipelines run them in groups of pp."""
    in_groups_of_pp = (vpp > 1) & _per_schedule(schedule, lambda record: record.interleaved)
    return np.where(in_groups_of_pp, pp, _per_schedule(schedule, lambda record: record.microbatches_in))


def least_microbatches(pp: Whole, schedule: Whole) -> Int[np.ndarray, "*#plans"]:
    """Return the fewest microbatches that a schedule runs."""
    of_stages = pp * _per_schedule(schedule, lambda record: record.least_microbatches)
    return np.where(pp > 1, np.maximum(of_stages, _per_schedule(schedule, lambda record: record.least_in_all)), 1)


def nearest_of(values: Iterable[int], target: int) -> int:
    """Return the value that is nearest to `target`; of two, the smaller."""
    return min(map(int, values), key=lambda value: (abs(value - target), value))


def interleaved(plan: Columns) -> Bool[np.ndarray, "*#plans"]:
    """Return whether the schedule of a plan may have any number of chunks per stage."""
    return np.isin(plan["schedule"], codes_where(lambda record: record.interleaved))


def chunks_of_schedule(plan: Columns) -> Int[np.ndarray, "*#plans"]:
    """Return the chunks per stage of schedules that are not interleaved; one stage has one."""
    return np.where(plan["pp"] > 1, _per_schedule(plan["schedule"], lambda record: record.num_chunks), 1)


def _enough_microbatches(plan: Columns, limits: Limits) -> Truth:
    pp, number, schedule = plan["pp"], plan["num_microbatches"], plan["schedule"]
    in_groups = number % microbatch_groups(pp, 1, schedule) == 0
    return (pp == 1) | (in_groups & (number >= least_microbatches(pp, schedule)))


def _chunks_divide(plan: Columns, limits: Limits) -> Truth:
    chunks = plan["pp"] * plan["vpp"]
    if limits.partition == EVEN:
        have_layers = limits.divides(chunks)
    else:
        have_layers = (limits.partition == GIVEN) | (chunks <= limits.chain.num_layers)
    return (plan["vpp"] == 1) | ((plan["pp"] > 1) & have_layers)


def _chunks_detail(plan: Codes, limits: Limits) -> str:
    if plan["pp"] == 1:
        return f"vpp={plan['vpp']} needs a pipeline, but pp=1"
    chunks = f"pp={plan['pp']} * vpp={plan['vpp']}"
    if limits.partition != EVEN:
        return f"{chunks} chunks are more than the {limits.chain.num_layers} layers"
    return f"{chunks} does not divide {limits.layers_text}"


def _chunks_nearest(plan: Codes, limits: Limits) -> str:
    pp = plan["pp"]
    if pp == 1 or limits.partition != EVEN:
        return f"vpp={1 if pp == 1 else max(limits.chain.num_layers // pp, 1)}"
    of_stage = [layers // pp for layers in limits.even_layers if layers % pp == 0]
    return f"vpp={nearest_of(all_divisors(of_stage or [1]), plan['vpp'])}"


def _most_stored(plan: Columns, limits: Limits) -> Whole:
    return (limits.num_layers - 1) // plan["pp"]


def _stored_detail(plan: Codes, limits: Limits) -> str:
    if plan["recompute"] == NONE_CODE:
        return f"stored_layers={plan['stored_layers']}, but recompute=none recomputes no layer"
    layers = f"{limits.num_layers / plan['pp']:.4g}"
    return (
        f"stored_layers={plan['stored_layers']}, but a stage has {layers} layers: with all of them stored nothing is "
        "recomputed (recompute=none)"
    )


def _shares_lie(plan: Columns, limits: Limits) -> Truth:
    """Return whether the shares divide their degrees, or are those of consecutive ranks."""
    even = even_shares(plan, DEGREES)
    if not limits.uneven or np.all(even):  # how ranks lie takes longer to tell than all else
        return even
    return even | lies_consecutively(plan, plan["num_gpus"]) | in_rank_order(plan, limits)


def in_rank_order(plan: Columns, limits: Limits) -> Bool[np.ndarray, "*#plans"]:
    """Return whether the shares are those of ranks in the order of the plan that fill domain after domain."""
    shares, world = shares_of(plan, PLACED), plan["num_gpus"]
    return of_order(plan, lambda degrees: in_order(degrees, shares, limits.nvs_size, world))


def _uneven_axes(plan: Codes) -> list[str]:
    return [axis for axis in DEGREES if plan[axis] % plan[f"{axis}_nvs"]]


def _filled(plan: Columns, limits: Limits) -> Truth:
    """Return whether no multiple of the GPUs that the shares take of a domain fits, or ranks fill domains in order."""
    taken = placed(plan)
    if not limits.uneven:
        return taken >= fill(plan["num_gpus"], limits.nvs_size)
    more = np.asarray(taken)[..., None] * np.arange(2, limits.nvs_size + 1)
    could = (more <= limits.nvs_size) & (np.asarray(plan["num_gpus"])[..., None] % more == 0)
    filled = np.logical_not(even_shares(plan, PLACED)) | ~could.any(axis=-1)
    return filled if np.all(filled) else filled | in_rank_order(plan, limits)


def _degrees_text(degrees: Codes, between: str, prefix: str = "", none: str = "") -> str:
    return between.join(f"{prefix}{axis}={degree}" for axis, degree in degrees.items() if degree > 1) or none


def _ranks(plan: Codes, limits: Limits) -> int:
    return nesting_ranks(plan, limits.expert_axes) * plan["dp"]


def _holders(plan: Codes, limits: Limits) -> int:
    return max(_ranks(plan, limits) // plan["ep"], 1)


def _sequences(plan: Codes) -> int:
    return plan["global_batch_size"] // plan["dp"]


_PHRASES: Mapping[str, Callable[[Codes, Limits], object]] = {
    "schedule": lambda plan, limits: CODES["schedule"][plan["schedule"]],
    "order": lambda plan, limits: ORDERS[plan["order"]],
    "layers": lambda plan, limits: limits.layers_text,
    "chunks": lambda plan, limits: chunks_of_schedule(plan),
    "sequences": lambda plan, limits: _sequences(plan),
    "shares": lambda plan, limits: _degrees_text(shares_of(plan, PLACED), " * ", "nvs.", "nvs.*=1"),
    "taken": lambda plan, limits: placed(plan),
    "domain": lambda plan, limits: limits.nvs_size,
    "usable": lambda plan, limits: fill(plan["num_gpus"], limits.nvs_size),
    # Shares that fill a domain as far as the GPU count allows, innermost axes first.
    "filling": lambda plan, limits: _degrees_text(
        exact_fill(
            {axis: plan[axis] for axis in axes_in(ORDERS[plan["order"]])},
            int(fill(plan["num_gpus"], limits.nvs_size)),
        ),
        " ",
        "nvs.",
        "nvs.*=1",
    ),
    "nesting": lambda plan, limits: _degrees_text(
        {axis: plan[axis] for axis in (*REPLICA_AXES, "dp") if axis not in limits.expert_axes}, " * ", none="one rank"
    ),
    "ranks": lambda plan, limits: _ranks(plan, limits),
    "holders": lambda plan, limits: _holders(plan, limits),
    "expert_share": lambda plan, limits: expert_share(plan, limits.expert_axes, limits.nvs_size),
    "spanned": lambda plan, limits: replicas_spanned(plan, limits.expert_axes),
    "least": lambda plan, limits: least_microbatches(plan["pp"], plan["schedule"]),
    "groups": lambda plan, limits: microbatch_groups(plan["pp"], 1, plan["schedule"]),
}

# In the order of the bits of `reject`.
RULES: tuple[PlanRule, ...] = (
    PlanRule(
        "layers_not_divisible",
        "pp does not divide the number of layers, nor that with embedding and head",
        ("pp", "schedule"),
        lambda plan, limits: (
            (limits.partition != EVEN)
            | limits.divides(plan["pp"])
            | (_per_schedule(plan["schedule"], lambda record: record.uneven_stages) & limits.fills(plan["pp"]))
        ),
        "pp={pp} does not divide {layers}",
        lambda plan, limits: (
            f"pp={nearest_of(np.intersect1d(all_divisors(limits.even_layers), divisors(plan['num_gpus'])), plan['pp'])}"
            ", or unequal stages (stage_layers)"
        ),
    ),
    PlanRule(
        "cut_not_covered",
        f"no optimal cut is known; partition optimal covers {OPTIMAL_SCHEDULES}",
        ("schedule",),
        lambda plan, limits: (limits.partition != OPTIMAL) | optimal_cut_covers(plan["schedule"]),
        "no optimal cut is known for schedule={schedule}; the plan is priced with the even cut",
    ),
    PlanRule(
        "chunks_not_divisible",
        "vpp does not divide the layers of a stage (partition optimal: makes more chunks than layers), or is above "
        "1 with pp = 1",
        ("pp", "vpp"),
        _chunks_divide,
        _chunks_detail,
        _chunks_nearest,
    ),
    PlanRule(
        "chunks_without_1f1b",
        f"vpp is not the chunks per stage of the schedule, and only {_INTERLEAVED} can be interleaved",
        ("pp", "vpp", "schedule"),
        lambda plan, limits: interleaved(plan) | (plan["vpp"] == chunks_of_schedule(plan)),
        f"vpp={{vpp}}, but a stage has {{chunks}} with schedule={{schedule}} and pp={{pp}}; only {_INTERLEAVED} can be "
        "interleaved",
        f"vpp={{chunks}}, or schedule={_INTERLEAVED}",
    ),
    PlanRule(
        "microbatches_not_in_groups",
        "vpp is above 1, but pp does not divide the number of microbatches",
        ("pp", "vpp", "schedule", "num_microbatches"),
        lambda plan, limits: (
            ~interleaved(plan)
            | (plan["num_microbatches"] % microbatch_groups(plan["pp"], plan["vpp"], plan["schedule"]) == 0)
        ),
        "vpp={vpp} runs microbatches in groups of pp, but pp={pp} does not divide the {num_microbatches} microbatches",
        "vpp=1",
    ),
    PlanRule(
        "replicas_not_divisible",
        "zero_replicas does not divide dp, or is above 1 with ZeRO stage 0",
        ("dp", "zero_stage", "zero_replicas"),
        # ZeRO stage 0 shards nothing, so there is nothing to replicate.
        lambda plan, limits: (
            (plan["dp"] % plan["zero_replicas"] == 0) & ((plan["zero_stage"] > 0) | (plan["zero_replicas"] == 1))
        ),
        lambda plan, limits: (
            f"zero_replicas={plan['zero_replicas']}"
            + (f" does not divide dp={plan['dp']}" if plan["zero_stage"] else ", but zero_stage=0 shards nothing")
        ),
        lambda plan, limits: (
            f"zero_replicas={nearest_of(divisors(plan['dp']), plan['zero_replicas']) if plan['zero_stage'] else 1}"
        ),
    ),
    PlanRule(
        "stored_layers_exceeded",
        "stored_layers is not below the layers of a stage, or is above 0 with recompute none",
        ("pp", "recompute", "stored_layers"),
        # Without recomputation no layer can be exempt from it, and if all layers are, nothing is recomputed.
        lambda plan, limits: (
            (plan["stored_layers"] == 0)
            | ((plan["recompute"] != NONE_CODE) & (plan["stored_layers"] <= _most_stored(plan, limits)))
        ),
        _stored_detail,
        lambda plan, limits: f"stored_layers={0 if plan['recompute'] == NONE_CODE else _most_stored(plan, limits)}",
    ),
    PlanRule(
        "batch_not_divisible",
        "dp does not divide global_batch_size",
        ("dp", "global_batch_size"),
        lambda plan, limits: plan["global_batch_size"] % plan["dp"] == 0,
        "dp={dp} does not divide global_batch_size={global_batch_size}",
        lambda plan, limits: f"dp={nearest_of(divisors(plan['global_batch_size']), plan['dp'])}",
    ),
    PlanRule(
        "microbatch_not_divisible",
        "microbatch_size does not divide the sequences of a replica",
        ("dp", "global_batch_size", "microbatch_size"),
        lambda plan, limits: plan["global_batch_size"] // plan["dp"] % plan["microbatch_size"] == 0,
        "microbatch_size={microbatch_size} does not divide the {sequences} sequences of a replica",
        lambda plan, limits: f"microbatch_size={nearest_of(divisors(_sequences(plan)), plan['microbatch_size'])}",
    ),
    PlanRule(
        "share_not_divisible",
        "a share of a fast domain does not divide its degree, nor do consecutive ranks lie so",
        ("num_gpus", *DEGREES, "order", *(f"{axis}_nvs" for axis in DEGREES)),
        _shares_lie,
        lambda plan, limits: "; ".join(
            f"nvs.{axis}={plan[f'{axis}_nvs']} does not divide {axis}={plan[axis]}" for axis in _uneven_axes(plan)
        ),
        lambda plan, limits: " ".join(
            f"nvs.{axis}={nearest_of(divisors(plan[axis]), plan[f'{axis}_nvs'])}" for axis in _uneven_axes(plan)
        ),
    ),
    PlanRule(
        "domain_exceeded",
        "the shares multiply to more GPUs than a fast domain has",
        _DOMAIN,
        lambda plan, limits: placed(plan) <= limits.nvs_size,
        "{shares} uses {taken} GPUs, but a fast domain has {domain}",
        "no shares, which fills it in rank order",
    ),
    PlanRule(
        "domain_not_filled",
        "the shares multiply to fewer GPUs of a fast domain than the job can use",
        ("num_gpus", *PLACED, "order", *_DOMAIN),
        _filled,
        "{shares} uses {taken} of the {domain} GPUs of a fast domain, but the job can use {usable}",
        "{filling}",
    ),
    PlanRule(
        "experts_not_nested",
        "ep does not divide the product of the degrees that it nests in: tp, tp2, cp, dp without those of experts",
        _NESTED,
        lambda plan, limits: nests(plan, limits.expert_axes),
        "ep={ep} nests in {nesting}, but does not divide {ranks}",
        lambda plan, limits: f"ep={nearest_of(divisors(_ranks(plan, limits)), plan['ep'])}",
    ),
    PlanRule(
        "expert_share_not_nested",
        "nvs.ep differs from the share that the other axes imply",
        ("ep", *_DOMAIN, "ep_nvs"),
        lambda plan, limits: plan["ep_nvs"] == expert_share(plan, limits.expert_axes, limits.nvs_size),
        "nvs.ep={ep_nvs}, but with {shares} a fast domain has {expert_share} of the {ep} members of an ep group; leave "
        "nvs.ep out",
    ),
    PlanRule(
        "expert_replicas_not_divisible",
        "zero_replicas does not divide the ranks that hold the same experts",
        (*_NESTED, "zero_replicas"),
        lambda plan, limits: zero_replicas_nest(plan, limits.expert_axes),
        "zero_replicas={zero_replicas} does not divide the {holders} ranks that hold the same experts",
        lambda plan, limits: (
            f"zero_replicas={nearest_of(divisors(math.gcd(_holders(plan, limits), plan['dp'])), plan['zero_replicas'])}"
        ),
    ),
    PlanRule(
        "experts_not_in_order",
        "an ep group spans replicas that the order does not number consecutively",
        (*_NESTED, "order"),
        lambda plan, limits: ep_ranks_adjacent(plan["order"], replicas_spanned(plan, limits.expert_axes)),
        "ep={ep} spans {spanned} replicas, which order={order} does not number consecutively",
        f"order={ORDERS[0]}",
    ),
    PlanRule(
        "stages_not_in_groups",
        "a schedule of two directions needs an even number of stages",
        ("pp", "schedule"),
        lambda plan, limits: (
            (plan["pp"] == 1)
            | (plan["pp"] % _per_schedule(plan["schedule"], lambda record: record.holds.num_chains) == 0)
        ),
        "pp={pp} with schedule={schedule}, which needs an even number of stages",
        lambda plan, limits: f"pp={plan['pp'] + 1}, or schedule={SCHEDULES[0].name}",
    ),
    PlanRule(
        "microbatches_too_few",
        "the schedule needs more microbatches for each stage, or an even number",
        ("pp", "schedule", "num_microbatches"),
        _enough_microbatches,
        "schedule={schedule} on {pp} stages needs at least {least} microbatches, in groups of {groups}, not "
        "{num_microbatches}",
        f"schedule={SCHEDULES[0].name}",
    ),
)
# Of a plan that runs, and leaves GPUs of a fast domain to others.
DOMAIN_NOT_FILLED = next(rule for rule in RULES if rule.name == "domain_not_filled")
