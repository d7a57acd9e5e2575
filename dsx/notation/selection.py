"""The lines of a definition that count: under a strategy with what it inherits, and under options.

A strategy that extends another: a role replaces the inherited role of the same name. Rules replace the inherited rules
of the same reason, in the place of the first one; rules of new reasons come last. `drop` removes the rules of a reason.
Settings add up.

A layer or block under options has the lines whose conditions hold, with its block parameters filled in.
`dsx.notation.build` resolves names that are assigned more than once.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from dsx.errors import InputError, NotationError, UnknownNameError, did_you_mean
from dsx.notation.expressions import Expression
from dsx.notation.sharded_layer import OUTPUT
from dsx.notation.syntax import (
    FOLLOWS,
    BracketSyntax,
    Condition,
    DeclarationSyntax,
    Dim,
    DimSyntax,
    LayerDefinition,
    Line,
    OperatorSyntax,
    Place,
    RegionPath,
    Role,
    Rule,
    SelectedLayer,
    Settings,
    Strategy,
    StrategyDefinition,
    TensorSyntax,
    UseSyntax,
    tensors_of,
)

_MOST_FILES = 30  # that extend each other; packaged: three

Used = TypeVar("Used", OperatorSyntax, UseSyntax)
Find = Callable[[str, Place], StrategyDefinition]


def resolved(definition: StrategyDefinition, find: Find) -> Strategy:
    """Return a strategy with what it inherits; `find` returns the definition of an extended strategy.

    Raises NotationError with file, line and column.
    """
    chain = [definition]
    while chain[-1].extends is not None:
        name, place = chain[-1].extends
        base = find(name, place)
        if any(base.file == extended.file and base.name == extended.name for extended in chain):
            cycle = " extends ".join(extended.name for extended in (*chain, base))
            raise place.error(f"a strategy cannot extend itself: {cycle}")
        chain.append(base)
        if len(chain) > _MOST_FILES:
            raise place.error(f"{definition.name!r} extends a chain of more than {_MOST_FILES} strategies")
    roles: dict[str, Dim | Role] = {}
    rules: list[Rule] = []
    settings = Settings()
    for extended in reversed(chain):
        roles |= extended.roles
        rules = _with_rules_of(extended, rules)
        settings |= extended.settings
    dims = {name: _dim(name, roles, definition) for name in roles}
    return Strategy(definition.name, dims, tuple(rules), definition.file, settings)


def _with_rules_of(definition: StrategyDefinition, inherited: list[Rule]) -> list[Rule]:
    """Return the rules of a strategy that inherits some."""
    reasons = [rule.reason for rule in inherited]
    for reason, place in definition.dropped.items():
        if reason not in reasons:
            raise place.error(f"no inherited rule has the reason {reason!r}{did_you_mean(reason, reasons)}")
    replaced = {rule.reason for rule in definition.rules}
    rules: list[Rule] = []
    for position, rule in enumerate(inherited):
        if rule.reason in definition.dropped:
            continue
        if rule.reason not in replaced:
            rules.append(rule)
        elif rule.reason not in reasons[:position]:
            rules += [new for new in definition.rules if new.reason == rule.reason]
    placed = {rule.reason for rule in rules}
    return rules + [rule for rule in definition.rules if rule.reason not in placed]


def _dim(name: str, roles: dict[str, Dim | Role], definition: StrategyDefinition) -> Dim:
    """Return the dimension of a role; the strategy may give it as another role."""
    seen = [name]
    item = roles[name]
    letter = ""
    while isinstance(item, Role):
        letter = letter or item.letter
        if item.name not in roles:
            hint = did_you_mean(item.name, roles)
            raise item.place.error(f"strategy {definition.name!r} gives no role {item.name!r}{hint}")
        if item.name in seen:
            raise item.place.error(f"role {item.name!r} is given through itself: {' -> '.join([*seen, item.name])}")
        seen.append(item.name)
        item = roles[item.name]
    return Dim(letter or item.letter, item.axes)


def declared(source: SelectedLayer) -> set[str]:
    """Return the names that a layer or block declares itself, without those of its blocks."""
    results = [tensor for entry in source.body if isinstance(entry, OperatorSyntax) for tensor in entry.outputs]
    return {tensor.name for tensor in (*results, *source.inputs, *source.weights)}


def made_by(line: Line) -> dict[str, Place]:
    """Return the names that a line of a definition gives to tensors."""
    if isinstance(line, UseSyntax):
        return {line.bindings.get(OUTPUT, OUTPUT): line.place}
    tensors = line.outputs if isinstance(line, OperatorSyntax) else tensors_of(line)
    return {tensor.name: tensor.place for tensor in tensors}


def results(source: SelectedLayer) -> int:
    """Return the number of lines that make a tensor 'output'."""
    return sum(OUTPUT in made_by(entry) for entry in source.body)


def renamed(block: SelectedLayer, name: str) -> SelectedLayer:
    """Return a block whose tensor 'output' is called `made`."""

    def called(tensor: TensorSyntax) -> TensorSyntax:
        return replace(tensor, name=name) if tensor.name == OUTPUT else tensor

    def rename(entry: OperatorSyntax | UseSyntax) -> OperatorSyntax | UseSyntax:
        if isinstance(entry, OperatorSyntax):
            outputs, arguments = (tuple(map(called, tensors)) for tensors in (entry.outputs, entry.arguments))
            return replace(entry, outputs=outputs, arguments=arguments)
        inputs = {inner: name if outer == OUTPUT else outer for inner, outer in entry.bindings.items()}
        return replace(entry, bindings=inputs if name == OUTPUT else {OUTPUT: name} | inputs)

    return replace(block, body=tuple(map(rename, block.body)))


def modified(entry: Used, modifier: str) -> Used:
    """Return a line of a block with ``{*}`` replaced by the modifier of the block's use."""
    return replace(entry, modifier=modifier) if entry.modifier == FOLLOWS else entry


Numbered = tuple[str, int]


def selected(definition: LayerDefinition, settings: Settings) -> SelectedLayer:
    """Return the lines of a definition that count under `settings`; settings that it does not declare have no effect.

    Raises NotationError where these lines do not form a layer, InputError where options exclude each other.
    """
    check_exclusive(definition, settings)
    blocks = definition.parameters | dict(settings.blocks)
    reader = _LineReader()
    for line, condition in definition.lines:
        if condition.holds(settings.options):
            if isinstance(line, UseSyntax) and line.parameter:
                line = replace(line, block=blocks[line.parameter])
            reader.read(line)
        else:
            reader.leave_out(line, condition)
    reader.finish()
    if not reader.body:
        set_here = f" with the options {', '.join(sorted(settings.options))}" if settings.options else ""
        raise NotationError(f"{definition.kind} {definition.name!r} has no operators{set_here}", definition.file, 1, 1)
    tensors = {name for entry in reader.body for name in made_by(entry)}
    tensors |= {tensor.name for tensor in (*reader.inputs, *reader.weights)}
    return SelectedLayer(
        definition.name,
        definition.kind,
        reader.definitions,
        reader.defined_at,
        tuple(reader.inputs),
        tuple(reader.weights),
        tuple(reader.body),
        definition.file,
        frozenset(reader.marked["data"]),
        frozenset(reader.marked["tied"]),
        {name: where for name, where in reader.left_out.items() if name not in tensors},
        definition.roles,
    )


def check_exclusive(definition: LayerDefinition, settings: Settings) -> None:
    """Raise InputError where `settings` has two options that exclude each other in a definition."""
    for over, options in definition.exclusive.items():
        if len(chosen := [option for option in options if option in settings.options]) > 1:
            raise InputError(
                f"{definition.kind} {definition.name!r}: the options {chosen[0]!r} and {chosen[1]!r} exclude each "
                f"other ({over}: one of {', '.join(options)}, or none)"
            )


def check_known(settings: Settings, definitions: list[LayerDefinition]) -> None:
    """Raise UnknownNameError for a setting that none of the `definitions`, a layer and its blocks, declares."""
    layer = definitions[0]
    known_by = f": those of {layer.kind} {layer.name!r} and of the blocks that it uses with these settings"
    options = {name for definition in definitions for name in definition.options}
    for option in sorted(settings.options - options):
        raise UnknownNameError("option", option, options, known_by)
    parameters = {name for definition in definitions for name in definition.parameters}
    for parameter, block in settings.blocks:
        if parameter not in parameters:
            key = did_you_mean(parameter, ("kind", "options", "count"))
            raise UnknownNameError("block parameter", parameter, parameters, f" to be {block!r}{known_by}{key}")


class _LineReader:
    """Collects the lines that count."""

    def __init__(self) -> None:
        self.definitions: dict[str, Expression] = {}
        self.defined_at: dict[str, Place] = {}
        self.inputs: list[TensorSyntax] = []
        self.weights: list[TensorSyntax] = []
        self.marked: dict[str, set[str]] = {"data": set(), "tied": set()}
        self.body: list[OperatorSyntax | UseSyntax] = []
        self.left_out: dict[str, str] = {}
        # What has no 'end' yet: at most one kernel, and regions, outermost first.
        self._open: dict[str, list[tuple[Numbered, Place]]] = {"fuse": [], "recompute": []}
        self._count = {"fuse": 0, "recompute": 0}
        self._thinned: set[Numbered] = set()  # kernels that lost lines to options

    def read(self, line: Line) -> None:
        match line:
            case DimSyntax(letter, size, place):
                if letter in self.definitions:
                    raise place.error(f"dimension {letter!r} is defined twice")
                self.definitions[letter], self.defined_at[letter] = size, place
            case DeclarationSyntax(word, tensors):
                (self.inputs if word in ("input", "data") else self.weights).extend(tensors)
                if word in self.marked:
                    self.marked[word] |= {tensor.name for tensor in tensors}
            case BracketSyntax():
                self._bracket(line)
            case UseSyntax():
                if self._fuse:
                    raise line.place.error(
                        f"a block cannot be used inside a kernel; {self._fuse[0]!r} has no 'end' yet"
                    )
                self.body.append(replace(line, regions=self._regions))
            case OperatorSyntax():
                self.body.append(replace(line, fuse=self._fuse, regions=self._regions))

    def _bracket(self, line: BracketSyntax) -> None:
        fuse, regions = self._fuse, self._regions
        match line.word:
            case "end":
                if not (fuse or regions):
                    raise line.place.error("'end' without a 'fuse' or a 'recompute'")
                self._open["fuse" if fuse else "recompute"].pop()
                return
            case "fuse" if fuse:
                raise line.place.error(f"kernel {fuse[0]!r} has no 'end' yet; kernels do not nest")
            case "recompute" if fuse:
                raise line.place.error(f"a kernel is recomputed as a whole; {fuse[0]!r} has no 'end' yet")
            case "recompute" if line.name in dict(regions):
                raise line.place.error(f"region {line.name!r} has no 'end' yet; a region is not part of itself")
        self._count[line.word] += 1
        self._open[line.word].append(((line.name, self._count[line.word]), line.place))

    @property
    def _fuse(self) -> Numbered | None:
        return self._open["fuse"][0][0] if self._open["fuse"] else None

    @property
    def _regions(self) -> RegionPath:
        return tuple(numbered for numbered, _ in self._open["recompute"])

    def leave_out(self, line: Line, condition: Condition) -> None:
        """Remember the tensors of a line that does not count, for the message where another line reads one."""
        self.left_out |= {name: f"line {place.line} makes it {condition}" for name, place in made_by(line).items()}
        if self._fuse:
            self._thinned.add(self._fuse)

    def finish(self) -> None:
        """Check that kernels and regions have an end; a kernel that options reduce to one operator is none."""
        for word, what in (("fuse", "kernel"), ("recompute", "region")):
            for (name, _), place in self._open[word]:
                raise place.error(f"{what} {name!r} has no 'end'")
        size = Counter(line.fuse for line in self.body if isinstance(line, OperatorSyntax))
        single = {fuse for fuse in self._thinned if size[fuse] == 1}
        self.body = [
            replace(line, fuse=None) if isinstance(line, OperatorSyntax) and line.fuse in single else line
            for line in self.body
        ]
