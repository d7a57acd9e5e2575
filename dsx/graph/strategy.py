"""A strategy put together from what it says and what the one that it extends says.

Roles replace roles; rules replace those that have the same reason, where the first of them stood, and others are added
behind; `drop` leaves the rules of a reason out; what is set adds up.
"""

from collections.abc import Callable

from dsx.errors import did_you_mean
from dsx.graph.lexer import Place
from dsx.graph.notation import Dim, Role, Rule, Settings, StrategyDefinition, StrategyText

_MOST_FILES = 30  # that extend each other; three in packaged ones

Find = Callable[[str, Place], StrategyDefinition]


def resolved(definition: StrategyDefinition, find: Find) -> StrategyText:
    """Return a strategy with what it inherits; `find` gives the definition of a strategy that another one extends.

    Raises NotationError with file, line and column.
    """
    chain = [definition]
    while chain[-1].extends is not None:
        name, place = chain[-1].extends
        base = find(name, place)
        if any(base.file == each.file and base.name == each.name for each in chain):
            circle = " extends ".join(each.name for each in (*chain, base))
            raise place.error(f"a strategy cannot extend itself: {circle}")
        chain.append(base)
        if len(chain) > _MOST_FILES:
            raise place.error(f"{definition.name!r} is made of more than {_MOST_FILES} strategies")
    roles: dict[str, Dim | Role] = {}
    rules: list[Rule] = []
    settings = Settings()
    for each in reversed(chain):
        roles |= each.roles
        rules = _ruled(rules, each)
        settings |= each.settings
    given = {name: _dim(name, roles, definition) for name in roles}
    return StrategyText(definition.name, given, tuple(rules), definition.file, settings)


def _ruled(inherited: list[Rule], definition: StrategyDefinition) -> list[Rule]:
    """Return the rules of a strategy that extends one with the rules `inherited`."""
    reasons = [rule.reason for rule in inherited]
    for reason, place in definition.dropped.items():
        if reason not in reasons:
            raise place.error(f"no rule with the reason {reason!r} is inherited{did_you_mean(reason, reasons)}")
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
    """Return the dimension of a role, which may be given as another role."""
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
