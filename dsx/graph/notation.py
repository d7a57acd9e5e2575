"""The layer notation: what a definition of a layer, a block or a strategy consists of.

A file is a layer, a block (a layer whose distributions may be roles, ``$rs``) or a strategy (what each role stands for,
and the rules that limit it). Lines of a layer may count under some options alone. `dsx.graph.parse` reads the text,
`dsx.graph.options` leaves the lines that count under given options, `dsx.graph.build` puts blocks and strategies
together and checks them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsx.graph.expressions import RELATIONS, evaluate, names
from dsx.graph.lexer import Place

# Mesh axes that a text may divide by; the pipeline divides layers, not tensors.
AXES = ("tp", "tp2", "cp", "ep", "dp")
FOLLOWS = "*"  # the partial axes of the arguments; the modifier that a block is used with


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
    parameter: str = ""  # ``use $parameter``, which stands for a block that is not known here
    again: tuple[str, int] | None = None  # the region that it is in


@dataclass(frozen=True, slots=True)
class DimText:
    """One line ``dim letter = size``."""

    letter: str
    size: Any
    place: Place


@dataclass(frozen=True, slots=True)
class TensorsText:
    """One line of declared tensors: ``input``, ``data`` (from outside the model), ``weight`` or ``tied``."""

    word: str
    tensors: tuple[TensorText, ...]


@dataclass(frozen=True, slots=True)
class BracketText:
    """One line ``fuse NAME``, ``again NAME`` or ``end``, which has no name."""

    word: str
    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class Condition:
    """``when A B`` and ``unless C D`` behind a line: it counts if all of the first are set and none of the others."""

    when: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def holds(self, options: frozenset[str]) -> bool:
        """Return whether a line counts where `options` are set."""
        return options.issuperset(self.when) and options.isdisjoint(self.unless)

    def __str__(self) -> str:
        parts = [("when", self.when), ("unless", self.unless)]
        return " ".join(f"{word} {' '.join(options)}" for word, options in parts if options)


Line = DimText | TensorsText | BracketText | OperatorText | UseText


@dataclass(frozen=True, slots=True)
class LayerDefinition:
    """A layer or block as written: its options and block parameters, and all lines with their conditions."""

    name: str
    kind: str  # "layer" or "block"
    file: str
    options: dict[str, Place]
    exclusive: dict[str, tuple[str, ...]]  # what they exclude each other over -> options of which one may be set
    parameters: dict[str, str]  # block parameter -> the block where nobody sets it
    lines: tuple[tuple[Line, Condition], ...]
    roles: dict[str, str] = field(default_factory=dict)  # role -> the one that it is where a strategy does not give it


@dataclass(frozen=True, slots=True)
class LayerText:
    """The lines of a layer or block that count: sizes, inputs, weights, and its operators and uses in order."""

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
    left_out: dict[str, str] = field(default_factory=dict)  # tensor -> which line would make it, and when
    roles: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """Options that are set, and the block of each block parameter that is: by a model, a set or a strategy."""

    options: frozenset[str] = frozenset()
    blocks: tuple[tuple[str, str], ...] = ()  # (block parameter, block); the last one of a name counts

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
        """Return where the rule holds; raises NotationError where its numbers cannot be compared."""
        try:
            return RELATIONS[self.relation](evaluate(self.left, values), evaluate(self.right, values))
        except (OverflowError, ZeroDivisionError) as error:
            given = ", ".join(f"{name}={values[name]}" for name in sorted(names(self.left) | names(self.right)))
            raise self.place.error(f"the rule cannot be checked where {given}: {error}") from None


@dataclass(frozen=True, slots=True)
class StrategyDefinition:
    """A strategy as written: what it changes in the one that it extends, or all of it."""

    name: str
    file: str
    extends: tuple[str, Place] | None
    roles: dict[str, Dim | Role]  # a role that is given as another one is that one
    rules: tuple[Rule, ...]  # in the place of those that have the same reasons
    dropped: dict[str, Place]  # reasons whose rules do not hold here
    settings: Settings
    set_at: dict[str, Place]


@dataclass(frozen=True, slots=True)
class StrategyText:
    """An overlay: the dimension of each role, the rules, and what is set in the layers that know it."""

    name: str
    roles: dict[str, Dim]
    rules: tuple[Rule, ...]
    file: str
    settings: Settings = Settings()


Definition = LayerDefinition | StrategyDefinition
