"""Writes a model file atomically; an existing file is replaced only on request."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from dsx.errors import SpecError, StoreError
from dsx.files import write_whole
from dsx.spec.hf.family import PublishedSpec
from dsx.spec.model import LayerCount, ModelSpec, RepeatedLayers

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")  # a string that YAML reads as itself
_WORDS = {"null", "true", "false"}  # strings of this form that YAML reads as other values
_SUFFIX = ".yaml"


def model_text(model: ModelSpec, published: PublishedSpec | None = None) -> str:
    """Return the model as YAML that `load_model` can read; `published` is the source of its number of parameters."""
    dimensions = ", ".join(f"{letter}: {size}" for letter, size in model.dimensions.items())
    lines = [
        f"name: {_text(model.name)}",
        *([f"description: {_text(model.description)}"] if model.description else []),
        f"source: {_text(model.source)}",
        f"default_sequence_length: {model.default_sequence_length}",
        f"dimensions: {{{dimensions}}}",
        "layers:",
        *(line for entry in model.layers for line in _layers(entry)),
    ]
    if model.parameters is not None:
        source = f", source: {_text(published.source)}" if published else ""
        lines.append(f"parameters: {{value: {model.parameters}{source}}}")
    return "\n".join(lines) + "\n"


def _layers(entry: LayerCount | RepeatedLayers) -> Iterator[str]:
    if isinstance(entry, LayerCount):
        yield f"  - {_layer(entry)}"
        return
    yield f"  - repeat: {entry.repeat}"
    yield "    layers:"
    yield from (f"      - {_layer(layers)}" for layers in entry.layers)


def _layer(layers: LayerCount) -> str:
    options = f", options: [{', '.join(map(_text, layers.options))}]" if layers.options else ""
    blocks = "".join(f", {_text(parameter)}: {_text(block)}" for parameter, block in layers.layer.blocks)
    count = f", count: {layers.count}" if layers.count > 1 else ""
    return f"{{kind: {_text(layers.kind)}{options}{blocks}{count}}}"


def check_target(path: Path, overwrite: bool) -> None:
    """Raise SpecError unless `path` can name a model file; StoreError for an existing file, unless `overwrite`."""
    if not path.name:
        raise SpecError(f"-o {str(path)!r} names no file: a model file ends in {_SUFFIX}")
    if path.suffix != _SUFFIX:
        raise SpecError(f"{path}: a model file ends in {_SUFFIX}: choose {path.with_suffix(_SUFFIX)}")
    if path.is_dir():
        raise StoreError(f"{path} is a folder; choose another file with -o")
    if os.path.lexists(path) and not overwrite:
        raise StoreError(f"{path} exists; choose another file with -o, or replace it with --overwrite")


def write(text: str, path: Path) -> None:
    """Write `text` to `path` atomically; raises StoreError if that fails."""
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose another path") from None


def _text(text: str) -> str:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())
