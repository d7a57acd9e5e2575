"""The rules that a plan breaks, with its numbers and the nearest value that obeys each, and conditions of effects.

`dsx.plans.rules` has the rules of all strategies. Those of one strategy are the `require` lines of its definition, and
that every rank has a part of each dimension. A rule is a predicate on integer columns, so it runs on one plan or on
millions. A rule that mentions a dimension of the common alphabet applies only to models that have the dimension.

The effects of an assumption set have conditions (`dsx.config.stack`). One of the shard key has columns of axes and
their shares alone, one of the step only columns of the step. So one decides what a layer costs, the other which of its
costs a plan has.
"""

import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.model_file import ALPHABET
from dsx.config.stack import PLATFORM, WITHOUT, ColumnComparison, Need, worse
from dsx.errors import SpecError, did_you_mean
from dsx.notation.expressions import RELATIONS, evaluate, names, text
from dsx.notation.model import define
from dsx.notation.sharded_layer import local_size
from dsx.notation.syntax import AXES, Rule
from dsx.notation.work import DerivedLayer
from dsx.plans.choices import BY_NAME, KEY_COLUMNS, MODEL_AXES, STEP_COLUMNS, names_in
from dsx.plans.experts import Columns, Whole
from dsx.plans.placement import divisors
from dsx.plans.plan import Plan
from dsx.plans.rules import DEGREES, RULES, Limits, Reason
from dsx.records import Array, ArrayLike, Bool, Real

_OF_KEYS = tuple(name for name in KEY_COLUMNS if name.removesuffix("_nvs") in AXES)
_OF_STEPS = tuple(name for name in STEP_COLUMNS if name not in ("num_gpus", "global_batch_size"))


@dataclass(frozen=True, slots=True)
class Test:
    """A comparison of a column with codes: a number, another column, or the codes of some names."""

    column: str
    relation: str  # of RELATIONS; "in" for codes
    bound: int | str | tuple[int, ...]

    def holds(self, columns: Mapping[str, Real[ArrayLike, "*#plans"]]) -> bool | Bool[Array, "*#plans"]:
        """Return whether it holds, elementwise."""
        value = columns[self.column]
        if isinstance(self.bound, tuple):
            return functools.reduce(operator.or_, [value == code for code in self.bound])
        return RELATIONS[self.relation](value, columns[self.bound] if isinstance(self.bound, str) else self.bound)


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """What a field of an assumption set needs, and its value where a plan lacks that."""

    field: str
    needs: tuple[tuple[Test, ...], ...]  # all of them; of each one test
    otherwise: float

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it reads."""
        tests = [test for need in self.needs for test in need]
        return frozenset(name for test in tests for name in (test.column, test.bound) if isinstance(name, str))

    @property
    def of_keys(self) -> bool:
        """Whether the shard key decides it; else the choices of the step do."""
        return self.columns <= {*_OF_KEYS}

    def holds(self, columns: Mapping[str, Real[ArrayLike, "*#plans"]]) -> bool | Bool[Array, "*#plans"]:
        """Return whether plans meet it, elementwise; names in `columns` are codes."""
        needs = [functools.reduce(operator.or_, [test.holds(columns) for test in need], False) for need in self.needs]
        return functools.reduce(operator.and_, needs)


def conditions_of(spec: AssumptionsSpec) -> tuple[FieldCondition, ...]:
    """Return the conditions of an assumption set; its needs of the platform, which `on_platform` settles, count as met.

    Raises SpecError, with its file and line, for a column or a value that no plan has, and for a condition of both the
    shard key and the step.
    """
    conditions: list[FieldCondition] = []
    for field, effect in spec.conditions.stated.items():
        fault = functools.partial(spec.fault, ("conditions", field, "needs"))
        of_plans = filter(_of_plans, effect.needs)
        needs = tuple(tuple(_test(comparison, fault) for comparison in need) for need in of_plans)
        if not needs:
            continue
        condition = FieldCondition(field, needs, float(effect.otherwise))
        if not condition.of_keys and not condition.columns <= {*_OF_STEPS}:
            names = ", ".join(sorted(condition.columns))
            raise fault(f"{names}: a condition has either degrees and shares of tp, tp2, cp and ep, or other choices")
        conditions.append(condition)
    return tuple(conditions)


def on_platform(spec: AssumptionsSpec, platform: str) -> AssumptionsSpec:
    """Return an assumption set for devices of a platform: its effects without their needs of that."""

    changed: dict[str, object] = {}
    conditions: dict[str, object] = {}
    for field, effect in spec.conditions.stated.items():
        needs: list[Need] = []  # empty ones cannot be met
        for need in effect.needs:
            of_platform = [comparison for comparison in need if comparison.column == PLATFORM]
            if not any(RELATIONS[part.relation](platform, *part.with_what) for part in of_platform):
                needs.append(tuple(comparison for comparison in need if comparison.column != PLATFORM))
        if not all(needs):
            changed[field] = worse(field, getattr(spec, field), effect.otherwise, min, max)
        conditions[field] = effect.model_copy(update={"needs": needs}) if needs and all(needs) else None
    return spec.settled(changed, spec.conditions.model_copy(update=conditions)) if conditions else spec


def unmet_needs(spec: AssumptionsSpec, plan: Mapping[str, int]) -> dict[str, list[Need]]:
    """Return the needs that a plan does not meet, by field of an assumption set; names in `plan` are codes.

    Needs of the platform, which `on_platform` settles, are left out.
    """
    unmet: dict[str, list[Need]] = {}
    for condition in conditions_of(spec):
        needs = zip(filter(_of_plans, spec.conditions.stated[condition.field].needs), condition.needs, strict=True)
        unmet[condition.field] = [need for need, tests in needs if not any(test.holds(plan) for test in tests)]
    return {field: needs for field, needs in unmet.items() if needs}


def _of_plans(need: Need) -> bool:
    return all(comparison.column != PLATFORM for comparison in need)


def for_plan(spec: AssumptionsSpec, plan: Mapping[str, int] | None) -> AssumptionsSpec:
    """Return an assumption set with the effects that a plan has, and no conditions; names in `plan` are codes.

    An unknown plan, None, has no effect that needs something of plans.
    """
    if not spec.conditions.stated:
        return spec
    changed: dict[str, object] = {}
    for condition in conditions_of(spec):
        if plan is None or not condition.holds(plan):
            value = getattr(spec, condition.field)
            changed[condition.field] = worse(condition.field, value, condition.otherwise, min, max)
    return spec.settled(changed, type(spec.conditions)())


def _test(comparison: ColumnComparison, fault: Callable[[str], SpecError]) -> Test:
    column, relation = comparison.column, comparison.relation
    columns = (*_OF_KEYS, *_OF_STEPS)
    if column not in columns:
        raise fault(f"unknown column {column!r}{did_you_mean(column, columns)}")
    choice = BY_NAME[column]
    if relation == WITHOUT:
        parts = frozenset[str]().union(*map(names_in, choice.names))
        for name in comparison.with_what:
            if name not in parts:
                raise fault(f"{column} has no {name!r}{did_you_mean(name, parts)}")
        without = [name for name in choice.names if names_in(name).isdisjoint(comparison.with_what)]
        return Test(column, "in", tuple(map(choice.code, without)))
    (bound,) = comparison.with_what
    if choice.names:
        try:
            return Test(column, relation, choice.code(bound))
        except SpecError as error:
            raise fault(str(error)) from None
    if bound not in columns and not bound.isdecimal():
        raise fault(f"{column} {relation} {bound}: expected a whole number or a column{did_you_mean(bound, columns)}")
    return Test(column, relation, bound if bound in columns else int(bound))


MEMORY = Reason("memory", "peak_bytes, in a search with its margin, exceeds the device's hbm_capacity")
HOST_MEMORY = Reason(
    "host_memory", "what the GPUs of a node offload exceeds what a job has of the host_memory of the node"
)
VANISHES = Reason("dimension_divided_away", "a dimension is divided among more ranks than it has elements")


def strategy_reasons(layer: DerivedLayer) -> list[Reason]:
    """Return the reasons of a strategy's rules, each name once, in the order of its definition."""
    merged: dict[str, list[str]] = {}
    for rule in layer.rules:
        merged.setdefault(rule.reason, []).append(rule_text(rule))
    return [Reason(name, " and ".join(texts)) for name, texts in merged.items()]


def rule_text(rule: Rule) -> str:
    """Return a rule as the definition of its strategy writes it."""
    return f"{text(rule.left)} {rule.relation} {text(rule.right)}"


def rule_values(
    layer: DerivedLayer, dimensions: Mapping[str, int], sequence_length: int, keys: Columns
) -> dict[str, Whole]:
    """Return the integer value of every name that a strategy's rules may use."""
    of_keys = {"b": keys["microbatch_size"], "panels": keys["panels"]} | {axis: keys[axis] for axis in MODEL_AXES}
    return define(layer, dict(dimensions) | {"s": sequence_length} | of_keys)


def applies(rule: Rule, values: Mapping[str, object]) -> bool:
    """Return whether the model has every dimension that a rule mentions.

    Raises NotationError for a rule on an axis that is not part of a shard key, or on an unknown name.
    """
    used = names(rule.left) | names(rule.right)
    for axis in used & ({*AXES, *DEGREES} - set(MODEL_AXES)):
        raise rule.place.error(f"a rule of a strategy cannot limit {axis!r}; use 'limit:' of a sweep")
    for name in used - values.keys() - {*ALPHABET}:
        raise rule.place.error(
            f"the rule uses {name!r}, which neither the model nor the layer definition defines"
            f"{did_you_mean(name, (*values, *ALPHABET))}"
        )
    return used <= values.keys()


def divided_away(layer: DerivedLayer, values: Columns) -> Bool[np.ndarray, "*#plans"]:
    """Return the [N] mask of keys that leave a rank without an element of some dimension."""
    gone = np.zeros(np.shape(values["b"]), dtype=bool)
    for dim in layer.divided:
        gone |= evaluate(local_size(dim), values) < 1
    return gone


def allowed(
    layer: DerivedLayer, dimensions: Mapping[str, int], sequence_length: int, keys: Columns
) -> Bool[np.ndarray, "*#plans"]:
    """Return the [N] mask of keys that obey all rules of their strategy and leave each rank some of each dimension."""
    values = rule_values(layer, dimensions, sequence_length, keys)
    good = ~divided_away(layer, values)
    for rule in layer.rules:
        if applies(rule, values):
            good &= rule.holds(values)
    return good


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a plan breaks, with its numbers and the nearest value that obeys it."""

    reason: Reason
    detail: str


def violations(
    plan: Plan, layers: Sequence[DerivedLayer], dimensions: Mapping[str, int], limits: Limits
) -> list[Violation]:
    """Return the rules that a plan breaks, in any kind of layer; memory is not checked."""
    codes = plan.codes
    sequence_length = codes["sequence_length"]
    general = [Violation(rule, rule.message(codes, limits)) for rule in RULES if not rule.holds(codes, limits)]
    broken: dict[str, Violation] = {}
    gone: dict[str, None] = {}
    for layer in layers:
        values = rule_values(layer, dimensions, sequence_length, codes)
        for rule in layer.rules:
            written, used = rule_text(rule), names(rule.left) | names(rule.right)
            if written in broken or not applies(rule, values) or rule.holds(values):
                continue
            numbers = ", ".join(f"{name}={values[name]}" for name in sorted(used))
            actual = f"{text(rule.left)} = {evaluate(rule.left, values)} ({numbers})"
            nearest = ""  # change of a single degree that obeys all rules of the strategy
            for column, value in _changes(codes, used):
                keys = {name: np.asarray(number) for name, number in (codes | {column: value}).items()}
                if all(allowed(layer, dimensions, sequence_length, keys) for layer in layers):
                    nearest = f"; nearest: {column}={value}"
                    break
            detail = f"{written} is required, but {actual}{nearest}"
            broken[written] = Violation(Reason(rule.reason, written), detail)
        gone |= dict.fromkeys(str(dim) for dim in layer.divided if evaluate(local_size(dim), values) < 1)
    vanishing = [Violation(VANISHES, f"some rank has no element of {', '.join(gone)}")] if gone else []
    return [*general, *broken.values(), *vanishing]


def _changes(codes: Mapping[str, int], used: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield each divisor of the GPUs as the value of a degree among `used`, the nearest ones first."""
    for column in (name for name in (*MODEL_AXES, "panels") if name in used):
        near = sorted(divisors(codes["num_gpus"]).tolist(), key=lambda value: (abs(value - codes[column]), value))
        yield from ((column, value) for value in near)
