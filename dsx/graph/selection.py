"""Selects the lines of a definition that count under given options, and fills in its block parameters.

`dsx.graph.build` resolves names that are assigned more than once.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

from dsx.errors import InputError, NotationError, UnknownNameError, did_you_mean
from dsx.graph.layer import OUTPUT
from dsx.graph.lexer import Place
from dsx.graph.notation import (
    BracketSyntax,
    Condition,
    DeclarationSyntax,
    DimSyntax,
    LayerDefinition,
    Line,
    OperatorSyntax,
    SelectedLayer,
    Settings,
    TensorSyntax,
    UseSyntax,
)
from dsx.graph.regions import RegionPath

Numbered = tuple[str, int]


def selected(definition: LayerDefinition, settings: Settings) -> SelectedLayer:
    """Return the lines of a definition that count under `settings`; settings that it does not declare have no effect.

    Raises NotationError where these lines do not form a layer, InputError where options exclude each other.
    """
    check_exclusive(definition, settings)
    blocks = definition.parameters | dict(settings.blocks)
    reader = _Reader()
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


class _Reader:
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
