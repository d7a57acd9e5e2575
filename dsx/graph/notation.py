"""The layer notation: text to syntax tree.

A file is a layer, a block (a layer whose distributions may be roles, ``$rs``) or a strategy (what each
role stands for, and the rules that limit it). This module knows the grammar and nothing of meaning:
`dsx.graph.build` puts blocks and strategies together and checks them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsx.errors import NotationError, did_you_mean
from dsx.graph.expressions import RELATIONS, evaluate, names
from dsx.graph.lexer import Line, Place, parse_expression

# Mesh axes that a text may divide by; the pipeline divides layers, not tensors.
AXES = ("tp", "tp2", "cp", "ep", "dp")
FOLLOWS = "*"  # the partial axes of the arguments; the modifier that a block is used with
_MOST_RULES = 150  # of a strategy, each for every combination of degrees; twelve in packaged ones
_LONGEST = 100_000  # characters of a text; the longest packaged one has 2,374
_MOST_DIMS = 60  # of a tensor; six in packaged texts. A size is a product of them, which is walked through part by part


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension divided by mesh axes, outermost first: ``s/cp/tp``."""

    letter: str
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join((self.letter, *self.axes))


@dataclass(frozen=True, slots=True)
class Role:
    """A dimension that the strategy names, ``$rs``, or another letter divided as that one is, ``$wf(v)``."""

    name: str
    place: Place
    letter: str = ""  # the letter that takes the place of the role's own


@dataclass(frozen=True, slots=True)
class TensorText:
    """A tensor as written; `dims` is None where it stands without brackets."""

    name: str
    dims: tuple[Dim | Role, ...] | None
    partial: tuple[str, ...]  # axes, or (FOLLOWS,)
    made_again: bool  # the mark ~
    place: Place


@dataclass(frozen=True, slots=True)
class OperatorText:
    """One line ``y[...], ... = op{modifier}(arg, ...)``."""

    outputs: tuple[TensorText, ...]
    kind: str
    modifier: str
    arguments: tuple[TensorText, ...]
    fuse: tuple[str, int] | None  # name of the kernel it is part of, and which one of that name
    place: Place
    again: tuple[str, int] | None = None  # the region that is made again, likewise


@dataclass(frozen=True, slots=True)
class UseText:
    """One line ``use block{modifier} (inner = outer, ...)``."""

    block: str
    bindings: dict[str, str]
    place: Place
    modifier: str = ""  # what ``{*}`` stands for inside
    again: tuple[str, int] | None = None  # the region that it is in


@dataclass(frozen=True, slots=True)
class LayerText:
    """A layer or block: definitions, inputs, weights, and its operators and uses in order."""

    name: str
    kind: str  # "layer" or "block"
    definitions: dict[str, Any]
    defined_at: dict[str, Place]
    inputs: tuple[TensorText, ...]
    weights: tuple[TensorText, ...]
    body: tuple[OperatorText | UseText, ...]
    file: str
    data: frozenset[str] = frozenset()  # inputs that come from outside the model: they have no gradient
    tied: frozenset[str] = frozenset()  # weights that another layer of the model has too


@dataclass(frozen=True, slots=True)
class Rule:
    """One line ``require left relation right reason`` of a strategy."""

    left: Any
    relation: str
    right: Any
    reason: str
    place: Place

    def holds(self, values: Mapping[str, Any]) -> Any:
        """Return where the rule holds; raises NotationError where its numbers cannot be compared."""
        try:
            return RELATIONS[self.relation](evaluate(self.left, values), evaluate(self.right, values))
        except (OverflowError, ZeroDivisionError) as error:
            given = ", ".join(f"{name}={values[name]}" for name in sorted(names(self.left) | names(self.right)))
            raise self.place.error(f"the rule cannot be checked where {given}: {error}") from None


@dataclass(frozen=True, slots=True)
class StrategyText:
    """An overlay: the dimension of each role, the rules, and the blocks that it brings in place of others."""

    name: str
    roles: dict[str, Dim]
    rules: tuple[Rule, ...]
    file: str
    blocks: dict[str, str] = field(default_factory=dict)


def parse_file(path: Path) -> LayerText | StrategyText:
    """Parse the file at `path`; raises NotationError with file, line and column."""
    try:
        with path.open(encoding="utf-8") as file:
            source = file.read(_LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise NotationError(f"cannot be read: {error}", str(path)) from None
    return parse(source, str(path))


def parse(source: str, file: str = "<text>") -> LayerText | StrategyText:
    """Parse a layer, block or strategy."""
    if len(source) > _LONGEST:
        line = 1 + source.count("\n", 0, _LONGEST)
        raise NotationError(f"the text has more than {_LONGEST:,} characters", file, line, 1)
    lines = [Line(text, file, number) for number, text in enumerate(source.splitlines(), 1)]
    lines = [line for line in lines if not line.done()]
    if not lines:
        raise NotationError("the file is empty; it starts with 'layer', 'block' or 'strategy'", file, 1, 1)
    head = lines[0].name("'layer', 'block' or 'strategy'")
    if head.text not in ("layer", "block", "strategy"):
        hint = did_you_mean(head.text, ("layer", "block", "strategy"))
        raise head.place.error(f"a file starts with 'layer', 'block' or 'strategy', not {head.text!r}{hint}")
    name = lines[0].word(f"the name of the {head.text}").text
    if head.text == "strategy":
        return _strategy(name, lines, file)
    lines[0].finish()
    return _layer(name, head.text, lines[1:], file)


def _strategy(name: str, lines: list[Line], file: str) -> StrategyText:
    roles: dict[str, Dim] = {}
    rules: list[Rule] = []
    blocks: dict[str, str] = {}
    for line in lines:
        while not line.done():
            token = line.name("'role', 'require' or 'bring'")
            if token.text == "bring":
                replaced = line.word("the name of the block that it replaces")
                line.expect("=", f" after 'bring {replaced.text}'")
                if replaced.text in blocks:
                    raise replaced.place.error(f"block {replaced.text!r} is replaced twice")
                blocks[replaced.text] = line.word("the name of a block").text
                continue
            if token.text == "require":
                rules.append(_rule(line, token.place))
                if len(rules) > _MOST_RULES:
                    raise token.place.error(f"more than {_MOST_RULES} rules in one strategy")
                continue
            if token.text == "role":
                token = line.name("the name of a role")
            line.expect("=", f" after role {token.text!r} (a strategy holds 'role' and 'require' lines)")
            if token.text in roles:
                raise token.place.error(f"role {token.text!r} is given twice")
            roles[token.text] = _dim(line)
    return StrategyText(name, roles, tuple(rules), file, blocks)


def _rule(line: Line, place: Place) -> Rule:
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


def _layer(name: str, kind: str, lines: list[Line], file: str) -> LayerText:
    definitions: dict[str, Any] = {}
    defined_at: dict[str, Place] = {}
    inputs: list[TensorText] = []
    weights: list[TensorText] = []
    marked: dict[str, set[str]] = {"data": set(), "tied": set()}
    body: list[OperatorText | UseText] = []
    fuse: tuple[str, int] | None = None
    again: tuple[str, int] | None = None
    fused = regions = 0
    for line in lines:
        first = line.peek()
        if line.accept("dim"):
            letter = line.name("a dimension")
            if letter.text in definitions:
                raise letter.place.error(f"dimension {letter.text!r} is defined twice")
            line.expect("=")
            definitions[letter.text] = parse_expression(line)
            defined_at[letter.text] = letter.place
        elif line.accept("input", "data", "weight", "tied"):
            target = inputs if first.text in ("input", "data") else weights
            declared = [_tensor(line, declares=True)]
            while not line.done():
                line.accept(",")
                declared.append(_tensor(line, declares=True))
            target += declared
            if first.text in marked:
                marked[first.text] |= {tensor.name for tensor in declared}
        elif line.accept("use"):
            if fuse:
                raise first.place.error(f"a block cannot be used inside a kernel; {fuse[0]!r} has no 'end' yet")
            body.append(replace(_use(line, first.place), again=again))
        elif line.accept("fuse"):
            if fuse:
                raise first.place.error(f"kernel {fuse[0]!r} has no 'end' yet; kernels do not nest")
            fused += 1
            fuse = (line.name("the name of the kernel").text, fused)
        elif line.accept("again"):
            if fuse:
                raise first.place.error(f"a kernel is made again as a whole; {fuse[0]!r} has no 'end' yet")
            if again:
                raise first.place.error(f"region {again[0]!r} has no 'end' yet; regions do not nest")
            regions += 1
            again = (line.name("the name of the region").text, regions)
        elif line.accept("end"):
            if not (fuse or again):
                raise first.place.error("'end' without a 'fuse' or an 'again'")
            fuse, again = None, again if fuse else None
        else:
            body.append(replace(_operator(line, fuse), again=again))
        line.finish()
    if fuse:
        raise NotationError(f"kernel {fuse[0]!r} has no 'end'", file, lines[-1].number, 1)
    if again:
        raise NotationError(f"region {again[0]!r} has no 'end'", file, lines[-1].number, 1)
    if not body:
        raise NotationError(f"{kind} {name!r} has no operators", file, 1, 1)
    return LayerText(
        name,
        kind,
        definitions,
        defined_at,
        tuple(inputs),
        tuple(weights),
        tuple(body),
        file,
        frozenset(marked["data"]),
        frozenset(marked["tied"]),
    )


def _use(line: Line, place: Place) -> UseText:
    block = line.word("the name of a block").text
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
    return UseText(block, bindings, place, modifier)


def _operator(line: Line, fuse: tuple[str, int] | None) -> OperatorText:
    place = line.peek().place
    outputs = [_tensor(line, declares=True)]
    while line.accept(","):
        outputs.append(_tensor(line, declares=True))
    line.expect("=")
    kind = line.name("an operator").text
    modifier = _modifier(line)
    line.expect("(")
    arguments = [_tensor(line)]
    while line.accept(","):
        arguments.append(_tensor(line))
    line.expect(")")
    return OperatorText(tuple(outputs), kind, modifier, tuple(arguments), fuse, place)


def _modifier(line: Line) -> str:
    if not line.accept("{"):
        return ""
    modifier = FOLLOWS if line.accept(FOLLOWS) else line.name("a modifier").text
    line.expect("}")
    return modifier


def _tensor(line: Line, declares: bool = False) -> TensorText:
    token = line.name("a tensor")
    if line.peek().text != "[":
        if declares:
            raise token.place.error(f"{token.text!r} needs its dimensions here: {token.text}[...]")
        return TensorText(token.text, None, (), line.accept("~") is not None, token.place)
    line.expect("[")
    dims: list[Dim | Role] = []
    partial: tuple[str, ...] = ()
    if line.peek().text != "@":
        dims.append(_item(line))
        while line.accept(","):
            dims.append(_item(line))
    if len(dims) > _MOST_DIMS:
        raise token.place.error(f"{token.text!r} has {len(dims)} dimensions; a tensor has at most {_MOST_DIMS}")
    while line.accept("@"):
        partial += (FOLLOWS,) if line.accept("*") else (_axis(line),)
    line.expect("]", "" if not partial else ": partial axes stand at the end")
    again = line.accept("~")
    if again and declares:
        raise again.place.error("'~' belongs to an argument: it says that its copy is made again for the backward")
    return TensorText(token.text, tuple(dims), partial, again is not None, token.place)


def _item(line: Line) -> Dim | Role:
    if sign := line.accept("$"):
        role = line.name("the name of a role").text
        letter = ""
        if line.accept("("):
            letter = line.name("a dimension").text
            line.expect(")")
        return Role(role, sign.place, letter)
    return _dim(line)


def _dim(line: Line) -> Dim:
    letter = line.name("a dimension")
    axes: list[str] = []
    while line.accept("/"):
        axes.append(_axis(line))
    if len(set(axes)) < len(axes):
        raise letter.place.error(f"{letter.text!r} is divided twice by the same axis")
    return Dim(letter.text, tuple(axes))


def _axis(line: Line) -> str:
    token = line.name("a mesh axis")
    if token.text not in AXES:
        hint = did_you_mean(token.text, AXES)
        raise token.place.error(f"{token.text!r} is no mesh axis{hint} (axes: {', '.join(AXES)})")
    return token.text
