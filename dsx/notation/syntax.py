"""The layer notation as tokens and syntax nodes: the parts of a layer, a block and a strategy.

A file defines a layer, a block (a layer whose distributions may be roles, ``$rs``) or a strategy (the dimension of each
role, and rules that limit the plans). Some lines of a layer count only under some options. `dsx.notation.parse` reads a
file, `dsx.notation.selection` selects the lines that count under given options, and `dsx.notation.build` combines
blocks and strategies and checks them.

``recompute NAME`` begins a region that recomputation can select. The names of Megatron-LM, and what each region keeps,
are those of its ``--recompute-modules`` (megatron/core/transformer/transformer_config.py, `recompute_modules`). Its
attention, feed-forward and expert regions are checkpoints, which keep their inputs. The others discard their outputs
too ("output-discarding checkpointing"): whoever reads such an output in the backward gets the recomputed one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dsx.errors import NotationError
from dsx.notation.expressions import RELATIONS, Expression, Name, Operation, V, evaluate, names

_TOKEN = re.compile(
    r"(?P<space>[ \t]+)|(?P<comment>#.*)|(?P<word>[0-9]+[A-Za-z_][A-Za-z0-9_]*)|(?P<int>[0-9]+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign><=|>=|==|!=|[\[\](){},/@*~=+\-%<>$|])"
)
# More parts would exhaust the stack of recursive functions over expressions; no size needs as many parts or digits.
_MOST_PARTS, _MOST_DIGITS = 100, 18
_LONGEST_LINE, _LONGEST_NAME = 20_000, 300  # characters; packaged definitions have up to 132 and 29
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a definition: line and column count from 1."""

    file: str
    line: int
    column: int

    def error(self, message: str) -> NotationError:
        """Return the error that says `message` with this place in front."""
        return NotationError(message, self.file, self.line, self.column)


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `kind` is "int", "name", "word" (a name that begins with digits), "sign" or "end"."""

    kind: str
    text: str
    place: Place


class LineReader:
    """A cursor over the tokens of one line."""

    def __init__(self, source: str, file: str, number: int) -> None:
        self.source, self.file, self.number = source, file, number
        self.parts = 0  # numbers and names of expressions, so far
        self._position = 0
        if len(source) > _LONGEST_LINE:
            raise Place(file, number, _LONGEST_LINE + 1).error(f"the line has more than {_LONGEST_LINE:,} characters")
        self._next = self._scan()

    def _scan(self) -> Token:
        while self._position < len(self.source):
            match = _TOKEN.match(self.source, self._position)
            place = Place(self.file, self.number, self._position + 1)
            if match is None:
                raise place.error(f"unexpected character {self.source[self._position]!r}")
            self._position = match.end()
            kind = match.lastgroup or ""
            if kind in ("name", "word") and len(match.group()) > _LONGEST_NAME:
                raise place.error(f"the name has more than {_LONGEST_NAME} characters")
            if kind not in ("space", "comment"):
                return Token(kind, match.group(), place)
        return Token("end", "end of line", Place(self.file, self.number, len(self.source) + 1))

    def peek(self) -> Token:
        """Return the next token and stay in front of it."""
        return self._next

    def take(self) -> Token:
        """Return the next token and advance."""
        token, self._next = self._next, self._scan()
        return token

    def accept(self, *texts: str) -> Token | None:
        """Take the next token if its text is one of `texts`."""
        return self.take() if self._next.kind in ("sign", "name") and self._next.text in texts else None

    def expect(self, text: str, why: str = "") -> Token:
        """Take the token `text` or raise."""
        token = self.take()
        if token.text != text:
            raise token.place.error(f"expected {text!r}{why}, found {token.text!r}")
        return token

    def name(self, what: str) -> Token:
        """Take a name; raise an error that expected `what` at any other token."""
        token = self.take()
        if token.kind != "name":
            raise token.place.error(f"expected {what}, found {token.text!r}")
        return token

    def word(self, what: str) -> Token:
        """Take the name of a definition or block, which may hold digits, dots and dashes: ``2d``, ``feed-forward``."""
        start = self._next.place.column - 1
        match = _WORD.match(self.source, start)
        if match is None or self._next.kind == "end":
            raise self._next.place.error(f"expected {what}, found {self._next.text!r}")
        place = self._next.place
        self._position = match.end()
        self._next = self._scan()
        return Token("name", match.group(), place)

    def rest(self) -> str:
        """Take the rest of the line without its comment."""
        start = self._next.place.column - 1
        self._position = len(self.source)
        self._next = self._scan()
        return self.source[start:].split("#")[0].strip()

    def done(self) -> bool:
        """Return whether no token is left."""
        return self._next.kind == "end"

    def finish(self) -> None:
        """Raise if a token is left."""
        if not self.done():
            raise self._next.place.error(f"unexpected {self._next.text!r}")


Functions = Mapping[str, Callable[[str], Expression]]  # by the name that an expression calls


def parse_expression(line: LineReader, functions: Functions | None = None) -> Expression:
    """Parse an expression of the grammar; `functions` adds functions by name.

    Each of them takes the name of its single argument and returns an expression, or raises KeyError.
    """
    result = _term(line, functions or {})
    while sign := line.accept("+", "-"):
        result = Operation(sign.text, result, _term(line, functions or {}))
    return result


def _term(line: LineReader, functions: Functions) -> Expression:
    result = _factor(line, functions)
    while sign := line.accept("*", "/", "%"):
        right = _factor(line, functions)
        if right == 0 and sign.text != "*":
            raise sign.place.error(f"'{sign.text} 0' divides by zero")
        result = Operation(sign.text, result, right)
    return result


def _factor(line: LineReader, functions: Functions) -> Expression:
    token = line.take()
    line.parts += 1
    if line.parts > _MOST_PARTS:
        raise token.place.error(f"the expressions of the line have more than {_MOST_PARTS} numbers and names")
    if token.kind == "int":
        if len(token.text) > _MOST_DIGITS:
            raise token.place.error(f"the number has more than {_MOST_DIGITS} digits")
        return int(token.text)
    if token.text == "(":
        inner = parse_expression(line, functions)
        line.expect(")")
        return inner
    if token.text in ("min", "max") and line.accept("("):
        left = parse_expression(line, functions)
        line.expect(",", f": {token.text} takes two values")
        right = parse_expression(line, functions)
        line.expect(")")
        return Operation(token.text, left, right)
    if token.text in functions and line.accept("("):
        argument = line.name("an argument of the operator")
        line.expect(")")
        try:
            return functions[token.text](argument.text)
        except KeyError:
            raise argument.place.error(f"{token.text}({argument.text}): no such argument or result") from None
    if token.kind == "name":
        return Name(token.text)
    raise token.place.error(f"expected a number or a name, found {token.text!r}")


# The regions that a kernel is in, outermost first: the name of each, and its number in the layer.
RegionPath = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a layer that is recomputed as a whole."""

    name: str
    megatron_lm: str  # its word in --recompute-modules
    description: str
    discards_output: bool = False
    within: str = ""  # a region that has it as a part


CORE_ATTENTION = "core-attention"
REGIONS: tuple[Region, ...] = (
    Region(CORE_ATTENTION, "core_attn", "scores, softmax and weighted sum, where they are not one fused kernel"),
    Region("norms", "layernorm", "the norms before attention and before the feed-forward network", True),
    Region(
        "latent-up-projection",
        "mla_up_proj",
        "latent attention: norms and up-projections of the latent vectors, and rotary positions",
        True,
    ),
    Region("expert-activation", "moe_act", "the activation between the two multiplies of the experts", True, "experts"),
    Region("shared-experts", "shared_experts", "the experts that all tokens pass", within="experts"),
    Region("feed-forward", "mlp", "the feed-forward network of a layer without experts"),
    Region("experts", "moe", "router, dispatch, experts, shared experts and combination"),
)
REGIONS_BY_NAME = {region.name: region for region in REGIONS}


def outermost(path: RegionPath, chosen: frozenset[str]) -> tuple[str, int] | None:
    """Return the region of a path that is recomputed if `chosen` are: the outermost of them includes the others."""
    return next((region for region in path if region[0] in chosen), None)


# Mesh axes that may divide a dimension; the pipeline divides layers, not tensors.
AXES = ("tp", "tp2", "cp", "ep", "dp")
FOLLOWS = "*"  # in ``@*`` the partial axes that follow from the arguments; in ``{*}`` the modifier of the block's use


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension divided by mesh axes, outermost first: ``s/cp/tp``."""

    letter: str
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join((self.letter, *self.axes))


@dataclass(frozen=True, slots=True)
class Role:
    """A dimension that the strategy gives, ``$rs``, or another letter divided like that dimension, ``$wf(v)``."""

    name: str
    place: Place
    letter: str = ""  # replaces the letter of the role; "" keeps it


@dataclass(frozen=True, slots=True)
class TensorSyntax:
    """A tensor as written."""

    name: str
    dims: tuple[Dim | Role, ...] | None  # None without brackets
    partial: tuple[str, ...]  # axes, or (FOLLOWS,)
    regathered: bool  # the mark ~
    place: Place


@dataclass(frozen=True, slots=True)
class OperatorSyntax:
    """One line ``y[...], ... = op{modifier}(arg, ...)``."""

    outputs: tuple[TensorSyntax, ...]
    kind: str
    modifier: str
    arguments: tuple[TensorSyntax, ...]
    fuse: tuple[str, int] | None  # (name of its kernel, number of the kernel in the definition)
    place: Place
    regions: RegionPath = ()  # the ``recompute`` regions around it; numbers count those of the definition


@dataclass(frozen=True, slots=True)
class UseSyntax:
    """One line ``use block{modifier} (inner = outer, ...)``, or ``use layer name (...)`` of a layer in a layer."""

    block: str
    bindings: dict[str, str]
    place: Place
    modifier: str = ""  # replaces ``{*}`` inside the block
    parameter: str = ""  # the block parameter in ``use $parameter``; `block` is then known after the settings
    kind: str = "block"  # or "layer"
    regions: RegionPath = ()


@dataclass(frozen=True, slots=True)
class DimSyntax:
    """One line ``dim letter = size``."""

    letter: str
    size: Expression
    place: Place


@dataclass(frozen=True, slots=True)
class DeclarationSyntax:
    """One line that declares tensors: ``input``, ``data`` (from outside the model), ``weight`` or ``tied``."""

    word: str
    tensors: tuple[TensorSyntax, ...]


@dataclass(frozen=True, slots=True)
class BracketSyntax:
    """One line ``fuse NAME``, ``recompute NAME`` or ``end``, which has no name."""

    word: str
    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class Condition:
    """``when A B unless C D`` after a line: the line counts if A and B are set, and neither C nor D is."""

    when: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def holds(self, options: frozenset[str]) -> bool:
        """Return whether the line counts if `options` are set."""
        return options.issuperset(self.when) and options.isdisjoint(self.unless)

    def __str__(self) -> str:
        parts = [("when", self.when), ("unless", self.unless)]
        return " ".join(f"{word} {' '.join(options)}" for word, options in parts if options)


Line = DimSyntax | DeclarationSyntax | BracketSyntax | OperatorSyntax | UseSyntax


def tensors_of(line: Line) -> tuple[TensorSyntax, ...]:
    """Return the tensors that a line states: results first."""
    if isinstance(line, OperatorSyntax):
        return *line.outputs, *line.arguments
    return line.tensors if isinstance(line, DeclarationSyntax) else ()


@dataclass(frozen=True, slots=True)
class LayerDefinition:
    """The parse tree of a layer or block: its options and block parameters, and all lines with their conditions."""

    name: str
    kind: str  # "layer" or "block"
    file: str
    options: dict[str, Place]
    exclusive: dict[str, tuple[str, ...]]  # name of a decision -> options of which at most one may be set
    parameters: dict[str, str]  # block parameter -> its default
    lines: tuple[tuple[Line, Condition], ...]
    roles: dict[str, str] = field(default_factory=dict)  # role -> role that is its default


@dataclass(frozen=True, slots=True)
class SelectedLayer:
    """The lines of a layer or block that count under some settings."""

    name: str
    kind: str  # "layer" or "block"
    definitions: dict[str, Expression]  # letter -> size
    defined_at: dict[str, Place]
    inputs: tuple[TensorSyntax, ...]
    weights: tuple[TensorSyntax, ...]
    body: tuple[OperatorSyntax | UseSyntax, ...]
    file: str
    data: frozenset[str] = frozenset()  # inputs that come from outside the model and have no gradient
    tied: frozenset[str] = frozenset()  # weights that the layer shares with another layer of the model
    left_out: dict[str, str] = field(default_factory=dict)  # tensor of a line that does not count -> message about it
    roles: dict[str, str] = field(default_factory=dict)  # as in LayerDefinition


@dataclass(frozen=True, slots=True)
class Settings:
    """Options and block parameters that a model, an assumption set or a strategy sets."""

    options: frozenset[str] = frozenset()
    blocks: tuple[tuple[str, str], ...] = ()  # (block parameter, block); the last entry of a parameter counts

    def __or__(self, over: "Settings") -> "Settings":
        return Settings(self.options | over.options, (*self.blocks, *over.blocks))

    def __str__(self) -> str:
        return " ".join([*sorted(self.options), *(f"{name}={block}" for name, block in self.blocks)])


@dataclass(frozen=True, slots=True)
class Rule:
    """One line ``require left relation right reason`` of a strategy."""

    left: Expression
    relation: str
    right: Expression
    reason: str
    place: Place

    @property
    def names(self) -> set[str]:
        """The names on both sides."""
        return names(self.left) | names(self.right)

    def holds(self, values: Mapping[str, V]) -> V:
        """Return whether the rule holds, elementwise for arrays; raises NotationError if it cannot be evaluated."""
        try:
            return RELATIONS[self.relation](evaluate(self.left, values), evaluate(self.right, values))
        except (OverflowError, ZeroDivisionError) as error:
            sizes = ", ".join(f"{name}={values[name]}" for name in sorted(self.names))
            raise self.place.error(f"the rule cannot be checked where {sizes}: {error}") from None


@dataclass(frozen=True, slots=True)
class StrategyDefinition:
    """The parse tree of a strategy: a whole strategy, or its changes to the strategy that it extends."""

    name: str
    file: str
    extends: tuple[str, Place] | None
    roles: dict[str, Dim | Role]  # role -> its dimension, or another role
    rules: tuple[Rule, ...]  # they replace inherited rules of the same reason
    dropped: dict[str, Place]  # reasons of the inherited rules that it drops
    settings: Settings
    kind: ClassVar[str] = "strategy"


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy with what it inherits: the dimension of each role, the rules, and settings for all layers."""

    name: str
    roles: dict[str, Dim]
    rules: tuple[Rule, ...]
    file: str
    settings: Settings = Settings()


Definition = LayerDefinition | StrategyDefinition
