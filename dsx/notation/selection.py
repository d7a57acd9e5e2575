"""The lines of a definition that count: under a strategy with what it inherits, and under options.

Resolves `extends`: a strategy with what it inherits.

A role replaces the inherited role of the same name. Rules replace the inherited rules of the same reason, in the place
of the first one; rules of new reasons come last. `drop` removes the rules of a reason. Settings add up.

A block as another definition uses it: the names that it declares, its renamed result, its modifier.

Selects the lines of a definition that count under given options, and fills in its block parameters.

`dsx.notation.build` resolves names that are assigned more than once.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dsx.errors import InputError, NotationError, UnknownNameError, did_you_mean
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
)

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


def declared(source: SelectedLayer) -> set[str]:
    """Return the names that a layer or block declares itself, without those of its blocks."""
    lines = [entry for entry in source.body if isinstance(entry, OperatorSyntax)]
    made = {tensor.name for line in lines for tensor in line.outputs}
    return made | {tensor.name for tensor in (*source.inputs, *source.weights)}


def results(source: SelectedLayer) -> int:
    """Return the number of lines that make a tensor 'output'."""
    return sum(
        entry.bindings.get(OUTPUT, OUTPUT) == OUTPUT
        if isinstance(entry, UseSyntax)
        else OUTPUT in [tensor.name for tensor in entry.outputs]
        for entry in source.body
    )


def renamed(block: SelectedLayer, made: str) -> SelectedLayer:
    """Return a block whose tensor 'output' is called `made`."""

    def called(tensor: TensorSyntax) -> TensorSyntax:
        return replace(tensor, name=made) if tensor.name == OUTPUT else tensor

    def rename(entry: OperatorSyntax | UseSyntax) -> OperatorSyntax | UseSyntax:
        if isinstance(entry, OperatorSyntax):
            outputs, arguments = (tuple(map(called, tensors)) for tensors in (entry.outputs, entry.arguments))
            return replace(entry, outputs=outputs, arguments=arguments)
        inputs = {inner: made if outer == OUTPUT else outer for inner, outer in entry.bindings.items()}
        return replace(entry, bindings=inputs if made == OUTPUT else {OUTPUT: made} | inputs)

    return replace(block, body=tuple(map(rename, block.body)))


def modified(entry: OperatorSyntax | UseSyntax, modifier: str) -> Any:
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
    made = {tensor.name for entry in reader.body if isinstance(entry, OperatorSyntax) for tensor in entry.outputs}
    made |= {entry.bindings.get(OUTPUT, OUTPUT) for entry in reader.body if isinstance(entry, UseSyntax)}
    declared = {tensor.name for tensor in (*reader.inputs, *reader.weights)}
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
        {name: where for name, where in reader.left_out.items() if name not in made | declared},
        definition.roles,
    )


def check_exclusive(definition: LayerDefinition, settings: Settings) -> None:
    """Raise InputError where `settings` has two options that exclude each other in a definition."""
    for over, options in definition.exclusive.items():
        both = [option for option in options if option in settings.options]
        if len(both) > 1:
            raise InputError(
                f"{definition.kind} {definition.name!r}: the options {both[0]!r} and {both[1]!r} exclude each other "
                f"({over}: one of {', '.join(options)}, or none)"
            )


def check_known(settings: Settings, definitions: list[LayerDefinition]) -> None:
    """Raise UnknownNameError for a setting that none of the `definitions`, a layer and its blocks, declares."""
    layer = definitions[0]
    for option in sorted(settings.options):
        known = {name for definition in definitions for name in definition.options}
        if option not in known:
            raise UnknownNameError("option", option, known, _known_by(layer))
    for parameter, block in settings.blocks:
        known = {name for definition in definitions for name in definition.parameters}
        if parameter not in known:
            key = did_you_mean(parameter, ("kind", "options", "count"))
            raise UnknownNameError("block parameter", parameter, known, f" to be {block!r}{_known_by(layer)}{key}")


def _known_by(layer: LayerDefinition) -> str:
    return f": those of {layer.kind} {layer.name!r} and of the blocks that it uses with these settings"


def _fuse_of(line: OperatorSyntax | UseSyntax) -> Numbered | None:
    return line.fuse if isinstance(line, OperatorSyntax) else None


class _LineReader:
    """Collects the lines that count."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
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
        made: dict[str, Place] = {}
        if isinstance(line, OperatorSyntax | DeclarationSyntax):
            tensors = line.outputs if isinstance(line, OperatorSyntax) else line.tensors
            made = {tensor.name: tensor.place for tensor in tensors}
        elif isinstance(line, UseSyntax):
            made = {line.bindings.get(OUTPUT, OUTPUT): line.place}
        self.left_out |= {name: f"line {place.line} makes it {condition}" for name, place in made.items()}
        if self._fuse:
            self._thinned.add(self._fuse)

    def finish(self) -> None:
        """Check that kernels and regions have an end; a kernel that options reduce to one operator is none."""
        for word, what in (("fuse", "kernel"), ("recompute", "region")):
            for (name, _), place in self._open[word]:
                raise place.error(f"{what} {name!r} has no 'end'")
        size = Counter(line.fuse for line in self.body if isinstance(line, OperatorSyntax))
        single = {fuse for fuse in self._thinned if size[fuse] == 1}
        self.body = [replace(line, fuse=None) if _fuse_of(line) in single else line for line in self.body]
