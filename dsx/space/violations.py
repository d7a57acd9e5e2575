"""The rules that a plan breaks, each with its numbers and the nearest value that obeys it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsx.graph.derived import DerivedLayer
from dsx.graph.expressions import evaluate, names, text
from dsx.graph.notation import Rule
from dsx.space.choices import MODEL_AXES
from dsx.space.divisors import divisors
from dsx.space.limits import Limits, Reason
from dsx.space.plan import Plan
from dsx.space.plan_rules import RULES
from dsx.space.strategy_rules import VANISHES, allowed, applies, rule_text, rule_values


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
