"""Resolves `extends`: a strategy with what it inherits.

A role replaces the inherited role of the same name. Rules replace the inherited rules of the same reason, in the place
of the first one; rules of new reasons come last. `drop` removes the rules of a reason. Settings add up.
"""

from collections.abc import Callable

from dsx.errors import did_you_mean
from dsx.graph.lexer import Place
from dsx.graph.notation import Dim, Role, Rule, Settings, Strategy, StrategyDefinition

_MOST_FILES = 30  # that extend each other; packaged: three

Find = Callable[[str, Place], StrategyDefinition]


def resolved(definition: StrategyDefinition, find: Find) -> Strategy:
    """Return a strategy with what it inherits; `find` returns the definition of an extended strategy.

    Raises NotationError with file, line and column.
    """
    chain = [definition]
    while chain[-1].extends is not None:
        name, place = chain[-1].extends
        base = find(name, place)
        if any(base.file == each.file and base.name == each.name for each in chain):
            cycle = " extends ".join(each.name for each in (*chain, base))
            raise place.error(f"a strategy cannot extend itself: {cycle}")
        chain.append(base)
        if len(chain) > _MOST_FILES:
            raise place.error(f"{definition.name!r} extends a chain of more than {_MOST_FILES} strategies")
    roles: dict[str, Dim | Role] = {}
    rules: list[Rule] = []
    settings = Settings()
    for each in reversed(chain):
        roles |= each.roles
        rules = _with_rules_of(each, rules)
        settings |= each.settings
    given = {name: _dim(name, roles, definition) for name in roles}
    return Strategy(definition.name, given, tuple(rules), definition.file, settings)


def _with_rules_of(definition: StrategyDefinition, inherited: list[Rule]) -> list[Rule]:
    """Return the rules of a strategy that inherits some."""
    reasons = [rule.reason for rule in inherited]
    for reason, place in definition.dropped.items():
        if reason not in reasons:
            raise place.error(f"no inherited rule has the reason {reason!r}{did_you_mean(reason, reasons)}")
    own = [rule.reason for rule in definition.rules]
    rules: list[Rule] = []
    for position, rule in enumerate(inherited):
        if rule.reason in definition.dropped:
            continue
        if rule.reason not in own:
            rules.append(rule)
        elif rule.reason not in reasons[:position]:
            rules += [one for one in definition.rules if one.reason == rule.reason]
    there = {rule.reason for rule in rules}
    return rules + [rule for rule in definition.rules if rule.reason not in there]


def _dim(name: str, roles: dict[str, Dim | Role], definition: StrategyDefinition) -> Dim:
    """Return the dimension of a role; the strategy may give it as another role."""
    seen = [name]
    given = roles[name]
    letter = ""
    while isinstance(given, Role):
        letter = letter or given.letter
        if given.name not in roles:
            raise given.place.error(
                f"strategy {definition.name!r} gives no role {given.name!r}{did_you_mean(given.name, roles)}"
            )
        if given.name in seen:
            raise given.place.error(f"role {given.name!r} is given through itself: {' -> '.join([*seen, given.name])}")
        seen.append(given.name)
        given = roles[given.name]
    return Dim(letter or given.letter, given.axes)
