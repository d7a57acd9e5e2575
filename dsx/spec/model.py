"""A model file: the sizes of its dimensions, and the sequence of its layers.

Dimensions have the letters of the layer notation: e hidden size, h attention heads, g key-value heads,
k head dimension, f feed-forward width, v vocabulary; a layer text may ask for others. What a layer of a
kind consists of is said by its layer text, not here.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from dsx.spec.load import Spec, load_spec
from dsx.spec.overrides import Assignment
from dsx.spec.quantities import Count, Total

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


class LayerCount(Spec):
    """Layers of one kind that follow each other."""

    kind: str  # as the assumption set's `layers` maps it to a layer text
    count: Count


class ModelSpec(Spec):
    """A transformer, or anything else that is a sequence of layers."""

    name: str
    description: str = ""
    source: str  # where the sizes are published
    default_sequence_length: Count  # tokens, where a sweep gives none
    dimensions: Annotated[dict[Annotated[str, AfterValidator(_letter)], Count], Field(min_length=1)]
    layers: Annotated[list[LayerCount], Field(min_length=1)]  # first to last
    parameters: Total | None = None  # as published, to compare with the count of the layer texts


def has_experts(dimensions: Mapping[str, int]) -> bool:
    """Return whether the layers of a model with these dimensions have experts; one expert is a dense model."""
    return dimensions.get(EXPERTS, 1) > 1


def load_model(name_or_path: str | Path, overrides: Sequence[Assignment] = (), near: Path | None = None) -> ModelSpec:
    """Return the model of that name or path; `near` is the file that mentions it.

    Raises UnknownNameError, or SpecError that lists all faults of the file.
    """
    return load_spec("models", "model", ModelSpec, name_or_path, overrides, near)
