"""Layer texts, strategies and operator tables found by name or path, and layers built from them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from dsx.errors import NotationError, UnknownNameError
from dsx.graph.build import MOST_BLOCKS, build_layer
from dsx.graph.layer import Layer
from dsx.graph.lexer import Place
from dsx.graph.notation import LayerText, Role, StrategyText, UseText, parse_file
from dsx.graph.operators import OperatorKind, load_tables
from dsx.spec.locate import find, names

SUFFIX = ".layer"
NO_BLOCKS: Mapping[str, str] = MappingProxyType({})


def load_operators(table_names: Iterable[str], near: Path | None = None) -> dict[str, OperatorKind]:
    """Return the operators of the named tables; a later table replaces single operators of an earlier one."""
    return load_tables([find("operators", name, ".yaml", near) for name in table_names])


def load_layer(
    name: str,
    strategy: str | None,
    table: dict[str, OperatorKind],
    near: Path | None = None,
    blocks: Mapping[str, str] = NO_BLOCKS,
) -> Layer:
    """Build the layer (or a single block) called `name`, or at that path, under a strategy.

    What `blocks` names for a block takes its place, and what the strategy brings in the place of that one.
    `near` is the file that mentions the names. Raises NotationError or UnknownNameError.
    """
    text = _parse("layer", name, near)
    if isinstance(text, StrategyText):
        raise NotationError(f"{name!r} is a strategy, not a layer or block", text.file, 1, 1)
    overlay = load_strategy(strategy, near) if strategy else None

    def find_block(block: str, place: Place) -> LayerText:
        block = blocks.get(block, block)
        block = overlay.blocks.get(block, block) if overlay else block
        try:
            found = parse_file(find("layers", block, SUFFIX, Path(place.file)))
        except UnknownNameError as error:
            raise place.error(str(error)) from None
        if not isinstance(found, LayerText) or found.kind != "block":
            raise place.error(f"{block!r} is no block")
        return found

    return build_layer(text, overlay, table, find_block)


def needs_strategy(name: str, near: Path | None = None) -> bool:
    """Return whether the layer called `name`, or a block that it uses, has roles."""
    seen: set[str] = set()
    pending = [(name, near)]
    while pending:
        text = _parse("layer", *pending.pop())
        if isinstance(text, StrategyText) or text.file in seen:
            continue
        if len(seen) > MOST_BLOCKS:  # as building the layer will say
            return False
        seen.add(text.file)
        tensors = [*text.inputs, *text.weights]
        for entry in text.body:
            if isinstance(entry, UseText):
                pending.append((entry.block, Path(text.file)))
            else:
                tensors += [*entry.outputs, *entry.arguments]
        if any(isinstance(item, Role) for tensor in tensors for item in tensor.dims or ()):
            return True
    return False


def load_strategy(name: str, near: Path | None = None) -> StrategyText:
    """Return the strategy called `name`, or at that path."""
    text = _parse("strategy", name, near)
    if not isinstance(text, StrategyText):
        raise NotationError(f"{name!r} is a {text.kind}, not a strategy", text.file, 1, 1)
    return text


def strategy_names() -> Sequence[str]:
    """Return the names of all strategies that can be found."""
    return _names("strategy")


def kernel_names() -> set[str]:
    """Return the names of the ``fuse`` blocks of all texts that can be found and read."""
    found: set[str] = set()
    for name in _names("layer"):
        text = parse_file(find("layers", name, SUFFIX))
        body = text.body if isinstance(text, LayerText) else ()
        found |= {entry.fuse[0] for entry in body if not isinstance(entry, UseText) and entry.fuse}
    return found


def layer_names() -> Sequence[str]:
    """Return the names of all layers and blocks that can be found."""
    return _names("layer")


def _parse(kind: str, name: str, near: Path | None) -> LayerText | StrategyText:
    try:
        path = find("layers", name, SUFFIX, near)
    except UnknownNameError:
        raise UnknownNameError(kind, name, _names(kind)) from None
    return parse_file(path)


def _names(kind: str) -> list[str]:
    """Return the names of the layers and blocks, or of the strategies, that can be found and read."""
    found: list[str] = []
    for name in names("layers", SUFFIX):
        try:
            text = parse_file(find("layers", name, SUFFIX))
        except NotationError:
            continue  # a broken text is an error where it is asked for by name
        if isinstance(text, StrategyText) == (kind == "strategy"):
            found.append(name)
    return found
