"""The parser of the layer notation: from a file to the syntax nodes of `dsx.notation.syntax`."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dsx.errors import NotationError, did_you_mean
from dsx.notation.expressions import RELATIONS
from dsx.notation.syntax import (
    AXES,
    FOLLOWS,
    BracketSyntax,
    Condition,
    DeclarationSyntax,
    Definition,
    Dim,
    DimSyntax,
    LayerDefinition,
    LineReader,
    OperatorSyntax,
    Place,
    Role,
    Rule,
    Settings,
    StrategyDefinition,
    TensorSyntax,
    UseSyntax,
    parse_expression,
)
from dsx.notation.syntax import REGIONS_BY_NAME as REGIONS_BY_NAME
from dsx.notation.syntax import Line as Statement

T = TypeVar("T")
_WORDS = ("layer", "block", "strategy")
_CONDITIONS = ("when", "unless")
_MOST_RULES = 150  # of a strategy, each checked for every combination of degrees; packaged: twelve
_MOST_OPTIONS = 100  # of a definition; packaged: seven
_LONGEST = 100_000  # characters of a definition; packaged: 5,000
_MOST_DIMS = 60  # of a tensor, whose size is a product of them; packaged: six


def parse_file(path: Path) -> Definition:
    """Parse the file at `path`; raises NotationError with file, line and column."""
    try:
        with path.open(encoding="utf-8") as file:
            source = file.read(_LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise NotationError(f"cannot be read: {error}", str(path)) from None
    return parse(source, str(path))


@functools.lru_cache(maxsize=500)
def parse(source: str, file: str = "<definition>") -> Definition:
    """Parse a layer, block or strategy. A definition that is used many times is parsed once."""
    if len(source) > _LONGEST:
        line = 1 + source.count("\n", 0, _LONGEST)
        raise NotationError(f"the definition has more than {_LONGEST:,} characters", file, line, 1)
    lines = [LineReader(text, file, number) for number, text in enumerate(source.splitlines(), 1)]
    lines = [line for line in lines if not line.done()]
    if not lines:
        raise NotationError("the file is empty; it starts with 'layer', 'block' or 'strategy'", file, 1, 1)
    head = lines[0].name("'layer', 'block' or 'strategy'")
    if head.text not in _WORDS:
        hint = did_you_mean(head.text, _WORDS)
        raise head.place.error(f"a file starts with 'layer', 'block' or 'strategy', not {head.text!r}{hint}")
    name = lines[0].word(f"the name of the {head.text}").text
    if head.text == "strategy":
        return _strategy(name, lines, file)
    lines[0].finish()
    return _layer(name, head.text, lines[1:], file)


def _strategy(name: str, lines: list[LineReader], file: str) -> StrategyDefinition:
    extends: tuple[str, Place] | None = None
    if token := lines[0].accept("extends"):
        extends = lines[0].word("the name of the strategy that it extends").text, token.place
    roles: dict[str, Dim | Role] = {}
    rules: list[Rule] = []
    dropped: dict[str, Place] = {}
    settings = Settings()
    named: set[str] = set()  # options and block parameters
    for line in lines:
        while not line.done():
            token = line.name("'role', 'require', 'set' or 'drop'")
            if token.text == "bring":
                raise token.place.error(
                    "'bring' is no longer part of the notation: a strategy sets an option of the blocks, as in "
                    "'set ring', or a block parameter, as in 'set core = my-core'"
                )
            if token.text == "require":
                rules.append(_rule(line, token.place))
                if len(rules) > _MOST_RULES:
                    raise token.place.error(f"one strategy has more than {_MOST_RULES} rules")
                continue
            if token.text == "drop":
                reason = line.word("the reason of the rules to drop")
                dropped[reason.text] = reason.place
                continue
            if token.text == "set":
                option = line.name("the name of an option or a block parameter")
                if option.text in named:
                    raise option.place.error(f"{option.text!r} is set twice")
                named.add(option.text)
                if line.accept("="):
                    settings |= Settings(blocks=((option.text, line.word("the name of a block").text),))
                else:
                    settings |= Settings(frozenset({option.text}))
                continue
            if token.text == "role":
                token = line.name("the name of a role")
            line.expect("=", f" after role {token.text!r} (a strategy holds 'role', 'require', 'set' and 'drop' lines)")
            if token.text in roles:
                raise token.place.error(f"role {token.text!r} is given twice")
            roles[token.text] = _item(line)
    if dropped and extends is None:
        raise next(iter(dropped.values())).error("only a strategy that extends another drops rules")
    return StrategyDefinition(name, file, extends, roles, tuple(rules), dropped, settings)


def _rule(line: LineReader, place: Place) -> Rule:
    left = parse_expression(line)
    relation = line.take()
    if relation.text not in RELATIONS:
        raise relation.place.error(f"expected one of {' '.join(RELATIONS)}, found {relation.text!r}")
    right = parse_expression(line)
    end = line.peek().place
    reason = re.sub(r"[^a-z0-9]+", "_", line.rest().lower()).strip("_")
    if not reason:
        raise end.error("a rule ends with the name of its reason")
    return Rule(left, relation.text, right, reason, place)


def _layer(name: str, kind: str, lines: list[LineReader], file: str) -> LayerDefinition:
    options: dict[str, Place] = {}
    exclusive: dict[str, tuple[str, ...]] = {}
    parameters: dict[str, str] = {}
    roles: dict[str, str] = {}
    statements: list[tuple[Statement, Condition]] = []
    for line in lines:
        if line.accept("option"):
            _options(line, options, exclusive)
        elif line.accept("block"):
            parameter = line.name("the name of a block parameter")
            line.expect("=", f" and a block after 'block {parameter.text}'")
            if parameter.text in parameters:
                raise parameter.place.error(f"block parameter {parameter.text!r} is declared twice")
            parameters[parameter.text] = line.word("the name of a block").text
        elif line.accept("role"):
            role = line.name("the name of a role")
            line.expect("=", f" after 'role {role.text}'")
            line.expect("$", ": the default of a role in a block is another role, as in $is")
            if role.text in roles:
                raise role.place.error(f"role {role.text!r} is given twice")
            roles[role.text] = line.name("the name of a role").text
        else:
            statements.append((_statement(line), _condition(line, options)))
        line.finish()
    for parameter in parameters:
        if parameter in options:
            raise options[parameter].error(f"{parameter!r} is both an option and a block parameter")
    if not any(isinstance(line, OperatorSyntax | UseSyntax) for line, _ in statements):
        raise NotationError(f"{kind} {name!r} has no operators", file, 1, 1)
    for line, _ in statements:
        if isinstance(line, UseSyntax) and line.parameter and line.parameter not in parameters:
            hint = did_you_mean(line.parameter, parameters)
            raise line.place.error(f"no line 'block {line.parameter} = ...' declares this block parameter{hint}")
    return LayerDefinition(name, kind, file, options, exclusive, parameters, tuple(statements), roles)


def _options(line: LineReader, options: dict[str, Place], exclusive: dict[str, tuple[str, ...]]) -> None:
    """Read ``option A B``, or ``option decision = A | B``, where at most one may be set."""
    declared = [line.name("the name of an option")]
    if line.accept("="):
        (decision,) = declared
        declared = _separated(line, "|", lambda line: line.name("the name of an option"))
        if decision.text in exclusive:
            raise decision.place.error(f"the options of {decision.text!r} are declared twice")
        exclusive[decision.text] = tuple(token.text for token in declared)
    while not line.done():
        declared.append(line.name("the name of an option"))
    for token in declared:
        if token.text in options:
            raise token.place.error(f"option {token.text!r} is declared twice")
        if token.text in _CONDITIONS:
            raise token.place.error(f"an option cannot be called {token.text!r}, which begins a condition")
        options[token.text] = token.place
    if len(options) > _MOST_OPTIONS:
        raise declared[-1].place.error(f"one definition has more than {_MOST_OPTIONS} options")


def _condition(line: LineReader, options: dict[str, Place]) -> Condition:
    options_of: dict[str, list[str]] = {word: [] for word in _CONDITIONS}
    while word := line.accept(*_CONDITIONS):
        tokens = [line.name("the name of an option")]
        while not _at_end(line):
            tokens.append(line.name("the name of an option"))
        for token in tokens:
            if token.text not in options:
                declared = f"{did_you_mean(token.text, options)} ({', '.join(options) or 'there is none'})"
                raise token.place.error(f"no 'option' line above declares {token.text!r}{declared}")
        options_of[word.text] += [token.text for token in tokens]
    return Condition(tuple(options_of["when"]), tuple(options_of["unless"]))


def _separated(line: LineReader, separator: str, read: Callable[[LineReader], T]) -> list[T]:
    """Read one or more entries with a separator between them."""
    entries = [read(line)]
    while line.accept(separator):
        entries.append(read(line))
    return entries


def _at_end(line: LineReader) -> bool:
    """Return whether the cursor is at the end of the line or in front of a condition."""
    return line.done() or line.peek().text in _CONDITIONS


def _statement(line: LineReader) -> Statement:
    first = line.peek()
    if line.accept("dim"):
        letter = line.name("a dimension")
        line.expect("=")
        return DimSyntax(letter.text, parse_expression(line), letter.place)
    if line.accept("input", "data", "weight", "tied"):
        declared = [_tensor(line, declares=True)]
        while not _at_end(line):
            line.accept(",")
            declared.append(_tensor(line, declares=True))
        return DeclarationSyntax(first.text, tuple(declared))
    if line.accept("use"):
        kind = "layer" if line.accept("layer") else "block"
        parameter = line.name("a block parameter").text if line.accept("$") else ""
        block = "" if parameter else line.word(f"the name of a {kind}").text
        modifier = _modifier(line)
        bindings: dict[str, str] = {}
        if line.accept("("):
            while not line.accept(")"):
                token = line.name("a name inside the block")
                if token.text in bindings:
                    raise token.place.error(f"{token.text!r} is bound twice")
                line.expect("=")
                bindings[token.text] = line.name("a name outside the block").text
                line.accept(",")
        return UseSyntax(block, bindings, first.place, modifier, parameter, kind)
    if line.accept("fuse"):
        return BracketSyntax("fuse", line.name("the name of the kernel").text, first.place)
    if line.accept("recompute"):
        name = line.word("the name of the region")
        if name.text not in REGIONS_BY_NAME:
            hint = f"{did_you_mean(name.text, REGIONS_BY_NAME)} (known: {', '.join(REGIONS_BY_NAME)})"
            raise name.place.error(f"{name.text!r} is not a region that can be recomputed{hint}")
        return BracketSyntax("recompute", name.text, first.place)
    if line.accept("again"):
        raise first.place.error(
            "'again' is no longer part of the notation: a region that can be recomputed is written "
            "'recompute NAME ... end'"
        )
    if line.accept("end"):
        return BracketSyntax("end", "", first.place)
    return _operator(line)


def _operator(line: LineReader) -> OperatorSyntax:
    place = line.peek().place
    outputs = _separated(line, ",", lambda line: _tensor(line, declares=True))
    line.expect("=")
    kind = line.name("an operator").text
    modifier = _modifier(line)
    line.expect("(")
    arguments = _separated(line, ",", _tensor)
    line.expect(")")
    return OperatorSyntax(tuple(outputs), kind, modifier, tuple(arguments), None, place)


def _modifier(line: LineReader) -> str:
    if not line.accept("{"):
        return ""
    modifier = FOLLOWS if line.accept(FOLLOWS) else line.name("a modifier").text
    line.expect("}")
    return modifier


def _tensor(line: LineReader, declares: bool = False) -> TensorSyntax:
    token = line.name("a tensor")
    if line.peek().text != "[":
        if declares:
            raise token.place.error(f"a line that makes {token.text!r} states its dimensions: {token.text}[...]")
        return TensorSyntax(token.text, None, (), line.accept("~") is not None, token.place)
    line.expect("[")
    dims = [] if line.peek().text == "@" else _separated(line, ",", _item)
    partial: tuple[str, ...] = ()
    if len(dims) > _MOST_DIMS:
        raise token.place.error(f"{token.text!r} has {len(dims)} dimensions; a tensor has at most {_MOST_DIMS}")
    while line.accept("@"):
        partial += (FOLLOWS,) if line.accept("*") else (_axis(line),)
    line.expect("]", "" if not partial else ": partial axes stand at the end")
    regathered = line.accept("~")
    if regathered and declares:
        raise regathered.place.error("'~' belongs to an argument: the backward redistributes it once more")
    return TensorSyntax(token.text, tuple(dims), partial, regathered is not None, token.place)


def _item(line: LineReader) -> Dim | Role:
    if sign := line.accept("$"):
        role = line.name("the name of a role").text
        letter = ""
        if line.accept("("):
            letter = line.name("a dimension").text
            line.expect(")")
        return Role(role, sign.place, letter)
    letter = line.name("a dimension")
    axes: list[str] = []
    while line.accept("/"):
        axes.append(_axis(line))
    if len(set(axes)) < len(axes):
        raise letter.place.error(f"{letter.text!r} is divided twice by the same axis")
    return Dim(letter.text, tuple(axes))


def _axis(line: LineReader) -> str:
    token = line.name("a mesh axis")
    if token.text not in AXES:
        hint = did_you_mean(token.text, AXES)
        raise token.place.error(f"{token.text!r} is not a mesh axis{hint} (axes: {', '.join(AXES)})")
    return token.text
