"""A family file: how to convert configs of one `model_type` to dimensions and layers.

The name of the file is the `model_type`, so a new family is a new file. Families share what their common base files
state.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from dsx.spec.hf.formula import Formula, parse
from dsx.spec.load import Spec, load_spec
from dsx.spec.value_types import Count, Total

LAYER = "i"  # in the conditions of a layer: its position in its group, from 0

Expression = Annotated[Formula, BeforeValidator(parse)]
# The type of a key: count is a whole number from 1, whole a whole number from 0.
Holds = Literal["count", "whole", "flag", "text", "list", "section"]


class _FamilyPart(Spec):
    model_config = ConfigDict(arbitrary_types_allowed=True)


def _written_out(value: object) -> object:
    return {"holds": value} if isinstance(value, str) else value


class KeySpec(_FamilyPart):
    """A key of the config that the family reads; `hidden_size: count` is short for `{holds: count}`."""

    holds: Holds
    default: Expression | None = None  # for a key that is absent or null; None: the key is required
    also: list[str] = Field(default_factory=list)  # other spellings
    each_of: Literal["layers", "sides"] = "layers"  # what a list in place of a number has an entry for


class RuleSpec(_FamilyPart):
    """A condition that a config must satisfy."""

    rule: Expression
    says: str  # the error message for a config that breaks it


def _always(value: object) -> object:
    return {value: True} if isinstance(value, str) else value


# Name -> condition; the first name whose condition holds counts. A name alone always holds.
FirstOf = Annotated[dict[str, Expression], Field(min_length=1), BeforeValidator(_always)]


class LayersSpec(_FamilyPart):
    """Consecutive layers, each with the options whose conditions hold."""

    count: Expression = parse(1)
    # Names of conditions on a layer, which the conditions below may read: {attention: "pattern[i] == '*'"}.
    where: dict[str, Expression] = Field(default_factory=dict)
    kind: FirstOf
    options: dict[str, Expression] = Field(default_factory=dict)  # option -> condition
    blocks: dict[str, FirstOf] = Field(default_factory=dict)  # block parameter -> blocks; its default if none holds

    @property
    def conditions(self) -> list[Formula]:
        """All conditions; they may read the position of the layer."""
        choices = [self.kind, self.options, *self.blocks.values()]
        return [condition for choice in choices for condition in choice.values()]


class UnpricedSpec(_FamilyPart):
    """A key that changes the cost, but not in any layer definition."""

    what: str  # the cost that it changes
    unless: list[Any] = Field(default_factory=list)  # values, besides null, that change nothing
    when: Expression = parse(True)  # a condition on other keys without which no value changes anything


class PublishedSpec(_FamilyPart):
    """The published number of parameters of one checkpoint."""

    when: Expression  # holds for the configs of that checkpoint
    total: Total
    rounding: Count = 1  # 10000000 for a total published as 20.91 billion
    source: str


class FamilySpec(_FamilyPart):
    """How to read a config of one `model_type`."""

    source: str
    section: str | None = None  # the section of the config that describes the language model; None: the whole config
    keys: Annotated[dict[str, Annotated[KeySpec, BeforeValidator(_written_out)]], Field(max_length=1_000)]
    # The names of rules and layers let an extending file replace them.
    require: dict[str, RuleSpec] = Field(default_factory=dict)  # name -> rule
    dimensions: dict[str, Expression]  # letter -> formula; a dimension of 0 is left out
    default_sequence_length: Expression
    layers: Annotated[dict[str, LayersSpec], Field(min_length=1)]  # name -> layers, first to last
    unpriced: dict[str, UnpricedSpec] = Field(default_factory=dict)  # key -> the cost that it changes
    no_cost: dict[str, list[str]] = Field(default_factory=dict)  # topic -> keys that change no cost
    other_head: Expression = parse(False)  # whether the head is not that of the published checkpoints
    published: list[PublishedSpec] = Field(default_factory=list)

    @model_validator(mode="after")
    def _keys_are_known(self) -> Self:
        shared = [
            *(rule.rule for rule in self.require.values()),
            *self.dimensions.values(),
            self.default_sequence_length,
            *(layers.count for layers in self.layers.values()),
            *(published.when for published in self.published),
            *(key.default for key in self.keys.values() if key.default),
            *(key.when for key in self.unpriced.values()),
            self.other_head,
        ]
        of_layers = {*self.keys, LAYER}
        known_to = [(shared, {*self.keys})]
        for layers in self.layers.values():
            known_to += [([*layers.where.values()], of_layers), (layers.conditions, of_layers | layers.where.keys())]
        for formulas, known in known_to:
            for formula in formulas:
                if unknown := sorted(formula.names - known):
                    raise ValueError(f"{formula.text!r} reads {unknown[0]!r}, which is not one of 'keys'")
        return self


def load_family(model_type: str) -> FamilySpec:
    """Return the family of a known `model_type`; raises SpecError with all faults of its file."""
    return load_spec("families", "family", FamilySpec, model_type, (), None)
