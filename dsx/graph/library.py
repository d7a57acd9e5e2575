"""Definitions of layers, strategies and operator tables found by name or path, and layers built from them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dsx.errors import InputError, NotationError, SpecError, UnknownNameError, did_you_mean
from dsx.graph.build import MOST_BLOCKS, NOTHING_SET, block_of, build_layer
from dsx.graph.former import formerly
from dsx.graph.layer import Layer
from dsx.graph.lexer import Place
from dsx.graph.notation import (
    BracketText,
    Definition,
    LayerDefinition,
    OperatorText,
    Role,
    Settings,
    StrategyDefinition,
    StrategyText,
    TensorsText,
    UseText,
)
from dsx.graph.operators import OperatorKind, load_tables
from dsx.graph.options import check_known, selected
from dsx.graph.parse import parse_file
from dsx.graph.strategy import resolved
from dsx.spec.locate import find, names

SUFFIX = ".layer"


def load_operators(table_names: Iterable[str], near: Path | None = None) -> dict[str, OperatorKind]:
    """Return the operators of the named tables; a later table replaces single operators of an earlier one."""
    return load_tables([find("operators", name, ".yaml", near) for name in table_names])


def load_layer(
    name: str,
    strategy: str | None,
    table: dict[str, OperatorKind],
    near: Path | None = None,
    chosen: Settings = NOTHING_SET,
    inherited: Settings = NOTHING_SET,
) -> Layer:
    """Build the layer (or a single block) called `name`, or at that path, under a strategy.

    `chosen` is set for this layer, which must know it; `inherited`, and what the strategy sets, where it is known.
    `near` is the file that mentions the names. Raises InputError.
    """
    overlay = load_strategy(strategy, near) if strategy else None
    return build_layer(load_definition(name, near), overlay, table, _find_block, chosen, inherited)


def load_definition(name: str, near: Path | None = None) -> LayerDefinition:
    """Return the definition of the layer or block of that name, or at that path; raises InputError."""
    definition = _parse("layer", name, near)
    if isinstance(definition, StrategyDefinition):
        raise NotationError(f"{name!r} is a strategy, not a layer or block", definition.file, 1, 1)
    return definition


def _find_block(block: str, place: Place) -> LayerDefinition:
    try:
        found = parse_file(find("layers", block, SUFFIX, Path(place.file)))
    except UnknownNameError:
        if now := formerly(block):
            raise place.error(now) from None
        beside = [file.stem for file in Path(place.file).parent.glob(f"*{SUFFIX}")]
        raise UnknownNameError("block", block, {*_names("block"), *beside}) from None
    if not isinstance(found, LayerDefinition) or found.kind != "block":
        raise place.error(f"{block!r} is no block")
    return found


def fault_of_settings(name: str, chosen: Settings, near: Path | None = None) -> str:
    """Return what is wrong with what is chosen for a layer, whatever the strategy; nothing if it cannot be known.

    A layer that nobody has may be one that an assumption set has another definition of.
    """
    definition: LayerDefinition | None = None
    try:
        definition = load_definition(name, near)
        used, pending = [definition], [definition]
        while pending and len(used) <= MOST_BLOCKS:
            lines = selected(pending.pop(), chosen).body
            blocks = [block_of(line, _find_block) for line in lines if isinstance(line, UseText)]
            used += blocks
            pending += blocks
        check_known(chosen, used)
    except UnknownNameError as error:
        return "" if definition is None else str(error)
    except InputError as error:
        return str(error)
    return ""


def needs_strategy(name: str, near: Path | None = None, chosen: Settings = NOTHING_SET) -> bool:
    """Return whether the layer called `name`, or a block that it may use under `chosen` block parameters, has roles."""
    seen: set[str] = set()
    blocks = dict(chosen.blocks)
    pending = [(name, near)]
    while pending:
        text = _parse("layer", *pending.pop())
        if isinstance(text, StrategyDefinition) or text.file in seen:
            continue
        if len(seen) > MOST_BLOCKS:  # as building the layer will say
            return False
        seen.add(text.file)
        for line, _ in text.lines:
            if isinstance(line, UseText):
                used = blocks.get(line.parameter, text.parameters.get(line.parameter, line.block))
                pending.append((used, Path(text.file)))
            elif isinstance(line, OperatorText | TensorsText):
                tensors = line.tensors if isinstance(line, TensorsText) else (*line.outputs, *line.arguments)
                if any(isinstance(item, Role) for tensor in tensors for item in tensor.dims or ()):
                    return True
    return False


def load_strategy(name: str, near: Path | None = None) -> StrategyText:
    """Return the strategy called `name`, or at that path, with what it extends; raises InputError."""
    definition = _strategy(_parse("strategy", name, near), name)

    def find_base(base: str, place: Place) -> StrategyDefinition:
        try:
            return _strategy(_parse("strategy", base, Path(place.file)), base)
        except UnknownNameError as error:
            raise place.error(str(error)) from None

    strategy = resolved(definition, find_base)
    check_settable(strategy.settings, f"strategy {name!r}")
    return strategy


def _strategy(definition: Definition, name: str) -> StrategyDefinition:
    if isinstance(definition, StrategyDefinition):
        return definition
    raise NotationError(f"{name!r} is a {definition.kind}, not a strategy", definition.file, 1, 1)


def check_settable(settings: Settings, owner: str) -> None:
    """Raise SpecError if what is set for all layers that know it is nearly what some layer knows, but not quite.

    A layer of one's own, which knows it, may lie anywhere.
    """
    if settings == NOTHING_SET:
        return
    definitions = [found for _, found in _definitions() if isinstance(found, LayerDefinition)]
    options = {name for found in definitions for name in found.options}
    parameters = {name for found in definitions for name in found.parameters}
    of_kind = [("option", name, options, parameters) for name in sorted(settings.options)]
    of_kind += [("block parameter", name, parameters, options) for name, _ in settings.blocks]
    for kind, name, known, others in of_kind:
        if name in others - known:
            other = "names a block" if kind == "option" else "is an option: it is set to true"
            raise SpecError(f"{owner} sets {name!r} as no layer knows it: it {other}")
        if name not in known and (nearest := did_you_mean(name, known)):
            raise SpecError(f"{owner} sets {name!r}, which is no {kind} of any layer{nearest}")


def strategy_names() -> Sequence[str]:
    """Return the names of all strategies that can be found."""
    return _names("strategy")


def kernel_names() -> set[str]:
    """Return the names of the ``fuse`` blocks of all definitions that can be found and read."""
    definitions = [found for _, found in _definitions() if isinstance(found, LayerDefinition)]
    lines = [line for found in definitions for line, _ in found.lines]
    return {line.name for line in lines if isinstance(line, BracketText) and line.word == "fuse"}


def layer_names() -> Sequence[str]:
    """Return the names of all layers and blocks that can be found."""
    return _names("layer")


def _parse(kind: str, name: str, near: Path | None) -> Definition:
    try:
        path = find("layers", name, SUFFIX, near)
    except UnknownNameError:
        if kind == "layer" and (now := formerly(name)):
            raise SpecError(now) from None
        raise UnknownNameError(kind, name, _names(kind)) from None
    return parse_file(path)


def _names(kind: str) -> list[str]:
    """Return the names of the layers and blocks, of the blocks, or of the strategies that can be found and read."""
    wanted = {"layer": ("layer", "block"), "block": ("block",), "strategy": ("strategy",)}[kind]
    return [name for name, found in _definitions() if _kind(found) in wanted]


def _kind(definition: Definition) -> str:
    return definition.kind if isinstance(definition, LayerDefinition) else "strategy"


def _definitions() -> Iterator[tuple[str, Definition]]:
    for name in names("layers", SUFFIX):
        try:
            yield name, parse_file(find("layers", name, SUFFIX))
        except NotationError:
            continue  # a broken definition is an error where it is asked for by name
