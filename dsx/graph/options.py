"""Which lines of a definition count: under given options, and with given blocks for its block parameters.

Not here: a name that is assigned again, which is resolved where blocks are put together (`dsx.graph.build`).
"""

from collections import Counter
from dataclasses import replace
from typing import Any

from dsx.errors import InputError, NotationError, UnknownNameError, did_you_mean
from dsx.graph.layer import OUTPUT
from dsx.graph.lexer import Place
from dsx.graph.notation import (
    BracketText,
    Condition,
    DimText,
    LayerDefinition,
    LayerText,
    Line,
    OperatorText,
    Settings,
    TensorsText,
    TensorText,
    UseText,
)

Numbered = tuple[str, int]


def selected(definition: LayerDefinition, settings: Settings) -> LayerText:
    """Return the lines of a definition that count under `settings`; what it does not declare is for other blocks.

    Raises NotationError where those lines make no layer, InputError where options exclude each other.
    """
    check_exclusive(definition, settings)
    blocks = definition.parameters | dict(settings.blocks)
    reader = _Reader()
    for line, condition in definition.lines:
        if condition.holds(settings.options):
            if isinstance(line, UseText) and line.parameter:
                line = replace(line, block=blocks[line.parameter])
            reader.read(line)
        else:
            reader.leave_out(line, condition)
    reader.finish()
    if not reader.body:
        set_here = f" with the options {', '.join(sorted(settings.options))}" if settings.options else ""
        raise NotationError(f"{definition.kind} {definition.name!r} has no operators{set_here}", definition.file, 1, 1)
    made = {tensor.name for entry in reader.body if isinstance(entry, OperatorText) for tensor in entry.outputs}
    made |= {entry.bindings.get(OUTPUT, OUTPUT) for entry in reader.body if isinstance(entry, UseText)}
    declared = {tensor.name for tensor in (*reader.inputs, *reader.weights)}
    return LayerText(
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
    """Raise InputError where two options are set of which a definition allows one."""
    for over, options in definition.exclusive.items():
        both = [option for option in options if option in settings.options]
        if len(both) > 1:
            raise InputError(
                f"{definition.kind} {definition.name!r}: the options {both[0]!r} and {both[1]!r} exclude each other "
                f"({over}: one of {', '.join(options)}, or none)"
            )


def check_known(settings: Settings, definitions: list[LayerDefinition]) -> None:
    """Raise UnknownNameError unless a layer, the first of `definitions`, or a block that it uses knows all settings."""
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
    return f": those of {layer.kind} {layer.name!r} and of the blocks that it uses then"


def _fuse_of(line: OperatorText | UseText) -> Numbered | None:
    return line.fuse if isinstance(line, OperatorText) else None


class _Reader:
    """Collects the lines that count."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self.defined_at: dict[str, Place] = {}
        self.inputs: list[TensorText] = []
        self.weights: list[TensorText] = []
        self.marked: dict[str, set[str]] = {"data": set(), "tied": set()}
        self.body: list[OperatorText | UseText] = []
        self.left_out: dict[str, str] = {}
        self._open: dict[str, tuple[Numbered, Place]] = {}  # the kernel and the region that have no 'end' yet
        self._count = {"fuse": 0, "again": 0}
        self._thinned: set[Numbered] = set()  # kernels of which lines are left out

    def read(self, line: Line) -> None:
        match line:
            case DimText(letter, size, place):
                if letter in self.definitions:
                    raise place.error(f"dimension {letter!r} is defined twice")
                self.definitions[letter], self.defined_at[letter] = size, place
            case TensorsText(word, tensors):
                (self.inputs if word in ("input", "data") else self.weights).extend(tensors)
                if word in self.marked:
                    self.marked[word] |= {tensor.name for tensor in tensors}
            case BracketText():
                self._bracket(line)
            case UseText():
                if fuse := self._inside("fuse"):
                    raise line.place.error(f"a block cannot be used inside a kernel; {fuse[0]!r} has no 'end' yet")
                self.body.append(replace(line, again=self._inside("again")))
            case OperatorText():
                self.body.append(replace(line, fuse=self._inside("fuse"), again=self._inside("again")))

    def _bracket(self, line: BracketText) -> None:
        fuse, again = self._inside("fuse"), self._inside("again")
        match line.word:
            case "end":
                if not (fuse or again):
                    raise line.place.error("'end' without a 'fuse' or an 'again'")
                del self._open["fuse" if fuse else "again"]
                return
            case "fuse" if fuse:
                raise line.place.error(f"kernel {fuse[0]!r} has no 'end' yet; kernels do not nest")
            case "again" if fuse:
                raise line.place.error(f"a kernel is made again as a whole; {fuse[0]!r} has no 'end' yet")
            case "again" if again:
                raise line.place.error(f"region {again[0]!r} has no 'end' yet; regions do not nest")
        self._count[line.word] += 1
        self._open[line.word] = (line.name, self._count[line.word]), line.place

    def _inside(self, word: str) -> Numbered | None:
        return self._open[word][0] if word in self._open else None

    def leave_out(self, line: Line, condition: Condition) -> None:
        """Remember what a line would have made, for the message where somebody reads it."""
        made: dict[str, Place] = {}
        if isinstance(line, OperatorText | TensorsText):
            tensors = line.outputs if isinstance(line, OperatorText) else line.tensors
            made = {tensor.name: tensor.place for tensor in tensors}
        elif isinstance(line, UseText):
            made = {line.bindings.get(OUTPUT, OUTPUT): line.place}
        self.left_out |= {name: f"line {place.line} makes it {condition}" for name, place in made.items()}
        if fuse := self._inside("fuse"):
            self._thinned.add(fuse)

    def finish(self) -> None:
        """Check that kernels and regions have ended; one operator that options leave of a kernel is none."""
        for word, what in (("fuse", "kernel"), ("again", "region")):
            if word in self._open:
                (name, _), place = self._open[word]
                raise place.error(f"{what} {name!r} has no 'end'")
        size = Counter(line.fuse for line in self.body if isinstance(line, OperatorText))
        single = {fuse for fuse in self._thinned if size[fuse] == 1}
        self.body = [replace(line, fuse=None) if _fuse_of(line) in single else line for line in self.body]
