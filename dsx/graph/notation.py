"""The syntax nodes of the layer notation: the parts of a layer, a block and a strategy.

A file defines a layer, a block (a layer whose distributions may be roles, ``$rs``) or a strategy (the dimension of each
role, and rules that limit the plans). Some lines of a layer count only under some options. `dsx.graph.parse` reads a
file, `dsx.graph.selection` selects the lines that count under given options, and `dsx.graph.build` combines blocks and
strategies and checks them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsx.graph.expressions import RELATIONS, evaluate, names
from dsx.graph.lexer import Place
from dsx.graph.regions import RegionPath

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
    size: Any
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
    definitions: dict[str, Any]  # letter -> size
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

    left: Any
    relation: str
    right: Any
    reason: str
    place: Place

    def holds(self, values: Mapping[str, Any]) -> Any:
        """Return whether the rule holds, elementwise for arrays; raises NotationError if it cannot be evaluated."""
        try:
            return RELATIONS[self.relation](evaluate(self.left, values), evaluate(self.right, values))
        except (OverflowError, ZeroDivisionError) as error:
            given = ", ".join(f"{name}={values[name]}" for name in sorted(names(self.left) | names(self.right)))
            raise self.place.error(f"the rule cannot be checked where {given}: {error}") from None


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
    set_at: dict[str, Place]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy with what it inherits: the dimension of each role, the rules, and settings for all layers."""

    name: str
    roles: dict[str, Dim]
    rules: tuple[Rule, ...]
    file: str
    settings: Settings = Settings()


Definition = LayerDefinition | StrategyDefinition
