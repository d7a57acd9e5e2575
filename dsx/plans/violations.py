"""The rules that a plan breaks, each with its numbers and the nearest value that obeys it.

Whether plans meet the conditions of an assumption set's effects (`dsx.config.stack`).

A condition of the shard key has columns of axes and their shares alone, one of the step only columns of the step. So
one decides what a layer costs, the other which of its costs a plan has.

The rules of a strategy: the `require` lines of its definition, and that every rank has a part of each dimension.

`dsx.plans.rules` has the rules of all strategies. A rule is a predicate on integer columns, so it runs on one plan
or on millions. A rule that mentions a dimension of the common alphabet applies only to models that have the dimension.

The rules that a plan breaks, each with its numbers and the nearest value that obeys it.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from dsx.plans.choices import BY_NAME, JOINED, KEY_COLUMNS, MODEL_AXES, STEP_COLUMNS
from dsx.plans.placement import divisors
from dsx.plans.plan import Plan
from dsx.plans.rules import DEGREES, RULES, Columns, Limits, Reason

_OF_KEYS = tuple(name for name in KEY_COLUMNS if name.removesuffix("_nvs") in AXES)
_OF_STEPS = tuple(name for name in STEP_COLUMNS if name not in ("num_gpus", "global_batch_size"))


@dataclass(frozen=True, slots=True)
class Test:
    """A comparison of a column with codes: a number, another column, or the codes of some names."""

    column: str
    relation: str  # of RELATIONS; "in" for codes
    bound: int | str | tuple[int, ...]

    def holds(self, columns: Mapping[str, Any]) -> Any:
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
        others = [test.bound for test in tests if isinstance(test.bound, str)]
        return frozenset([*(test.column for test in tests), *others])

    @property
    def of_keys(self) -> bool:
        """Whether the shard key decides it; else the choices of the step do."""
        return self.columns <= {*_OF_KEYS}

    def holds(self, columns: Mapping[str, Any]) -> Any:
        """Return whether plans meet it, elementwise; names in `columns` are codes."""
        needs = [functools.reduce(operator.or_, [test.holds(columns) for test in need], False) for need in self.needs]
        return functools.reduce(operator.and_, needs)


def conditions_of(spec: AssumptionsSpec) -> tuple[FieldCondition, ...]:
    """Return the conditions of an assumption set; its needs of the platform, which `on_platform` settles, count as met.

    Raises SpecError, with its file and line, for a column or a value that no plan has, and for a condition of both the
    shard key and the step.
    """
    found: list[FieldCondition] = []
    for field, stated in spec.conditions.stated.items():
        fault = functools.partial(spec.fault, ("conditions", field, "needs"))
        of_plans = filter(_of_plans, stated.needs)
        needs = tuple(tuple(_test(comparison, fault) for comparison in need) for need in of_plans)
        condition = FieldCondition(field, needs, float(stated.otherwise))
        if not needs:
            continue
        if not condition.of_keys and not condition.columns <= {*_OF_STEPS}:
            both = ", ".join(sorted(condition.columns))
            raise fault(f"{both}: a condition has either degrees and shares of tp, tp2, cp and ep, or other choices")
        found.append(condition)
    return tuple(found)


def on_platform(spec: AssumptionsSpec, platform: str) -> AssumptionsSpec:
    """Return an assumption set for devices of a platform: its effects without their needs of that."""

    def met(need: Need) -> bool:
        return any(
            comparison.column == PLATFORM and RELATIONS[comparison.relation](platform, *comparison.with_what)
            for comparison in need
        )

    def settle(needs: Sequence[Need]) -> list[Need]:
        open_needs = [need for need in needs if not met(need)]
        return [tuple(one for one in need if one.column != PLATFORM) for need in open_needs]

    changed: dict[str, Any] = {}
    left: dict[str, Any] = {}
    for field, stated in spec.conditions.stated.items():
        needs = settle(stated.needs)
        if not all(needs):
            changed[field] = worse(field, getattr(spec, field), stated.otherwise, min, max)
        left[field] = stated.model_copy(update={"needs": needs}) if needs and all(needs) else None
    return spec.settled(changed, spec.conditions.model_copy(update=left)) if left else spec


def unmet_needs(spec: AssumptionsSpec, plan: Mapping[str, Any]) -> dict[str, list[Need]]:
    """Return the needs that a plan does not meet, by field of an assumption set; names in `plan` are codes.

    Needs of the platform, which `on_platform` settles, are left out.
    """
    found: dict[str, list[Need]] = {}
    for condition in conditions_of(spec):
        needs = [need for need in spec.conditions.stated[condition.field].needs if _of_plans(need)]
        found[condition.field] = [
            need
            for need, tests in zip(needs, condition.needs, strict=True)
            if not any(test.holds(plan) for test in tests)
        ]
    return {field: needs for field, needs in found.items() if needs}


def _of_plans(need: Need) -> bool:
    return all(comparison.column != PLATFORM for comparison in need)


def for_plan(spec: AssumptionsSpec, plan: Mapping[str, Any] | None) -> AssumptionsSpec:
    """Return an assumption set with the effects that a plan has, and no conditions; names in `plan` are codes.

    An unknown plan, None, has no effect that needs something of plans.
    """
    if not spec.conditions.stated:
        return spec
    changed: dict[str, Any] = {}
    for condition in conditions_of(spec):
        if plan is None or not condition.holds(plan):
            value = getattr(spec, condition.field)
            changed[condition.field] = worse(condition.field, value, condition.otherwise, min, max)
    return spec.settled(changed, type(spec.conditions)())


def _test(comparison: ColumnComparison, fault: Callable[[str], SpecError]) -> Test:
    column, relation = comparison.column, comparison.relation
    known = (*_OF_KEYS, *_OF_STEPS)
    if column not in known:
        raise fault(f"unknown column {column!r}{did_you_mean(column, known)}")
    choice = BY_NAME[column]
    if relation == WITHOUT:
        parts = {part for name in choice.names for part in name.split(JOINED)}
        for name in comparison.with_what:
            if name not in parts:
                raise fault(f"{column} has no {name!r}{did_you_mean(name, parts)}")
        left = [name for name in choice.names if not {*comparison.with_what} & {*name.split(JOINED)}]
        return Test(column, "in", tuple(map(choice.code, left)))
    (bound,) = comparison.with_what
    if choice.names:
        try:
            code = choice.code(bound)
        except SpecError as error:
            raise fault(str(error)) from None
        return Test(column, relation, code)
    if bound in known:
        return Test(column, relation, bound)
    if not bound.isdecimal():
        raise fault(f"{column} {relation} {bound}: expected a whole number or a column{did_you_mean(bound, known)}")
    return Test(column, relation, int(bound))


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
        raise rule.place.error(f"a rule of a strategy cannot limit {axis!r}; use 'limit:' of a sweep")
    for name in used - values.keys() - {*ALPHABET}:
        raise rule.place.error(
            f"the rule uses {name!r}, which neither the model nor the layer definition defines"
            f"{did_you_mean(name, (*values, *ALPHABET))}"
        )
    return used <= values.keys()


def divided_away(layer: DerivedLayer, values: Mapping[str, Any]) -> Any:
    """Return the [N] mask of keys that leave a rank without an element of some dimension."""
    gone = np.zeros(np.shape(values["b"]), dtype=bool)
    for dim in layer.divided:
        gone |= evaluate(local_size(dim), values) < 1
    return gone


def allowed(layer: DerivedLayer, dimensions: Mapping[str, int], sequence_length: int, keys: Columns) -> Any:
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
    found: list[Violation] = []
    for general in RULES:
        if not bool(general.holds(codes, limits)):
            found.append(Violation(general.reason, general.message(codes, limits)))
    broken: dict[str, Violation] = {}
    gone: dict[str, None] = {}
    for layer in layers:
        values = rule_values(layer, dimensions, sequence_length, codes)
        for rule in layer.rules:
            if rule_text(rule) not in broken and applies(rule, values) and not bool(rule.holds(values)):
                nearest = _nearest(codes, layers, dimensions, sequence_length, names(rule.left) | names(rule.right))
                broken[rule_text(rule)] = _broken(rule, values, nearest)
        gone |= dict.fromkeys(str(dim) for dim in layer.divided if bool(_size(dim, values) < 1))
    found += broken.values()
    if gone:
        found.append(Violation(VANISHES, f"some rank has no element of {', '.join(gone)}"))
    return found


def _broken(rule: Rule, values: Mapping[str, Any], nearest: str) -> Violation:
    numbers = ", ".join(f"{n}={values[n]}" for n in sorted(names(rule.left) | names(rule.right)))
    left = f"{text(rule.left)} = {evaluate(rule.left, values)}"
    detail = f"{rule_text(rule)} is required, but {left} ({numbers}){nearest}"
    return Violation(Reason(rule.reason, rule_text(rule)), detail)


def _size(dim: Any, values: Mapping[str, Any]) -> Any:
    size = values[dim.letter]
    for axis in dim.axes:
        size = size // values[axis]
    return size


def _nearest(
    codes: dict[str, int],
    layers: Sequence[DerivedLayer],
    dimensions: Mapping[str, int],
    sequence_length: int,
    used: set[str],
) -> str:
    """Return the nearest change of a single degree of `used` that obeys all rules of the strategy."""
    for column in (name for name in (*MODEL_AXES, "panels") if name in used):
        distance = {int(value): abs(int(value) - codes[column]) for value in divisors(codes["num_gpus"])}
        for value in sorted(distance, key=lambda value: (distance[value], value)):
            keys = {name: np.asarray(number) for name, number in (codes | {column: value}).items()}
            if all(bool(allowed(layer, dimensions, sequence_length, keys)) for layer in layers):
                return f"; nearest: {column}={value}"
    return ""
