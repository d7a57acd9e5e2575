"""A family file: how the configs of one `model_type` become dimensions and layers.

The file of a family has its `model_type` as its name, so a new family is a new file. What families share lies in
files that they extend.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from dsx.spec.hf.formula import Formula, parse
from dsx.spec.load import Spec, load_spec
from dsx.spec.quantities import Count, Total

LAYER = "i"  # in the conditions of a layer: its number, counted from 0 in its group

Expression = Annotated[Formula, BeforeValidator(parse)]
# What a key holds: count is a whole number from 1, whole one from 0.
Holds = Literal["count", "whole", "flag", "text", "list", "section"]


class _FamilyPart(Spec):
    model_config = ConfigDict(arbitrary_types_allowed=True)


def _written_out(value: Any) -> Any:
    return {"holds": value} if isinstance(value, str) else value


class KeySpec(_FamilyPart):
    """A key of the config that is read; `hidden_size: count` is short for `{holds: count}`."""

    holds: Holds
    default: Expression | None = None  # where the key is absent or null; without one the key is required
    also: list[str] = Field(default_factory=list)  # other spellings


class RuleSpec(_FamilyPart):
    """What must hold in a config."""

    rule: Expression
    says: str  # what a config that breaks it is told


def _always(value: Any) -> Any:
    return {value: True} if isinstance(value, str) else value


# Name -> condition; of these the first that holds. A name alone is short for one that always does.
FirstOf = Annotated[dict[str, Expression], Field(min_length=1), BeforeValidator(_always)]


class LayersSpec(_FamilyPart):
    """Layers that follow each other, each with the options whose conditions hold."""

    count: Expression = parse(1)
    kind: FirstOf
    options: dict[str, Expression] = Field(default_factory=dict)  # option -> condition
    blocks: dict[str, FirstOf] = Field(default_factory=dict)  # block parameter -> its blocks; the default if none holds

    @property
    def conditions(self) -> list[Formula]:
        """All conditions, which may read the number of the layer."""
        choices = [self.kind, self.options, *self.blocks.values()]
        return [condition for choice in choices for condition in choice.values()]


class UnpricedSpec(_FamilyPart):
    """A key that would change the cost, and that no layer text says."""

    what: str
    unless: list[Any] = Field(default_factory=list)  # values with which it changes nothing, beside null


class PublishedSpec(_FamilyPart):
    """The published parameter total of one checkpoint."""

    when: Expression  # holds for the configs of that checkpoint
    total: Total
    rounding: Count = 1  # 10000000 for a total that is given as 20.91 billion
    source: str


class FamilySpec(_FamilyPart):
    """How a config of one `model_type` is read."""

    source: str
    section: str | None = None  # of the config that describes the language model
    keys: Annotated[dict[str, Annotated[KeySpec, BeforeValidator(_written_out)]], Field(max_length=1_000)]
    require: dict[str, RuleSpec] = Field(default_factory=dict)  # name, by which an extending file replaces it -> rule
    dimensions: dict[str, Expression]  # letter -> formula; one that is 0 is left out
    default_sequence_length: Expression
    layers: Annotated[dict[str, LayersSpec], Field(min_length=1)]  # name, by which a file changes them -> first to last
    unpriced: dict[str, UnpricedSpec] = Field(default_factory=dict)  # key -> what it changes
    no_cost: dict[str, list[str]] = Field(default_factory=dict)  # topic -> keys that change no cost
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
        ]
        conditions = [condition for layers in self.layers.values() for condition in layers.conditions]
        for formulas, known in ((shared, {*self.keys}), (conditions, {*self.keys, LAYER})):
            for formula in formulas:
                if unknown := sorted(formula.names - known):
                    raise ValueError(f"{formula.text!r} reads {unknown[0]!r}, which is none of 'keys'")
        return self


def load_family(model_type: str) -> FamilySpec:
    """Return the family of that `model_type`, which must be the name of one.

    Raises SpecError that lists all faults of its file.
    """
    return load_spec("families", "family", FamilySpec, model_type, (), None)
