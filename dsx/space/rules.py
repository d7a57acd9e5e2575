"""Rules: what makes a plan invalid, each with a name that results carry.

The rules that hold for every strategy are here; those that differ are `require` lines of the strategy's
text. A rule is a predicate on integer columns, so it runs on one plan or on a million alike. A strategy's
rule that mentions a dimension of the common alphabet which the model does not have does not apply.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.errors import did_you_mean
from dsx.graph.derived import DerivedLayer
from dsx.graph.expressions import evaluate, names, text
from dsx.graph.match import local_size
from dsx.graph.model import define
from dsx.graph.notation import AXES, Rule
from dsx.space.codes import EVEN, OPTIMAL, RECOMPUTE, Open
from dsx.space.experts import REPLICA_AXES, copies_fit, expert_share, nests
from dsx.space.schedules import SCHEDULES, codes_where, names_of
from dsx.space.tiers import nests_in_order, replicas_spanned
from dsx.spec.model import ALPHABET

Columns = Mapping[str, Any]

# The axes that make up the GPUs and are placed on fast domains, in the order of the columns; ep nests in them.
PLACED = (*REPLICA_AXES, "pp", "dp")
MODEL_AXES = (*REPLICA_AXES, "ep")
DEGREES = (*MODEL_AXES, "pp", "dp")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a plan is rejected."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rules compare a plan with."""

    num_layers: int
    nvs_size: int
    expert_axes: tuple[str, ...] = ()  # that divide experts beside ep, under the strategy of the plan
    partition: str = EVEN
    num_ends: int = 0  # layers before and behind those of `num_layers`, which are stages of their own if a cut says so

    @property
    def most_stages(self) -> int:
        """Stages of the deepest pipeline."""
        return self.num_layers + (self.num_ends if self.partition == OPTIMAL else 0)


MEMORY = Reason("memory", "peak_bytes exceeds the device's hbm_capacity")
VANISHES = Reason("dimension_divided_away", "a dimension is divided among more ranks than it has elements")


def fill(num_gpus: Any, nvs_size: int) -> Any:
    """Return how many GPUs of a fast domain a job uses: the largest divisor of `num_gpus` that fits.

    Any divisor of the GPU count is a product of shares that divide their degrees, so this is the largest
    product of an assignment that does not exceed the domain.
    """
    divisors = np.arange(1, min(nvs_size, int(np.max(num_gpus))) + 1)
    fits = np.asarray(num_gpus)[..., None] % divisors == 0
    return np.max(np.where(fits, divisors, 0), axis=-1)


def _shares_divide(plan: Columns, limits: Limits) -> Any:
    del limits
    good: Any = True
    for axis in DEGREES:
        good = good & (plan[axis] % plan[f"{axis}_nvs"] == 0)
    return good


def placed(table: Columns, axes: tuple[str, ...] = PLACED) -> Any:
    """Return how many GPUs of a fast domain the shares of `axes` take together."""
    product: Any = 1
    for axis in axes:
        product = product * table[f"{axis}_nvs"]
    return product


def zero_fits(dp: Any, zero_stage: Any, zero_replicas: Any) -> Any:
    """Return which numbers of copies divide the replicas; ZeRO stage 0 divides nothing, so there is one."""
    return (dp % zero_replicas == 0) & ((zero_stage > 0) | (zero_replicas == 1))


def recompute_fits(pp: Any, recompute: Any, stored_layers: Any, num_layers: int) -> Any:
    """Return which stages have so many layers to keep; where none is made again there is none to except."""
    again = recompute != RECOMPUTE.index("none")
    return (stored_layers == 0) | (again & (stored_layers <= num_layers // pp))


def cut_covered(vpp: Any, schedule: Any) -> Any:
    """Return which pipelines the best cut is known of: one piece of the chain per stage, under 1F1B or GPipe."""
    return (vpp == 1) & np.isin(schedule, codes_where(lambda one: one.optimal_cut))


_CUT_SCHEDULES = names_of(schedule for schedule in SCHEDULES if schedule.optimal_cut)
_INTERLEAVED = names_of(schedule for schedule in SCHEDULES if schedule.interleaved)

GENERAL: tuple[tuple[Reason, Callable[[Columns, Limits], Any]], ...] = (
    (
        Reason("layers_not_divisible", "pp does not divide the number of layers"),
        lambda plan, limits: (limits.partition == OPTIMAL) | (limits.num_layers % plan["pp"] == 0),
    ),
    (
        Reason("cut_not_covered", f"partition optimal covers {_CUT_SCHEDULES} with vpp = 1"),
        lambda plan, limits: (limits.partition == EVEN) | cut_covered(plan["vpp"], plan["schedule"]),
    ),
    (
        Reason("chunks_not_divisible", "vpp does not divide the layers of a stage, or there is no pipeline to divide"),
        lambda plan, limits: (
            (plan["vpp"] == 1) | ((plan["pp"] > 1) & (limits.num_layers % (plan["pp"] * plan["vpp"]) == 0))
        ),
    ),
    (
        Reason("chunks_without_1f1b", f"only {_INTERLEAVED} is interleaved"),
        lambda plan, limits: (plan["vpp"] == 1) | _interleaved(plan["schedule"]),
    ),
    (
        Reason("microbatches_not_in_groups", "with vpp above 1, pp does not divide the number of microbatches"),
        lambda plan, limits: (plan["vpp"] == 1) | (plan["num_microbatches"] % plan["pp"] == 0),
    ),
    (
        Reason("replicas_not_divisible", "zero_replicas does not divide dp, or ZeRO stage 0 divides nothing"),
        lambda plan, limits: zero_fits(plan["dp"], plan["zero_stage"], plan["zero_replicas"]),
    ),
    (
        Reason("stored_layers_exceeded", "stored_layers is more than the layers of a stage that recompute makes again"),
        lambda plan, limits: recompute_fits(plan["pp"], plan["recompute"], plan["stored_layers"], limits.num_layers),
    ),
    (
        Reason("batch_not_divisible", "dp does not divide global_batch_size"),
        lambda plan, limits: plan["global_batch_size"] % plan["dp"] == 0,
    ),
    (
        Reason("microbatch_not_divisible", "microbatch_size does not divide the sequences of one replica"),
        lambda plan, limits: (plan["global_batch_size"] // plan["dp"]) % plan["microbatch_size"] == 0,
    ),
    (Reason("share_not_divisible", "a share of a fast domain does not divide its degree"), _shares_divide),
    (
        Reason("domain_exceeded", "the shares multiply to more than the size of a fast domain"),
        lambda plan, limits: placed(plan) <= limits.nvs_size,
    ),
    (
        Reason("domain_not_filled", "the shares multiply to less than a fast domain could hold"),
        lambda plan, limits: placed(plan) >= fill(plan["num_gpus"], limits.nvs_size),
    ),
    (
        Reason("experts_not_nested", "ep does not divide the ranks of tp, tp2, cp and dp that divide no expert"),
        lambda plan, limits: nests(plan, limits.expert_axes),
    ),
    (
        Reason("expert_share_not_nested", "nvs.ep is not what the shares of the axes that ep nests in give"),
        lambda plan, limits: plan["ep_nvs"] == expert_share(plan, limits.expert_axes),
    ),
    (
        Reason("expert_replicas_not_divisible", "zero_replicas does not divide the ranks that hold the same experts"),
        lambda plan, limits: copies_fit(plan, limits.expert_axes),
    ),
    (
        Reason(
            "experts_not_in_order", "ep groups span replicas, whose ranks the order does not number one after another"
        ),
        lambda plan, limits: nests_in_order(plan["order"], replicas_spanned(plan, limits.expert_axes)),
    ),
)


def _interleaved(schedule: Any) -> Any:
    return np.isin(schedule, codes_where(lambda one: one.interleaved))


def schedule_fits(pp: Any, vpp: Any, schedule: Any, known: Open, num_layers: int) -> Any:
    """Return which pipelines a schedule fits, and only one schedule of those that are the same.

    Chunks divide the layers of a stage and are of interleaved schedules; without a pipeline all schedules are one.
    """
    chunked = (vpp == 1) | (_interleaved(schedule) & (pp > 1) & (num_layers % (pp * vpp) == 0))
    return chunked & ((pp > 1) | (schedule == known.schedule[0]))


def strategy_reasons(layer: DerivedLayer) -> list[Reason]:
    """Return the reasons of a strategy's rules, each name once, in the order of the text."""
    merged: dict[str, list[str]] = {}
    for rule in layer.rules:
        merged.setdefault(rule.reason, []).append(rule_text(rule))
    return [Reason(name, " and ".join(texts)) for name, texts in merged.items()]


def rule_text(rule: Rule) -> str:
    """Return a rule as its strategy writes it."""
    return f"{text(rule.left)} {rule.relation} {text(rule.right)}"


def rule_values(
    layer: DerivedLayer, dimensions: Mapping[str, int], sequence_length: int, keys: Columns
) -> dict[str, Any]:
    """Return the integer value of every name that a strategy's rules may use."""
    values: dict[str, Any] = dict(dimensions) | {"s": sequence_length}
    values |= {"b": keys["microbatch_size"], "panels": keys["panels"]} | {axis: keys[axis] for axis in MODEL_AXES}
    return define(layer, values)


def applies(rule: Rule, values: Mapping[str, Any]) -> bool:
    """Return whether the model has every dimension that a rule mentions.

    Raises NotationError for a rule on an axis that is not part of a shard key, or on an unknown name.
    """
    used = names(rule.left) | names(rule.right)
    for axis in used & ({*AXES, *DEGREES} - set(MODEL_AXES)):
        raise rule.place.error(f"a rule of a strategy cannot limit {axis!r}; 'limit:' of a sweep can")
    for name in used - values.keys() - {*ALPHABET}:
        raise rule.place.error(
            f"the rule uses {name!r}, which neither the model gives nor a layer text defines"
            f"{did_you_mean(name, (*values, *ALPHABET))}"
        )
    return used <= values.keys()


def divided_away(layer: DerivedLayer, values: Mapping[str, Any]) -> Any:
    """Return the [N] mask of keys that leave a rank without any element of some dimension."""
    gone = np.zeros(np.shape(values["b"]), dtype=bool)
    for dim in layer.divided:
        gone |= evaluate(local_size(dim), values) < 1
    return gone


def allowed(layer: DerivedLayer, dimensions: Mapping[str, int], sequence_length: int, keys: Columns) -> Any:
    """Return the [N] mask of keys that satisfy all rules of their strategy and leave no rank empty."""
    values = rule_values(layer, dimensions, sequence_length, keys)
    good = ~divided_away(layer, values)
    for rule in layer.rules:
        if applies(rule, values):
            good &= rule.holds(values)
    return good
