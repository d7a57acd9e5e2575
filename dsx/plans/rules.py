"""The rules of all strategies, one record each, and the limits that they compare a plan with.

The limits that rules compare a plan with, and the GPUs of a fast domain that its shares fill.

The rules of all strategies, one record each.

A rule is a predicate on integer columns. An enumeration applies it to millions of plans, as soon as it has the columns
that the rule reads. `dsx why` applies it to one plan; the record then also says what is wrong, and which value is
nearest.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.plans.choices import CODES, MODEL_AXES, NONE_CODE
from dsx.plans.experts import REPLICA_AXES, nesting_ranks, nests, zero_replicas_nest
from dsx.plans.layer_layout import Chain
from dsx.plans.placement import (
    ORDERS,
    all_divisors,
    axes_in,
    consecutive,
    divisors,
    ep_ranks_adjacent,
    exact_fill,
    expert_share,
    of_order,
    rank_order_shares,
    replicas_spanned,
)
from dsx.schedules.schedules import SCHEDULES, Schedule, codes_where, names_of

# How a pipeline cuts the layers into stages. A search has one; it is no column of a plan.
PARTITIONS = EVEN, OPTIMAL = ("even", "optimal")
GIVEN = "given"  # of a plan that states its layer layout; no search has it

Columns = Mapping[str, Any]

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

    @property
    def chain(self) -> Chain:
        """The layers that a layout divides."""
        return Chain(self.num_first_layers, self.num_layers, self.num_last_layers, self.num_predictions)

    @property
    def even_layers(self) -> tuple[int, ...]:
        """The numbers of layers that the chunks of an even cut may divide (`dsx.cost.stages`)."""
        return (self.num_layers, self.num_layers + 2) if self.counts_ends else (self.num_layers,)

    def divides(self, chunks: Any) -> Any:
        """Return whether there is an even cut into so many chunks."""
        found: Any = False
        for layers in self.even_layers:
            found = found | (layers % chunks == 0)
        return found

    def fills(self, stages: Any) -> Any:
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
    def stage_counts(self) -> np.ndarray:
        """The numbers of stages that the layers may be cut into."""
        return all_divisors(self.even_layers) if self.partition == EVEN else np.arange(1, self.max_stages + 1)

    @property
    def tried_layers(self) -> Sequence[int]:
        """The numbers of layers whose divisors a search tries as chunks per stage."""
        return self.even_layers if self.partition == EVEN else range(self.num_layers, self.chain.num_layers + 1)


def fill(num_gpus: Any, nvs_size: int) -> Any:
    """Return how many GPUs of a fast domain a job uses: the largest divisor of `num_gpus` that is at most its size.

    Every divisor of the GPU count is a product of shares that divide their degrees. So this is the largest product of
    shares that does not exceed the domain.
    """
    divisors = np.arange(1, min(nvs_size, int(np.max(num_gpus))) + 1)
    fits = np.asarray(num_gpus)[..., None] % divisors == 0
    return np.max(np.where(fits, divisors, 0), axis=-1)


@functools.lru_cache(maxsize=4096)
def fills(num_gpus: int, limits: Limits) -> tuple[int, ...]:
    """Return the GPUs of a fast domain that a job may use where shares divide their degrees, most first.

    They divide `num_gpus`, and no multiple that fits does. Without `uneven` there is only the largest one.
    """
    fits = all_divisors([num_gpus])[::-1]
    fits = fits[fits <= limits.nvs_size]
    if not limits.uneven:
        return (int(fits[0]),)
    return tuple(int(one) for one in fits if not any(more > one and more % one == 0 for more in fits.tolist()))


@functools.lru_cache(maxsize=4096)
def may_lie_unevenly(num_gpus: int, limits: Limits) -> bool:
    """Return whether consecutive ranks of some plan lie on fast domains as no divisors of its degrees do.

    They do not in one domain, nor where of any two degrees, and a domain, one divides the other.
    """
    degrees = divisors(num_gpus)
    chained = not (degrees[1:] % degrees[:-1]).any() and limits.nvs_size in degrees
    return limits.uneven and num_gpus > limits.nvs_size and not chained


def placed(table: Columns, axes: tuple[str, ...] = PLACED) -> Any:
    """Return the product of the shares of `axes`: the GPUs of a fast domain that they take."""
    product: Any = 1
    for axis in axes:
        product = product * table[f"{axis}_nvs"]
    return product


Detail = Callable[[Columns, Limits], str]


@dataclass(frozen=True, slots=True)
class PlanRule:
    """A rule that a plan must obey."""

    reason: Reason
    reads: tuple[str, ...]  # columns
    holds: Callable[[Columns, Limits], Any]
    detail: Detail  # how a plan breaks the rule, with its numbers
    nearest: Detail | None = None  # values that obey the rule

    def message(self, plan: Columns, limits: Limits) -> str:
        """Return what is wrong with a plan that breaks the rule."""
        nearest = f"; nearest: {self.nearest(plan, limits)}" if self.nearest else ""
        return f"{self.detail(plan, limits)}{nearest}"


OPTIMAL_SCHEDULES = names_of(schedule for schedule in SCHEDULES if schedule.optimal_cut)
_INTERLEAVED = names_of(schedule for schedule in SCHEDULES if schedule.interleaved)
_DOMAIN = tuple(f"{axis}_nvs" for axis in PLACED)
_NESTED = (*REPLICA_AXES, "ep", "dp")


def optimal_cut_covers(schedule: Any) -> Any:
    """Return whether plans of a schedule have a best cut: an optimal one, or with several chunks a balanced one."""
    return np.isin(schedule, codes_where(lambda one: one.optimal_cut))


def _per_schedule(schedule: Any, number: Callable[[Schedule], int]) -> Any:
    return np.array([number(one) for one in SCHEDULES])[schedule]


def microbatch_groups(pp: Any, vpp: Any, schedule: Any) -> Any:
    """Return the groups in which a schedule runs microbatches; interleaved pipelines run them in groups of pp."""
    interleaved = (vpp > 1) & _per_schedule(schedule, lambda one: one.interleaved)
    return np.where(interleaved, pp, _per_schedule(schedule, lambda one: one.microbatches_in))


def least_microbatches(pp: Any, schedule: Any) -> Any:
    """Return the fewest microbatches that a schedule runs."""
    of_stages = pp * _per_schedule(schedule, lambda one: one.least_microbatches)
    return np.where(pp > 1, np.maximum(of_stages, _per_schedule(schedule, lambda one: one.least_in_all)), 1)


def _uneven(plan: Columns, limits: Limits) -> Any:
    return _per_schedule(plan["schedule"], lambda one: one.uneven_stages) & limits.fills(plan["pp"])


def _stages_paired(pp: Any, schedule: Any) -> Any:
    return (pp == 1) | (pp % _per_schedule(schedule, lambda one: one.holds.num_chains) == 0)


def _enough_microbatches(pp: Any, num_microbatches: Any, schedule: Any) -> Any:
    whole = num_microbatches % microbatch_groups(pp, 1, schedule) == 0
    return (pp == 1) | (whole & (num_microbatches >= least_microbatches(pp, schedule)))


def nearest_of(values: Iterable[int], wanted: int) -> int:
    """Return the value that is nearest to `wanted`; of two, the smaller."""
    return min((int(value) for value in values), key=lambda value: (abs(value - wanted), value))


def _nearest_even(plan: Columns, limits: Limits) -> int:
    """Return the stages nearest to those of a plan that divide the layers and the GPUs of the job."""
    return nearest_of((pp for pp in all_divisors(limits.even_layers) if plan["num_gpus"] % pp == 0), plan["pp"])


def interleaved(plan: Columns) -> Any:
    """Return whether the schedule of a plan may have any number of chunks per stage."""
    return np.isin(plan["schedule"], codes_where(lambda one: one.interleaved))


def chunks_of_schedule(plan: Columns) -> Any:
    """Return the chunks per stage of schedules that are not interleaved; one stage has one."""
    return np.where(plan["pp"] > 1, _per_schedule(plan["schedule"], lambda one: one.num_chunks), 1)


def _schedule(plan: Columns) -> str:
    return CODES["schedule"][plan["schedule"]]


def _chunks_divide(plan: Columns, limits: Limits) -> Any:
    pp, vpp = plan["pp"], plan["vpp"]
    if limits.partition == EVEN:
        whole = limits.divides(pp * vpp)
    else:
        whole = (limits.partition == GIVEN) | (pp * vpp <= limits.chain.num_layers)
    return (vpp == 1) | ((pp > 1) & whole)


def _chunks_detail(plan: Columns, limits: Limits) -> str:
    if plan["pp"] == 1:
        return f"vpp={plan['vpp']} needs a pipeline, but pp=1"
    if limits.partition != EVEN:
        return f"pp={plan['pp']} * vpp={plan['vpp']} chunks are more than the {limits.chain.num_layers} layers"
    return f"pp={plan['pp']} * vpp={plan['vpp']} does not divide {limits.layers_text}"


def _chunks_nearest(plan: Columns, limits: Limits) -> str:
    if plan["pp"] == 1:
        return "vpp=1"
    pp = plan["pp"]
    if limits.partition != EVEN:
        return f"vpp={max(limits.chain.num_layers // pp, 1)}"
    whole = [layers // pp for layers in limits.even_layers if layers % pp == 0]
    return f"vpp={nearest_of(all_divisors(whole or [1]), plan['vpp'])}"


def _replicas_fit(plan: Columns, limits: Limits) -> Any:
    # ZeRO stage 0 shards nothing, so there is nothing to replicate.
    del limits
    return (plan["dp"] % plan["zero_replicas"] == 0) & ((plan["zero_stage"] > 0) | (plan["zero_replicas"] == 1))


def _replicas_detail(plan: Columns, limits: Limits) -> str:
    del limits
    if not plan["zero_stage"]:
        return f"zero_replicas={plan['zero_replicas']}, but zero_stage=0 shards nothing"
    return f"zero_replicas={plan['zero_replicas']} does not divide dp={plan['dp']}"


def _replicas_nearest(plan: Columns, limits: Limits) -> str:
    del limits
    return f"zero_replicas={nearest_of(divisors(plan['dp']), plan['zero_replicas']) if plan['zero_stage'] else 1}"


def _stored_fit(plan: Columns, limits: Limits) -> Any:
    # Without recomputation no layer can be exempt from it, and if all layers are, nothing is recomputed.
    stored, recomputed = plan["stored_layers"], plan["recompute"] != NONE_CODE
    return (stored == 0) | (recomputed & (stored <= _most_stored(plan, limits)))


def _most_stored(plan: Columns, limits: Limits) -> Any:
    return (limits.num_layers - 1) // plan["pp"]


def _stored_detail(plan: Columns, limits: Limits) -> str:
    if plan["recompute"] == NONE_CODE:
        return f"stored_layers={plan['stored_layers']}, but recompute=none recomputes no layer"
    layers = f"{limits.num_layers / plan['pp']:.4g}"
    return (
        f"stored_layers={plan['stored_layers']}, but a stage has {layers} layers: with all of them stored nothing is "
        "recomputed (recompute=none)"
    )


def _stored_nearest(plan: Columns, limits: Limits) -> str:
    none = plan["recompute"] == NONE_CODE
    return f"stored_layers={0 if none else _most_stored(plan, limits)}"


def _shares_lie(plan: Columns, limits: Limits) -> Any:
    """Return whether the shares divide their degrees, or are those of consecutive ranks."""
    divide: Any = True
    for axis in DEGREES:
        divide = divide & (plan[axis] % plan[f"{axis}_nvs"] == 0)
    return divide | (_consecutive(plan) | in_rank_order(plan, limits) if limits.uneven else False)


def _consecutive(plan: Columns) -> Any:
    shares = {axis: plan[f"{axis}_nvs"] for axis in PLACED}
    return of_order(plan, lambda degrees: consecutive(degrees, shares, plan["num_gpus"]))


def in_rank_order(plan: Columns, limits: Limits) -> Any:
    """Return whether the shares are those of ranks in the order of the plan that fill domain after domain."""

    def equal(degrees: Columns) -> Any:
        wanted = rank_order_shares(degrees, limits.nvs_size, plan["num_gpus"])
        return np.logical_and.reduce([plan[f"{axis}_nvs"] == share for axis, share in wanted.items()])

    return of_order(plan, equal)


def _shares_detail(plan: Columns, limits: Limits) -> str:
    del limits
    return "; ".join(
        f"nvs.{axis}={plan[f'{axis}_nvs']} does not divide {axis}={plan[axis]}"
        for axis in DEGREES
        if plan[axis] % plan[f"{axis}_nvs"]
    )


def _shares_nearest(plan: Columns, limits: Limits) -> str:
    del limits
    uneven = {axis: plan[f"{axis}_nvs"] for axis in DEGREES if plan[axis] % plan[f"{axis}_nvs"]}
    nearest = {axis: nearest_of(divisors(plan[axis]), share) for axis, share in uneven.items()}
    return " ".join(f"nvs.{axis}={share}" for axis, share in nearest.items())


def _filled(plan: Columns, limits: Limits) -> Any:
    """Return whether no multiple of the GPUs that the shares take of a domain fits, or ranks fill domains in order."""
    taken = placed(plan)
    if not limits.uneven:
        return taken >= fill(plan["num_gpus"], limits.nvs_size)
    more = np.asarray(taken)[..., None] * np.arange(2, limits.nvs_size + 1)
    could = (more <= limits.nvs_size) & (np.asarray(plan["num_gpus"])[..., None] % more == 0)
    uneven: Any = False
    for axis in PLACED:
        uneven = uneven | (plan[axis] % plan[f"{axis}_nvs"] != 0)
    return uneven | ~could.any(axis=-1) | in_rank_order(plan, limits)


def _shares(plan: Columns) -> str:
    return _shares_text({axis: plan[f"{axis}_nvs"] for axis in PLACED}, " * ")


def _shares_text(shares: Columns, between: str) -> str:
    return between.join(f"nvs.{axis}={share}" for axis, share in shares.items() if share > 1) or "nvs.*=1"


def _filling(plan: Columns, limits: Limits) -> str:
    """Return the shares that fill a domain as far as the GPU count allows, innermost axes first."""
    degrees = {axis: plan[axis] for axis in axes_in(ORDERS[plan["order"]])}
    return _shares_text(exact_fill(degrees, int(fill(plan["num_gpus"], limits.nvs_size))), " ")


def _ranks(plan: Columns, limits: Limits) -> int:
    return nesting_ranks(plan, limits.expert_axes) * plan["dp"]


def _nested_in(plan: Columns, limits: Limits) -> str:
    others = [axis for axis in (*REPLICA_AXES, "dp") if axis not in limits.expert_axes]
    return " * ".join(f"{axis}={plan[axis]}" for axis in others if plan[axis] > 1) or "one rank"


def _holders(plan: Columns, limits: Limits) -> int:
    return max(_ranks(plan, limits) // plan["ep"], 1)


def _sequences(plan: Columns) -> int:
    return plan["global_batch_size"] // plan["dp"]


# Of a plan that runs, and leaves GPUs of a fast domain to others.
DOMAIN_NOT_FILLED = Reason(
    "domain_not_filled", "the shares multiply to fewer GPUs of a fast domain than the job can use"
)

# In the order of the bits of `reject`.
RULES: tuple[PlanRule, ...] = (
    PlanRule(
        Reason("layers_not_divisible", "pp does not divide the number of layers, nor that with embedding and head"),
        ("pp", "schedule"),
        lambda plan, limits: (limits.partition != EVEN) | limits.divides(plan["pp"]) | _uneven(plan, limits),
        lambda plan, limits: f"pp={plan['pp']} does not divide {limits.layers_text}",
        lambda plan, limits: f"pp={_nearest_even(plan, limits)}, or unequal stages (stage_layers)",
    ),
    PlanRule(
        Reason("cut_not_covered", f"no optimal cut is known; partition optimal covers {OPTIMAL_SCHEDULES}"),
        ("schedule",),
        lambda plan, limits: (limits.partition != OPTIMAL) | optimal_cut_covers(plan["schedule"]),
        lambda plan, limits: (
            f"no optimal cut is known for schedule={_schedule(plan)}; the plan is priced with the even cut"
        ),
    ),
    PlanRule(
        Reason(
            "chunks_not_divisible",
            "vpp does not divide the layers of a stage (partition optimal: makes more chunks than layers), or is above "
            "1 with pp = 1",
        ),
        ("pp", "vpp"),
        _chunks_divide,
        _chunks_detail,
        _chunks_nearest,
    ),
    PlanRule(
        Reason(
            "chunks_without_1f1b",
            f"vpp is not the chunks per stage of the schedule, and only {_INTERLEAVED} can be interleaved",
        ),
        ("pp", "vpp", "schedule"),
        lambda plan, limits: interleaved(plan) | (plan["vpp"] == chunks_of_schedule(plan)),
        lambda plan, limits: (
            f"vpp={plan['vpp']}, but a stage has {int(chunks_of_schedule(plan))} with schedule={_schedule(plan)} and "
            f"pp={plan['pp']}; only {_INTERLEAVED} can be interleaved"
        ),
        lambda plan, limits: f"vpp={int(chunks_of_schedule(plan))}, or schedule={_INTERLEAVED}",
    ),
    PlanRule(
        Reason("microbatches_not_in_groups", "vpp is above 1, but pp does not divide the number of microbatches"),
        ("pp", "vpp", "schedule", "num_microbatches"),
        lambda plan, limits: (
            ~interleaved(plan)
            | (plan["num_microbatches"] % microbatch_groups(plan["pp"], plan["vpp"], plan["schedule"]) == 0)
        ),
        lambda plan, limits: (
            f"vpp={plan['vpp']} runs microbatches in groups of pp, but pp={plan['pp']} "
            f"does not divide the {plan['num_microbatches']} microbatches"
        ),
        lambda plan, limits: "vpp=1",
    ),
    PlanRule(
        Reason("replicas_not_divisible", "zero_replicas does not divide dp, or is above 1 with ZeRO stage 0"),
        ("dp", "zero_stage", "zero_replicas"),
        _replicas_fit,
        _replicas_detail,
        _replicas_nearest,
    ),
    PlanRule(
        Reason(
            "stored_layers_exceeded",
            "stored_layers is not below the layers of a stage, or is above 0 with recompute none",
        ),
        ("pp", "recompute", "stored_layers"),
        _stored_fit,
        _stored_detail,
        _stored_nearest,
    ),
    PlanRule(
        Reason("batch_not_divisible", "dp does not divide global_batch_size"),
        ("dp", "global_batch_size"),
        lambda plan, limits: plan["global_batch_size"] % plan["dp"] == 0,
        lambda plan, limits: f"dp={plan['dp']} does not divide global_batch_size={plan['global_batch_size']}",
        lambda plan, limits: f"dp={nearest_of(divisors(plan['global_batch_size']), plan['dp'])}",
    ),
    PlanRule(
        Reason("microbatch_not_divisible", "microbatch_size does not divide the sequences of a replica"),
        ("dp", "global_batch_size", "microbatch_size"),
        lambda plan, limits: _sequences(plan) % plan["microbatch_size"] == 0,
        lambda plan, limits: (
            f"microbatch_size={plan['microbatch_size']} does not divide the {_sequences(plan)} sequences of a replica"
        ),
        lambda plan, limits: f"microbatch_size={nearest_of(divisors(_sequences(plan)), plan['microbatch_size'])}",
    ),
    PlanRule(
        Reason(
            "share_not_divisible",
            "a share of a fast domain does not divide its degree, nor do consecutive ranks lie so",
        ),
        ("num_gpus", *DEGREES, "order", *(f"{axis}_nvs" for axis in DEGREES)),
        _shares_lie,
        _shares_detail,
        _shares_nearest,
    ),
    PlanRule(
        Reason("domain_exceeded", "the shares multiply to more GPUs than a fast domain has"),
        _DOMAIN,
        lambda plan, limits: placed(plan) <= limits.nvs_size,
        lambda plan, limits: f"{_shares(plan)} uses {placed(plan)} GPUs, but a fast domain has {limits.nvs_size}",
        lambda plan, limits: "no shares, which fills it in rank order",
    ),
    PlanRule(
        DOMAIN_NOT_FILLED,
        ("num_gpus", *PLACED, "order", *_DOMAIN),
        _filled,
        lambda plan, limits: (
            f"{_shares(plan)} uses {placed(plan)} of the {limits.nvs_size} GPUs of a fast domain, but the job can use "
            f"{fill(plan['num_gpus'], limits.nvs_size)}"
        ),
        _filling,
    ),
    PlanRule(
        Reason(
            "experts_not_nested",
            "ep does not divide the product of the degrees that it nests in: tp, tp2, cp, dp without those of experts",
        ),
        _NESTED,
        lambda plan, limits: nests(plan, limits.expert_axes),
        lambda plan, limits: (
            f"ep={plan['ep']} nests in {_nested_in(plan, limits)}, but does not divide {_ranks(plan, limits)}"
        ),
        lambda plan, limits: f"ep={nearest_of(divisors(_ranks(plan, limits)), plan['ep'])}",
    ),
    PlanRule(
        Reason("expert_share_not_nested", "nvs.ep differs from the share that the other axes imply"),
        ("ep", *_DOMAIN, "ep_nvs"),
        lambda plan, limits: plan["ep_nvs"] == expert_share(plan, limits.expert_axes, limits.nvs_size),
        lambda plan, limits: (
            f"nvs.ep={plan['ep_nvs']}, but with {_shares(plan)} a fast domain has "
            f"{expert_share(plan, limits.expert_axes, limits.nvs_size)} of the {plan['ep']} members of an ep group; "
            "leave nvs.ep out"
        ),
    ),
    PlanRule(
        Reason("expert_replicas_not_divisible", "zero_replicas does not divide the ranks that hold the same experts"),
        (*_NESTED, "zero_replicas"),
        lambda plan, limits: zero_replicas_nest(plan, limits.expert_axes),
        lambda plan, limits: (
            f"zero_replicas={plan['zero_replicas']} does not divide the {_holders(plan, limits)} ranks "
            "that hold the same experts"
        ),
        lambda plan, limits: (
            f"zero_replicas={nearest_of(divisors(math.gcd(_holders(plan, limits), plan['dp'])), plan['zero_replicas'])}"
        ),
    ),
    PlanRule(
        Reason("experts_not_in_order", "an ep group spans replicas that the order does not number consecutively"),
        (*_NESTED, "order"),
        lambda plan, limits: ep_ranks_adjacent(plan["order"], replicas_spanned(plan, limits.expert_axes)),
        lambda plan, limits: (
            f"ep={plan['ep']} spans {replicas_spanned(plan, limits.expert_axes)} replicas, which "
            f"order={ORDERS[plan['order']]} does not number consecutively"
        ),
        lambda plan, limits: f"order={ORDERS[0]}",
    ),
    PlanRule(
        Reason("stages_not_in_groups", "a schedule of two directions needs an even number of stages"),
        ("pp", "schedule"),
        lambda plan, limits: _stages_paired(plan["pp"], plan["schedule"]),
        lambda plan, limits: f"pp={plan['pp']} with schedule={_schedule(plan)}, which needs an even number of stages",
        lambda plan, limits: f"pp={plan['pp'] + 1}, or schedule={SCHEDULES[0].name}",
    ),
    PlanRule(
        Reason("microbatches_too_few", "the schedule needs more microbatches for each stage, or an even number"),
        ("pp", "schedule", "num_microbatches"),
        lambda plan, limits: _enough_microbatches(plan["pp"], plan["num_microbatches"], plan["schedule"]),
        lambda plan, limits: (
            f"schedule={_schedule(plan)} on {plan['pp']} stages needs at least "
            f"{least_microbatches(plan['pp'], plan['schedule'])} microbatches, in groups of "
            f"{microbatch_groups(plan['pp'], 1, plan['schedule'])}, not {plan['num_microbatches']}"
        ),
        lambda plan, limits: f"schedule={SCHEDULES[0].name}",
    ),
)
