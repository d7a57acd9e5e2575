"""Finds layers, strategies and operator tables by name or path, and builds layers from them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dsx.config.documents import load_document
from dsx.config.search_path import find, names, packaged_data
from dsx.errors import InputError, NotationError, SpecError, UnknownNameError, did_you_mean
from dsx.notation.build import MOST_BLOCKS, NOTHING_SET, block_of, build_layer
from dsx.notation.operators import OperatorKind, load_tables
from dsx.notation.parse import parse_file
from dsx.notation.selection import check_known, resolved, selected
from dsx.notation.sharded_layer import Layer
from dsx.notation.syntax import (
    BracketSyntax,
    Definition,
    LayerDefinition,
    Place,
    Role,
    Settings,
    Strategy,
    StrategyDefinition,
    UseSyntax,
    tensors_of,
)

SUFFIX = ".layer"


def written_now(name: str) -> str:
    """Return a message for a name that a layer or block had before definitions had options; "" for any other name."""
    written = load_document(packaged_data() / "layers" / "former-names.yaml").data.get(name)
    return f"{name!r} is now written {written}" if isinstance(written, str) else ""


def load_operators(table_names: Iterable[str], near: Path | None = None) -> dict[str, OperatorKind]:
    """Return the operators of the named tables; an operator of a later table replaces that of an earlier one."""
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

    `chosen` and `inherited` are settings as `build_layer` takes them; `near` is the file that mentions the names.
    Raises InputError.
    """
    overlay = load_strategy(strategy, near) if strategy else None
    return build_layer(load_definition(name, near), overlay, table, block_definition, chosen, inherited)


def load_definition(name: str, near: Path | None = None) -> LayerDefinition:
    """Return the definition of the layer or block of that name, or at that path; raises InputError."""
    definition = _parse("layer", name, near)
    if isinstance(definition, StrategyDefinition):
        raise NotationError(f"{name!r} is a strategy, not a layer or block", definition.file, 1, 1)
    return definition


def block_definition(block: str, place: Place) -> LayerDefinition:
    """Return the definition of the block, or layer, that a line uses by that name or path; raises InputError."""
    try:
        definition = parse_file(find("layers", block, SUFFIX, Path(place.file)))
    except UnknownNameError:
        if now := written_now(block):
            raise place.error(now) from None
        in_folder = [file.stem for file in Path(place.file).parent.glob(f"*{SUFFIX}")]
        raise UnknownNameError("block", block, {*_names("block"), *in_folder}) from None
    if not isinstance(definition, LayerDefinition):
        raise place.error(f"{block!r} is not a block")
    return definition


def fault_of_settings(name: str, chosen: Settings, near: Path | None = None) -> str:
    """Return what is wrong with the settings chosen for a layer under any strategy; "" if nothing is.

    A layer without a definition is no fault here: an assumption set may map its kind to another definition.
    """
    definition: LayerDefinition | None = None
    try:
        definition = load_definition(name, near)
        used, pending = [definition], [definition]
        while pending and len(used) <= MOST_BLOCKS:
            lines = selected(pending.pop(), chosen).body
            blocks = [block_of(line, block_definition) for line in lines if isinstance(line, UseSyntax)]
            used += blocks
            pending += blocks
        check_known(chosen, used)
    except UnknownNameError as error:
        return "" if definition is None else str(error)
    except InputError as error:
        return str(error)
    return ""


def needs_strategy(name: str, near: Path | None = None, chosen: Settings = NOTHING_SET) -> bool:
    """Return whether the layer called `name`, or a block that it may use with the `chosen` settings, has roles."""
    seen: set[str] = set()
    blocks = dict(chosen.blocks)
    pending = [(name, near)]
    while pending:
        definition = _parse("layer", *pending.pop())
        if isinstance(definition, StrategyDefinition) or definition.file in seen:
            continue
        if len(seen) > MOST_BLOCKS:  # building the layer raises the error
            return False
        seen.add(definition.file)
        for line, _ in definition.lines:
            if isinstance(line, UseSyntax):
                used = blocks.get(line.parameter, definition.parameters.get(line.parameter, line.block))
                pending.append((used, Path(definition.file)))
            elif any(isinstance(item, Role) for tensor in tensors_of(line) for item in tensor.dims or ()):
                return True
    return False


def load_strategy(name: str, near: Path | None = None) -> Strategy:
    """Return the strategy called `name`, or at that path, with what it inherits; raises InputError."""
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
    """Raise SpecError where a setting for all layers looks like a misspelt option or block parameter.

    A setting that resembles none is no fault: a user's own layer, in any folder, may declare it.
    """
    if settings == NOTHING_SET:
        return
    definitions = _layers()
    options = {name for definition in definitions for name in definition.options}
    parameters = {name for definition in definitions for name in definition.parameters}
    of_kind = [("option", name, options, parameters) for name in sorted(settings.options)]
    of_kind += [("block parameter", name, parameters, options) for name, _ in settings.blocks]
    for kind, name, declared, names_of_other_kind in of_kind:
        if name in names_of_other_kind - declared:
            other = "is a block parameter: it names a block" if kind == "option" else "is an option: it is set to true"
            raise SpecError(f"{owner} sets {name!r}, which {other}")
        if name not in declared and (nearest := did_you_mean(name, declared)):
            raise SpecError(f"{owner} sets {name!r}, which is no {kind} of any layer{nearest}")


def check_strategy(name: str, near: Path | None, place: str) -> None:
    """Raise SpecError, with the `place` that names it, if there is no strategy of that name or at that path."""
    try:
        find("layers", name, SUFFIX, near)
    except UnknownNameError:
        raise SpecError(f"{place}: {UnknownNameError('strategy', name, _names('strategy'))}") from None
    except InputError as error:
        raise SpecError(f"{place}: {error}") from None


def strategy_definitions() -> list[StrategyDefinition]:
    """Return the definitions of all valid strategies in the search path."""
    return [definition for _, definition in _definitions() if isinstance(definition, StrategyDefinition)]


def _layers() -> list[LayerDefinition]:
    return [definition for _, definition in _definitions() if isinstance(definition, LayerDefinition)]


def strategy_names() -> Sequence[str]:
    """Return the names of all strategies in the search path."""
    return _names("strategy")


def kernel_names() -> set[str]:
    """Return the names of the ``fuse`` kernels of all valid definitions in the search path."""
    lines = [line for definition in _layers() for line, _ in definition.lines]
    return {line.name for line in lines if isinstance(line, BracketSyntax) and line.word == "fuse"}


def layer_names() -> Sequence[str]:
    """Return the names of all layers and blocks in the search path."""
    return _names("layer")


def _parse(kind: str, name: str, near: Path | None) -> Definition:
    try:
        path = find("layers", name, SUFFIX, near)
    except UnknownNameError:
        if kind == "layer" and (now := written_now(name)):
            raise SpecError(now) from None
        raise UnknownNameError(kind, name, _names(kind)) from None
    return parse_file(path)


def _names(kind: str) -> list[str]:
    """Return the names of the valid definitions of a kind: "layer" (with blocks), "block" or "strategy"."""
    kinds = ("layer", "block") if kind == "layer" else (kind,)
    return [name for name, definition in _definitions() if definition.kind in kinds]


def _definitions() -> Iterator[tuple[str, Definition]]:
    for name in names("layers", SUFFIX):
        try:
            yield name, parse_file(find("layers", name, SUFFIX))
        except NotationError:
            continue  # a faulty definition is an error where somebody asks for it by name
