"""A model file: the sizes of its dimensions, and the sequence of its layers.

Dimensions have the letters of the layer notation: e hidden size, h attention heads, g key-value heads,
k head dimension, f feed-forward width, v vocabulary; a layer text may ask for others. What a layer of a
kind consists of is said by its layer text, not here.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from dsx.errors import did_you_mean
from dsx.spec.load import Given, Spec, load_overridden
from dsx.spec.overrides import Assignment
from dsx.spec.quantities import Count, Total
from dsx.spec.validate import validate

_TAKEN = {
    "b": "microbatch_size, a choice of the plan",
    "s": "sequence_length, a training setting",
    **dict.fromkeys(("tp", "tp2", "cp", "ep", "dp", "pp"), "degree of a mesh axis, a choice of the plan"),
    "panels": "number of panels, a choice of the plan",
    **dict.fromkeys(("activation_bytes", "weight_bytes", "gradient_bytes"), "element size, an assumption"),
}
# The letters that layer texts and strategies agree on; a model gives those that its layers use.
ALPHABET = ("e", "h", "g", "k", "f", "v", "x", "c", "m", "j", "t", "fx", "fs", "kv", "gc")
EXPERTS = "x"  # the letter of the number of experts


def _letter(letter: str) -> str:
    if letter in _TAKEN:
        raise ValueError(f"{letter!r} is the {_TAKEN[letter]}: it is no dimension of the model")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", letter):
        raise ValueError(f"{letter!r} is no name in the layer notation: letters, digits and _, such as 'e'")
    return letter


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A layer definition with the options and block parameters that a model sets."""

    kind: str  # as the assumption set's `layers` maps it to a layer definition
    options: frozenset[str] = frozenset()
    blocks: tuple[tuple[str, str], ...] = ()  # (block parameter, block)

    def __str__(self) -> str:
        chosen = " ".join([*sorted(self.options), *(f"{name}={block}" for name, block in self.blocks)])
        return f"{self.kind}[{chosen}]" if chosen else self.kind


# What is wrong with the settings of a layer, as the definitions of layers say, which are not known here; or nothing.
LayerCheck = Callable[[LayerKind], str]


class LayerCount(Spec):
    """Layers of one kind that follow each other; a further key is a block parameter, as in ``ffn: experts``."""

    kind: str
    options: list[str] = Field(default_factory=list)
    blocks: dict[str, str] = Field(default_factory=dict)  # block parameter -> block
    count: Count = 1

    @model_validator(mode="before")
    @classmethod
    def _further_keys_name_blocks(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        further = {key: value for key, value in data.items() if key not in cls.model_fields}
        keys = [name for name in cls.model_fields if name != "blocks"]
        for key, value in further.items():
            if not isinstance(value, str):
                raise ValueError(
                    f"{key!r} is no key of a layer{did_you_mean(str(key), keys)} (known: {', '.join(keys)}); as a "
                    f"block parameter, as in 'ffn: experts', it would name a block, not {value!r}"
                )
        blocks = data.get("blocks", {})
        if not further or not isinstance(blocks, dict):
            return data
        rest = {key: value for key, value in data.items() if key not in further}
        return rest | {"blocks": blocks | further}

    @model_validator(mode="after")
    def _settings_are_known(self, info: ValidationInfo) -> "LayerCount":
        check: LayerCheck | None = info.context
        if check and (fault := check(self.layer)):
            raise ValueError(fault)
        return self

    @property
    def layer(self) -> LayerKind:
        """What each of these layers is."""
        return LayerKind(self.kind, frozenset(self.options), tuple(sorted(self.blocks.items())))


def layer_count(layer: LayerKind, count: int) -> LayerCount:
    """Return `count` layers of a kind as an entry of a model."""
    return LayerCount(kind=layer.kind, options=sorted(layer.options), blocks=dict(layer.blocks), count=count)


class RepeatedLayers(Spec):
    """A pattern of layers that is repeated."""

    repeat: Count
    layers: Annotated[list[LayerCount], Field(min_length=1)]


def _arm(value: Any) -> str:
    return (
        "<repeated>"
        if isinstance(value, RepeatedLayers) or (isinstance(value, dict) and "repeat" in value)
        else "<one>"
    )


LayersEntry = Annotated[
    Annotated[LayerCount, Tag("<one>")] | Annotated[RepeatedLayers, Tag("<repeated>")], Discriminator(_arm)
]
_MOST_ENTRIES = 100_000  # of layers, with patterns written out


class ModelSpec(Spec):
    """A transformer, or anything else that is a sequence of layers."""

    name: str
    description: str = ""
    source: str  # where the sizes are published
    default_sequence_length: Count  # tokens, where a sweep gives none
    dimensions: Annotated[dict[Annotated[str, AfterValidator(_letter)], Count], Field(min_length=1)]
    layers: Annotated[list[LayersEntry], Field(min_length=1)]  # first to last
    parameters: Total | None = None  # as published, to compare with the count of the layer definitions

    @model_validator(mode="after")
    def _patterns_end(self) -> "ModelSpec":
        written = sum(each.repeat * len(each.layers) for each in self.layers if isinstance(each, RepeatedLayers))
        if written > _MOST_ENTRIES:
            raise ValueError(f"layers: patterns written out have {written:,} entries; at most {_MOST_ENTRIES:,}")
        return self

    @property
    def sequence(self) -> list[LayerCount]:
        """The layers first to last, patterns written out."""
        return list(self._written_out())

    def _written_out(self) -> Iterator[LayerCount]:
        for entry in self.layers:
            if isinstance(entry, LayerCount):
                yield entry
            else:
                for _ in range(entry.repeat):
                    yield from entry.layers


def has_experts(dimensions: Mapping[str, int]) -> bool:
    """Return whether the layers of a model with these dimensions have experts; one expert is a dense model."""
    return dimensions.get(EXPERTS, 1) > 1


def load_model(
    given: Given,
    overrides: Sequence[Assignment] = (),
    near: Path | None = None,
    check: LayerCheck | None = None,
) -> ModelSpec:
    """Return the model that is given, by name, path or content.

    `near` is the file that mentions it, `check` looks at its layers.

    Raises UnknownNameError, or SpecError that lists all faults of the file.
    """
    document = load_overridden("models", "model", ModelSpec, given, overrides, near)
    return validate(document, ModelSpec, check)
