"""The rules that hold for plans under every strategy, each one record.

A rule is a predicate on integer columns, which an enumeration asks of millions of plans as soon as it has the columns
that the rule reads, and `dsx why` of one plan, where the record also says what is wrong and which value is nearest.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.space.choices import CODES
from dsx.space.codes import EVEN, OPTIMAL
from dsx.space.divisors import divisors
from dsx.space.experts import REPLICA_AXES, copies_fit, expert_share, nests, room
from dsx.space.limits import DEGREES, PLACED, Columns, Limits, Reason, fill, placed
from dsx.space.placement import exact_fill
from dsx.space.schedules import SCHEDULES, codes_where, names_of
from dsx.space.tiers import ORDERS, axes_in, nests_in_order, replicas_spanned

Detail = Callable[[Columns, Limits], str]


@dataclass(frozen=True, slots=True)
class PlanRule:
    """What makes a plan invalid."""

    reason: Reason
    reads: tuple[str, ...]  # columns
    holds: Callable[[Columns, Limits], Any]
    detail: Detail  # of a plan that breaks it, with its numbers
    nearest: Detail | None = None  # values that obey it

    def said(self, plan: Columns, limits: Limits) -> str:
        """Return what is wrong with a plan that breaks the rule."""
        nearest = f"; nearest: {self.nearest(plan, limits)}" if self.nearest else ""
        return f"{self.detail(plan, limits)}{nearest}"


OPTIMAL_SCHEDULES = names_of(schedule for schedule in SCHEDULES if schedule.optimal_cut)
_INTERLEAVED = names_of(schedule for schedule in SCHEDULES if schedule.interleaved)
_DOMAIN = tuple(f"{axis}_nvs" for axis in PLACED)
_NESTED = (*REPLICA_AXES, "ep", "dp")


def cut_covered(vpp: Any, schedule: Any) -> Any:
    """Return which pipelines the best cut is known of: one piece of the chain per stage, under some schedules."""
    return (vpp == 1) & np.isin(schedule, codes_where(lambda one: one.optimal_cut))


def nearest_of(values: Iterable[int], wanted: int) -> int:
    """Return the value that is nearest to `wanted`, of two the smaller."""
    return min((int(value) for value in values), key=lambda value: (abs(value - wanted), value))


def _interleaved(plan: Columns) -> Any:
    return np.isin(plan["schedule"], codes_where(lambda one: one.interleaved))


def _schedule(plan: Columns) -> str:
    return CODES["schedule"][plan["schedule"]]


def _chunks_divide(plan: Columns, limits: Limits) -> Any:
    pp, vpp = plan["pp"], plan["vpp"]
    return (vpp == 1) | ((pp > 1) & (limits.num_layers % (pp * vpp) == 0))


def _chunks_detail(plan: Columns, limits: Limits) -> str:
    if plan["pp"] == 1:
        return f"vpp={plan['vpp']} divides a pipeline, and pp=1 is none"
    return f"vpp={plan['vpp']} chunks of pp={plan['pp']} stages do not divide {limits.num_layers} layers"


def _chunks_nearest(plan: Columns, limits: Limits) -> str:
    if plan["pp"] == 1:
        return "vpp=1"
    return f"vpp={nearest_of(divisors(max(limits.num_layers // plan['pp'], 1)), plan['vpp'])}"


def _replicas_fit(plan: Columns, limits: Limits) -> Any:
    # ZeRO stage 0 divides nothing, so there is one copy.
    del limits
    return (plan["dp"] % plan["zero_replicas"] == 0) & ((plan["zero_stage"] > 0) | (plan["zero_replicas"] == 1))


def _replicas_detail(plan: Columns, limits: Limits) -> str:
    del limits
    if not plan["zero_stage"]:
        return f"zero_replicas={plan['zero_replicas']} with zero_stage=0, which divides nothing"
    return f"zero_replicas={plan['zero_replicas']} does not divide dp={plan['dp']}"


def _replicas_nearest(plan: Columns, limits: Limits) -> str:
    del limits
    return f"zero_replicas={nearest_of(divisors(plan['dp']), plan['zero_replicas']) if plan['zero_stage'] else 1}"


def _stored_fit(plan: Columns, limits: Limits) -> Any:
    # Where no layer is made again there is none to except.
    stored, again = plan["stored_layers"], plan["recompute"] != CODES["recompute"].index("none")
    return (stored == 0) | (again & (stored <= limits.num_layers // plan["pp"]))


def _stored_detail(plan: Columns, limits: Limits) -> str:
    if CODES["recompute"][plan["recompute"]] == "none":
        stored = f"stored_layers={plan['stored_layers']}"
        return f"{stored} with recompute=none, which makes no layer again that could be stored instead"
    there = limits.num_layers // plan["pp"]
    return f"stored_layers={plan['stored_layers']} is more than the {there} layers of a stage"


def _stored_nearest(plan: Columns, limits: Limits) -> str:
    none = CODES["recompute"][plan["recompute"]] == "none"
    return f"stored_layers={0 if none else limits.num_layers // plan['pp']}"


def _shares_divide(plan: Columns, limits: Limits) -> Any:
    del limits
    good: Any = True
    for axis in DEGREES:
        good = good & (plan[axis] % plan[f"{axis}_nvs"] == 0)
    return good


def _undivided(plan: Columns, limits: Limits) -> str:
    del limits
    return "; ".join(
        f"nvs.{axis}={plan[f'{axis}_nvs']} does not divide {axis}={plan[axis]}"
        for axis in DEGREES
        if plan[axis] % plan[f"{axis}_nvs"]
    )


def _shares(plan: Columns) -> str:
    return _shares_text({axis: plan[f"{axis}_nvs"] for axis in PLACED}, " * ")


def _shares_text(shares: Columns, between: str) -> str:
    return between.join(f"nvs.{axis}={share}" for axis, share in shares.items() if share > 1) or "nvs.*=1"


def _filling(plan: Columns, limits: Limits) -> str:
    """Return shares that fill a domain as far as the GPU count allows, the innermost axes first."""
    degrees = {axis: plan[axis] for axis in axes_in(ORDERS[plan["order"]])}
    return _shares_text(exact_fill(degrees, int(fill(plan["num_gpus"], limits.nvs_size))), " ")


def _ranks(plan: Columns, limits: Limits) -> int:
    return room(plan, limits.expert_axes) * plan["dp"]


def _nested_in(plan: Columns, limits: Limits) -> str:
    others = [axis for axis in (*REPLICA_AXES, "dp") if axis not in limits.expert_axes]
    return " * ".join(f"{axis}={plan[axis]}" for axis in others if plan[axis] > 1) or "one rank"


def _holders(plan: Columns, limits: Limits) -> int:
    return max(_ranks(plan, limits) // plan["ep"], 1)


def _sequences(plan: Columns) -> int:
    return plan["global_batch_size"] // plan["dp"]


# Their order is that of the bits of `reject`.
RULES: tuple[PlanRule, ...] = (
    PlanRule(
        Reason("layers_not_divisible", "pp does not divide the number of layers"),
        ("pp",),
        lambda plan, limits: (limits.partition == OPTIMAL) | (limits.num_layers % plan["pp"] == 0),
        lambda plan, limits: f"pp={plan['pp']} does not divide {limits.num_layers} layers",
        lambda plan, limits: f"pp={nearest_of(divisors(limits.num_layers), plan['pp'])}",
    ),
    PlanRule(
        Reason("cut_not_covered", f"partition optimal covers {OPTIMAL_SCHEDULES} with vpp = 1"),
        ("vpp", "schedule"),
        lambda plan, limits: (limits.partition == EVEN) | cut_covered(plan["vpp"], plan["schedule"]),
        lambda plan, limits: f"vpp={plan['vpp']} with schedule={_schedule(plan)}; the plan is priced with the even cut",
    ),
    PlanRule(
        Reason("chunks_not_divisible", "vpp does not divide the layers of a stage, or there is no pipeline to divide"),
        ("pp", "vpp"),
        _chunks_divide,
        _chunks_detail,
        _chunks_nearest,
    ),
    PlanRule(
        Reason("chunks_without_1f1b", f"only {_INTERLEAVED} is interleaved"),
        ("vpp", "schedule"),
        lambda plan, limits: (plan["vpp"] == 1) | _interleaved(plan),
        lambda plan, limits: (
            f"vpp={plan['vpp']} with schedule={_schedule(plan)}, and only {_INTERLEAVED} is interleaved"
        ),
        lambda plan, limits: f"vpp=1, or schedule={_INTERLEAVED}",
    ),
    PlanRule(
        Reason("microbatches_not_in_groups", "with vpp above 1, pp does not divide the number of microbatches"),
        ("pp", "vpp", "num_microbatches"),
        lambda plan, limits: (plan["vpp"] == 1) | (plan["num_microbatches"] % plan["pp"] == 0),
        lambda plan, limits: (
            f"vpp={plan['vpp']}: microbatches go through chunks in groups of pp, and pp={plan['pp']} "
            f"does not divide the {plan['num_microbatches']} microbatches"
        ),
        lambda plan, limits: "vpp=1",
    ),
    PlanRule(
        Reason("replicas_not_divisible", "zero_replicas does not divide dp, or ZeRO stage 0 divides nothing"),
        ("dp", "zero_stage", "zero_replicas"),
        _replicas_fit,
        _replicas_detail,
        _replicas_nearest,
    ),
    PlanRule(
        Reason("stored_layers_exceeded", "stored_layers is more than the layers of a stage that recompute makes again"),
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
        Reason("microbatch_not_divisible", "microbatch_size does not divide the sequences of one replica"),
        ("dp", "global_batch_size", "microbatch_size"),
        lambda plan, limits: _sequences(plan) % plan["microbatch_size"] == 0,
        lambda plan, limits: (
            f"microbatch_size={plan['microbatch_size']} does not divide the {_sequences(plan)} sequences of a replica"
        ),
        lambda plan, limits: f"{nearest_of(divisors(_sequences(plan)), plan['microbatch_size'])}",
    ),
    PlanRule(
        Reason("share_not_divisible", "a share of a fast domain does not divide its degree"),
        (*DEGREES, *(f"{axis}_nvs" for axis in DEGREES)),
        _shares_divide,
        _undivided,
    ),
    PlanRule(
        Reason("domain_exceeded", "the shares multiply to more than the size of a fast domain"),
        _DOMAIN,
        lambda plan, limits: placed(plan) <= limits.nvs_size,
        lambda plan, limits: f"{_shares(plan)} = {placed(plan)} GPUs, but a fast domain has {limits.nvs_size}",
    ),
    PlanRule(
        Reason("domain_not_filled", "the shares multiply to less than a fast domain could hold"),
        ("num_gpus", *_DOMAIN),
        lambda plan, limits: placed(plan) >= fill(plan["num_gpus"], limits.nvs_size),
        lambda plan, limits: (
            f"{_shares(plan)}: {placed(plan)} GPUs of a fast domain of {limits.nvs_size} are used, and "
            f"{fill(plan['num_gpus'], limits.nvs_size)} is the largest product of shares that fits"
        ),
        _filling,
    ),
    PlanRule(
        Reason("experts_not_nested", "ep does not divide the ranks of tp, tp2, cp and dp that divide no expert"),
        _NESTED,
        lambda plan, limits: nests(plan, limits.expert_axes),
        lambda plan, limits: (
            f"ep={plan['ep']} nests inside {_nested_in(plan, limits)} and does not divide {_ranks(plan, limits)}"
        ),
        lambda plan, limits: f"ep={nearest_of(divisors(_ranks(plan, limits)), plan['ep'])}",
    ),
    PlanRule(
        Reason("expert_share_not_nested", "nvs.ep is not what the shares of the axes that ep nests in give"),
        ("ep", *_DOMAIN, "ep_nvs"),
        lambda plan, limits: plan["ep_nvs"] == expert_share(plan, limits.expert_axes),
        lambda plan, limits: (
            f"nvs.ep={plan['ep_nvs']}, and of an ep group of {plan['ep']} the shares {_shares(plan)} put "
            f"{expert_share(plan, limits.expert_axes)} in a fast domain; leave nvs.ep out"
        ),
    ),
    PlanRule(
        Reason("expert_replicas_not_divisible", "zero_replicas does not divide the ranks that hold the same experts"),
        (*_NESTED, "zero_replicas"),
        lambda plan, limits: copies_fit(plan, limits.expert_axes),
        lambda plan, limits: (
            f"zero_replicas={plan['zero_replicas']} does not divide the {_holders(plan, limits)} ranks "
            "that hold the same experts"
        ),
        lambda plan, limits: (
            f"zero_replicas={nearest_of(divisors(math.gcd(_holders(plan, limits), plan['dp'])), plan['zero_replicas'])}"
        ),
    ),
    PlanRule(
        Reason(
            "experts_not_in_order", "ep groups span replicas, whose ranks the order does not number one after another"
        ),
        (*_NESTED, "order"),
        lambda plan, limits: nests_in_order(plan["order"], replicas_spanned(plan, limits.expert_axes)),
        lambda plan, limits: (
            f"order={ORDERS[plan['order']]} with ep={plan['ep']}, which spans "
            f"{replicas_spanned(plan, limits.expert_axes)} replicas"
        ),
        lambda plan, limits: f"order={ORDERS[0]}",
    ),
)
