"""A model file: the sizes of its dimensions, and the sequence of its layers.

Dimensions have the letters of the layer notation: e hidden size, h attention heads, g key-value heads, k head
dimension, f feed-forward width, v vocabulary; a layer definition may use others. The model names the kinds of its
layers; their layer definitions state the operators.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dsx.config.documents import Document
from dsx.config.load import Assignment, Given, stated_document, statements
from dsx.config.schema import Count, FileKind, Spec, Total, validate, whole_number
from dsx.config.sweep_fields import divisors_of, listed
from dsx.errors import SpecError, did_you_mean

ELEMENT_BYTES = ("activation_bytes", "weight_bytes", "gradient_bytes", "cross_entropy_bytes")


_TAKEN = {
    "b": "microbatch_size, a choice of the plan",
    "s": "sequence_length, a training setting",
    **dict.fromkeys(("tp", "tp2", "cp", "ep", "dp", "pp"), "degree of a mesh axis, a choice of the plan"),
    "panels": "number of panels, a choice of the plan",
    **dict.fromkeys(ELEMENT_BYTES, "element size, an assumption"),
}
# The letters that layer definitions and strategies share; a model gives those that its layers use.
ALPHABET = ("e", "h", "g", "k", "f", "v", "x", "c", "m", "j", "t", "fx", "fs", "kv", "gc", "lg", "sg", "gg")
EXPERTS = "x"  # the letter of the number of experts
CHOSEN = "topk"  # that of the experts of a token
HEADS, KV_HEADS = "h", "g"
# The option of a head that predicts a further token, and its block parameter for the layer that does.
PREDICTION, PREDICTED = "prediction", "layer"
VOCABULARY = "v"  # that of the embedding and the head, which a model may leave out
CLASSES = "classes"  # that of the head of a classifier
ALL_WEIGHTS = "*"


def _letter(letter: str) -> str:
    if letter in _TAKEN:
        raise ValueError(f"{letter!r} is the {_TAKEN[letter]}, not a dimension of the model")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", letter):
        raise ValueError(f"{letter!r} is not a name of the layer notation: letters, digits and _, such as 'e'")
    return letter


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A layer definition with the options and block parameters that a model sets."""

    kind: str  # the assumption set may map it to another layer definition
    options: frozenset[str] = frozenset()
    blocks: tuple[tuple[str, str], ...] = ()  # (block parameter, block)

    def __str__(self) -> str:
        chosen = " ".join([*sorted(self.options), *(f"{name}={block}" for name, block in self.blocks)])
        return f"{self.kind}[{chosen}]" if chosen else self.kind


@dataclass(frozen=True, slots=True)
class LayerCheck:
    """What a model is checked against: only `dsx.notation` knows the definitions of layers."""

    fault: Callable[[LayerKind], str]  # what is wrong with the settings of a layer, or ""
    letters: Callable[[LayerKind], frozenset[str] | None]  # dimensions that a layer may use; None if not known


class LayerCount(Spec):
    """Consecutive layers of one kind; any other key is a block parameter, as in ``ffn: experts``."""

    kind: str
    options: list[str] = Field(default_factory=list)
    blocks: dict[str, str] = Field(default_factory=dict)  # block parameter -> block
    count: Count = 1

    @model_validator(mode="before")
    @classmethod
    def _other_keys_name_blocks(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        parameters = {key: value for key, value in data.items() if key not in cls.model_fields}
        keys = [name for name in cls.model_fields if name != "blocks"]
        for key, value in parameters.items():
            if isinstance(value, int) and not did_you_mean(str(key), ["count"]):
                raise ValueError(
                    f"{key!r} is not a key of a layer: the model states sizes, as in dimensions: {{{key}: {value}}}"
                )
            if not isinstance(value, str):
                raise ValueError(
                    f"{key!r} is not a key of a layer{did_you_mean(str(key), keys)} (known: {', '.join(keys)}); a "
                    f"block parameter, as in 'ffn: experts', names a block, not {value!r}"
                )
        blocks = data.get("blocks", {})
        if not parameters or not isinstance(blocks, dict):
            return data
        settings = {key: value for key, value in data.items() if key not in parameters}
        return settings | {"blocks": blocks | parameters}

    @model_validator(mode="after")
    def _settings_are_known(self, info: ValidationInfo) -> "LayerCount":
        check: LayerCheck | None = info.context
        if check and (fault := check.fault(self.layer)):
            raise ValueError(fault)
        return self

    @property
    def layer(self) -> LayerKind:
        """The kind of these layers, with its settings."""
        return LayerKind(self.kind, frozenset(self.options), tuple(sorted(self.blocks.items())))


def layer_count(layer: LayerKind, count: int) -> LayerCount:
    """Return `count` layers of a kind as an entry of a model."""
    return LayerCount(kind=layer.kind, options=sorted(layer.options), blocks=dict(layer.blocks), count=count)


class RepeatedLayers(Spec):
    """A repeated pattern of layers."""

    repeat: Count
    layers: Annotated[list[LayerCount], Field(min_length=1)]


def _arm(value: object) -> str:
    repeated = isinstance(value, RepeatedLayers) or (isinstance(value, dict) and "repeat" in value)
    return "<repeated>" if repeated else "<one>"


LayersEntry = Annotated[
    Annotated[LayerCount, Tag("<one>")] | Annotated[RepeatedLayers, Tag("<repeated>")], Discriminator(_arm)
]
_MOST_ENTRIES = 100_000  # of layers, with repeated patterns expanded


class ModelSpec(Spec):
    """A transformer, or any other sequence of layers."""

    file_kind = FileKind("model", "a model", "--model", "models")
    keys_of_file = ("extends",)

    name: str
    description: str = ""
    source: str  # of the sizes
    default_sequence_length: Count  # tokens; for a sweep that states none
    dimensions: Annotated[dict[Annotated[str, AfterValidator(_letter)], Count], Field(min_length=1)]
    layers: Annotated[list[LayersEntry], Field(min_length=1)]  # first to last
    # Layers of multi-token prediction that the head is trained with, each as the last layer before the head. The
    # published number of parameters leaves them out.
    num_prediction_layers: Annotated[int, Field(ge=0, le=1), BeforeValidator(whole_number)] = 0
    # Patterns (``*``, ``?``) of the names of the weights that a step trains, such as "head.*"; the names are those of
    # `dsx.notation.phases`. A step that trains none is a forward alone.
    trained: Annotated[list[str], BeforeValidator(listed)] = Field(
        default=[ALL_WEIGHTS], exclude_if=[ALL_WEIGHTS].__eq__
    )
    parameters: Total | None = None  # published number, to compare with that of the layer definitions

    @field_validator("dimensions")
    @classmethod
    def _sizes_agree(cls, sizes: dict[str, int]) -> dict[str, int]:
        heads, groups = sizes.get(HEADS, 1), sizes.get(KV_HEADS, 1)
        if heads % groups:
            nearest = min(divisors_of(heads), key=lambda number: (abs(number - groups), number))
            raise ValueError(
                f"{HEADS}={heads} attention heads are no multiple of {KV_HEADS}={groups} key-value heads; nearest: "
                f"{KV_HEADS}={nearest}"
            )
        chosen, experts = sizes.get(CHOSEN, 1), sizes.get(EXPERTS, 1)
        if chosen > experts:
            raise ValueError(
                f"{CHOSEN}={chosen}: the router cannot send a token to more experts than there are, {EXPERTS}="
                f"{experts}; nearest: {CHOSEN}={experts}"
            )
        return sizes

    @model_validator(mode="after")
    def _patterns_are_bounded(self) -> "ModelSpec":
        entries = sum(entry.repeat * len(entry.layers) for entry in self.layers if isinstance(entry, RepeatedLayers))
        if entries > _MOST_ENTRIES:
            raise ValueError(f"layers: expanded patterns have {entries:,} entries; at most {_MOST_ENTRIES:,}")
        return self

    @model_validator(mode="after")
    def _head_can_predict(self, info: ValidationInfo) -> "ModelSpec":
        check: LayerCheck | None = info.context
        if self.num_prediction_layers and len(self.sequence) < 2:
            raise ValueError("num_prediction_layers: the model has no head, which predicts further tokens")
        if self.num_prediction_layers and check and (fault := check.fault(self.sequence[-1].layer)):
            raise ValueError(
                f"num_prediction_layers: the last layer, {self.sequence[-1].kind!r}, predicts no further token, as "
                f"'head' does: {fault}"
            )
        return self

    @property
    def sequence(self) -> list[LayerCount]:
        """The layers first to last, with repeated patterns expanded, and with what the head predicts."""
        entries: list[LayerCount] = []
        for entry in self.layers:
            entries += [entry] if isinstance(entry, LayerCount) else entry.layers * entry.repeat
        if self.num_prediction_layers and len(entries) > 1:
            *_, last, head = entries
            options = sorted({*head.options, *last.options, PREDICTION})
            blocks = {PREDICTED: last.kind, **last.blocks, **head.blocks}
            entries[-1] = LayerCount(kind=head.kind, options=options, blocks=blocks, count=head.count)
        return entries


def has_experts(dimensions: Mapping[str, int]) -> bool:
    """Return whether a model with these dimensions has experts; a model with one expert is dense."""
    return dimensions.get(EXPERTS, 1) > 1


def load_model(
    reference: Given,
    overrides: Sequence[Assignment] = (),
    near: Path | None = None,
    check: LayerCheck | None = None,
) -> ModelSpec:
    """Return a model, given by name, path or content; `near` is the file that mentions it.

    `check` checks the settings of its layers, and that they use its dimensions. Raises UnknownNameError, or SpecError
    with all faults of the file.
    """
    spec = validate(stated_document(ModelSpec, reference, overrides, near), ModelSpec, check)
    if check and not isinstance(reference, ModelSpec):
        _check_letters(spec, statements(ModelSpec, reference, near), check)
    return spec


def _check_letters(spec: ModelSpec, documents: Sequence[Document], check: LayerCheck) -> None:
    """Raise SpecError for dimensions that no layer uses.

    A model whose layers replace those of the model that it extends keeps the dimensions of the replaced layers.
    """
    used = {VOCABULARY}
    for layer in {entry.layer for entry in spec.sequence}:
        letters = check.letters(layer)
        if letters is None:
            return
        used |= letters
    letters_in_use = sorted(used - _TAKEN.keys())
    faults: list[str] = []
    for document in documents:
        for letter in document.data.get("dimensions", ()):
            if letter not in used:
                near = did_you_mean(letter, letters_in_use)
                message = f"no layer of the model uses this dimension{near} (they use {', '.join(letters_in_use)})"
                faults.append(document.message(("dimensions", letter), message))
        if "layers" in document.data:
            break
    if faults:
        raise SpecError("\n".join(faults))
