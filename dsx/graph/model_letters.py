"""The dimensions that a layer of a model may use, so that a model file that states another one can be refused.

All lines of the layer and of its blocks count, whatever their conditions, and every strategy of the search path may
give a role its letter, since assumption sets and strategies set further options.
"""

from collections.abc import Iterable
from pathlib import Path

from dsx.errors import InputError
from dsx.graph.expressions import names
from dsx.graph.layer import PANELS
from dsx.graph.library import block_definition, load_definition, load_operators, strategy_definitions
from dsx.graph.notation import (
    FOLLOWS,
    DeclarationSyntax,
    Dim,
    DimSyntax,
    LayerDefinition,
    OperatorSyntax,
    Role,
    Settings,
    StrategyDefinition,
    UseSyntax,
)
from dsx.spec.locate import names as names_of


def letters_of(kind: str, chosen: Settings, inherited: Settings, near: Path | None = None) -> frozenset[str] | None:
    """Return the dimensions that a layer may use, `s` and `b` among them.

    `chosen` and `inherited` are settings as `build_layer` takes them; `near` is the file that mentions the layer. None
    if the dimensions cannot be known here: a definition is elsewhere or invalid, or the role of a tensor or the
    modifier of an operator is that of a strategy or a table outside of the search path.
    """
    try:
        definitions = _used(kind, chosen, inherited, near)
        strategies = strategy_definitions()
        shares = _shares()
    except InputError:  # building the layer raises it, with its place
        return None
    lines = [line for definition in definitions for line, _ in definition.lines]
    items = [item for line in lines for item in _items(line)]
    sizes = {line.letter: names(line.size) for line in lines if isinstance(line, DimSyntax)}
    own = {name for definition in definitions for name in definition.roles}
    roles = {item.name for item in items if isinstance(item, Role) and not item.letter}
    roles |= {role for definition in definitions for role in definition.roles.values()}
    given = _letters_of_roles(strategies)
    modifiers = {line.modifier for line in lines if isinstance(line, OperatorSyntax | UseSyntax)}
    if not (roles - own <= given.keys() and modifiers <= shares.keys()):
        return None
    letters = {item.letter for item in items}.union(sizes, *sizes.values())
    letters = letters.union(*(given.get(role, ()) for role in roles), *(shares[name] for name in modifiers))
    return frozenset(letters - {""})


def _used(kind: str, chosen: Settings, inherited: Settings, near: Path | None) -> list[LayerDefinition]:
    """Return the definition of a layer, and those of all blocks that it may use."""
    found = {kind: load_definition(kind, near)}
    pending = [found[kind]]
    while pending:
        definition = pending.pop()
        stated = definition.parameters | dict(chosen.blocks)
        for use in (line for line, _ in definition.lines if isinstance(line, UseSyntax)):
            blocks = {use.block} if not use.parameter else {stated.get(use.parameter, use.block)}
            blocks |= {block for name, block in inherited.blocks if name == use.parameter}
            for block in blocks - found.keys():
                found[block] = block_definition(block, use.place)
                pending.append(found[block])
    return [*found.values()]


def _items(line: object) -> list[Dim | Role]:
    """Return the dimensions of the tensors of a line."""
    tensors = (
        line.tensors
        if isinstance(line, DeclarationSyntax)
        else (*line.outputs, *line.arguments)
        if isinstance(line, OperatorSyntax)
        else ()
    )
    return [item for tensor in tensors for item in tensor.dims or ()]


def _letters_of_roles(strategies: Iterable[StrategyDefinition]) -> dict[str, set[str]]:
    """Return the letters that strategies give each role; a role that is given as another one has all of its letters."""
    letters: dict[str, set[str]] = {}
    same: list[tuple[str, str]] = []
    for strategy in strategies:
        for role, item in strategy.roles.items():
            letters.setdefault(role, set()).update({item.letter} - {""})
            same += [(role, item.name)] if isinstance(item, Role) else []
    for _ in same:
        for role, other in same:
            letters[role] |= letters.get(other, set())
    return letters


def _shares() -> dict[str, set[str]]:
    """Return the names in what each modifier of the operator tables in the search path states."""
    found: dict[str, set[str]] = {"": set(), FOLLOWS: set(), PANELS: set()}
    for kind in load_operators(names_of("operators", ".yaml")).values():
        for modifier, stated in (*kind.work.items(), *kind.groups.items()):
            found.setdefault(modifier, set()).update(*(names(part) for part in stated))
    return found
