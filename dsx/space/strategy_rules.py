"""The rules of a strategy: the `require` lines of its definition, and that every rank has a part of each dimension.

`dsx.space.plan_rules` has the rules of all strategies. A rule is a predicate on integer columns, so it runs on one plan
or on millions. A rule that mentions a dimension of the common alphabet applies only to models that have the dimension.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsx.errors import did_you_mean
from dsx.graph.derived import DerivedLayer
from dsx.graph.expressions import evaluate, names, text
from dsx.graph.match import local_size
from dsx.graph.model import define
from dsx.graph.notation import AXES, Rule
from dsx.space.choices import MODEL_AXES
from dsx.space.limits import DEGREES, Columns, Reason
from dsx.spec.model import ALPHABET

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
