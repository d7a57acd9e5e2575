"""Operator tables: FLOPs, bytes, saved tensors and gradients of each kind of operator, as data.

A table (data/operators/*.yaml) maps the name of an operator to its fields. Expressions refer to local tensors by
argument name, and to the result as ``y``: ``size(x)`` is its elements, ``rows(x)`` its elements without the last
dimension, ``last(x)`` its last dimension, ``bytes(x)`` its bytes. ``dx`` and ``dy`` are gradients, ``contracted`` is
the product of the local dimensions that a multiply contracts, ``panels`` the number of panels of a panelled multiply,
``activation_bytes`` the bytes of one element, ``cross_entropy_bytes`` what a loss keeps of one. No table names an axis
or a degree.

| field | meaning |
|---|---|
| arguments | names of the arguments, in order |
| shape | same (keeps its dimensions), contract (an einsum), lookup (picks rows of a table), view, free |
| linear | which partial sums pass: none, each (all arguments alike), one (of any one argument) |
| forward, backward | matrix and vector FLOPs, bytes; an einsum has `gradient` instead, once for each argument |
| unfused (there) | traffic on top of `bytes` where a framework runs the operator as several kernels |
| saved | what the backward reads: arguments, ``y``, or ``{bytes: expression}`` for other values |
| in_kernel | what differs inside a fused kernel: saved, writes (bytes), keeps_output |
| panels | forward and gradient of a panelled einsum |
| work | modifier -> share of the FLOPs, as [numerator, denominator]: expressions in dimensions of the model |
| statistics | row statistics that must be complete where the last dimension is divided |
| rearranges | true for a permutation of elements, whose gradient is the inverse and sums nothing |
| copies | the argument or ``y`` that has several copies of each token, and their number, in dimensions of the model |
| groups | modifier -> [groups of experts, groups that the copies of one token may go to], likewise |
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from dsx.config.documents import Document, KeyPath, parse_document, read_text
from dsx.config.search_path import shown
from dsx.errors import NotationError, did_you_mean
from dsx.notation.expressions import Expression, names, parts
from dsx.notation.syntax import Functions, LineReader, Place, parse_expression

Pair = tuple[Expression, Expression]
NAMES = ("matrix", "vector", "bytes", "unfused")
FUNCTIONS = ("size", "rows", "last", "bytes")
QUANTITIES = ("contracted", "panels", "activation_bytes", "weight_bytes", "cross_entropy_bytes")
_MOST_PARTS = 500  # numbers and names in the formula of one operator; packaged layers have up to 28


@dataclass(frozen=True, slots=True)
class TableFormula:
    """An expression of a table, parsed for each operator, whose tensors are known."""

    source: str
    file: str
    line: int

    def resolve(self, functions: Functions) -> Expression:
        """Return the expression over dimensions and degrees; `functions` gives sizes by argument name."""
        line = LineReader(self.source, self.file, self.line)
        result = parse_expression(line, functions)
        line.finish()
        if (size := parts(result)) > _MOST_PARTS:
            raise Place(self.file, self.line, 1).error(
                f"with the sizes of its tensors substituted, the formula has {size:,} numbers and dimensions; at most "
                f"{_MOST_PARTS} are allowed"
            )
        return result


@dataclass(frozen=True, slots=True)
class Effort:
    """FLOPs on matrix and on vector units, bytes, and extra bytes if the operator is not one kernel; None is 0."""

    matrix: TableFormula | None = None
    vector: TableFormula | None = None
    bytes: TableFormula | None = None
    unfused: TableFormula | None = None


@dataclass(frozen=True, slots=True)
class InKernel:
    """How an operator differs inside a fused kernel."""

    saved: tuple[str | TableFormula, ...] = ()
    writes: TableFormula | None = None
    keeps_output: bool = False


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """One operator of a table; the module docstring explains the fields."""

    name: str
    arguments: tuple[str, ...]
    shape: Literal["same", "contract", "lookup", "view", "free"] = "same"
    linear: Literal["none", "each", "one"] = "none"
    forward: Effort = Effort()
    backward: Effort = Effort()
    gradient: Effort = Effort()
    saved: tuple[str | TableFormula, ...] = ()
    in_kernel: InKernel | None = None
    panels: "dict[str, Effort]" = field(default_factory=dict)
    work: "dict[str, Pair]" = field(default_factory=dict)
    statistics: int = 0
    rearranges: bool = False
    copies: tuple[str, Expression] | None = None
    groups: "dict[str, Pair]" = field(default_factory=dict)

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The modifiers that it takes, besides that of panels."""
        return (*self.work, *self.groups)


def load_tables(paths: list[Path]) -> dict[str, OperatorKind]:
    """Read operator tables; an operator of a later table replaces that of an earlier one.

    Raises SpecError with file and line.
    """
    kinds: dict[str, OperatorKind] = {}
    for path in paths:
        kinds |= _table(read_text(path), shown(path))
    return kinds


@functools.lru_cache(maxsize=20)
def _table(text: str, file: str) -> Mapping[str, OperatorKind]:
    document = parse_document(text, file)
    return MappingProxyType({name: _TableReader(document).kind(name, entry) for name, entry in document.data.items()})


class _TableReader:
    """Reads the entries of one table; errors name the line of the key."""

    def __init__(self, document: Document) -> None:
        self.document, self.arguments = document, ()

    def mapping(
        self, path: KeyPath, entry: object, allowed: tuple[str, ...], needed: bool = False
    ) -> Mapping[str, object]:
        if not isinstance(entry, dict):
            raise self.document.fault(path, f"expected a mapping of {', '.join(allowed)}, found {entry!r}")
        for key in entry:
            if key not in allowed:
                raise self.document.fault((*path, key), f"no such field{did_you_mean(str(key), allowed)}")
        for key in allowed if needed else ():
            if key not in entry:
                raise self.document.fault(path, f"the field {key!r} is missing")
        return entry

    def kind(self, name: str, entry: object) -> OperatorKind:
        entry = self.mapping((name,), entry, tuple(OperatorKind.__dataclass_fields__)[1:])
        self.arguments = tuple(self.listed((name, "arguments"), entry.get("arguments", [])))
        if not self.arguments or not all(isinstance(argument, str) for argument in self.arguments):
            raise self.document.fault((name,), "an operator must name its arguments, as in 'arguments: [x]'")
        readers = {
            **dict.fromkeys(("forward", "backward", "gradient"), self.effort),
            "shape": lambda path, value: self.choice(path, value, ("same", "contract", "lookup", "view", "free")),
            "linear": lambda path, value: self.choice(path, value, ("none", "each", "one")),
            "statistics": lambda path, value: self.typed(path, value, int, "a count"),
            "rearranges": lambda path, value: self.typed(path, value, bool, "true or false"),
            "saved": self.saved,
            "in_kernel": self.in_kernel,
            "panels": self.panels,
            "work": lambda path, value: self.pairs(path, value, "numerator, denominator"),
            "copies": self.copies,
            "groups": lambda path, value: self.pairs(path, value, "groups, groups of a token"),
        }
        values = {key: read((name, key), entry[key]) for key, read in readers.items() if key in entry}
        return OperatorKind(name, self.arguments, **values)

    def choice(self, path: KeyPath, value: object, choices: tuple[str, ...]) -> object:
        if value not in choices:
            raise self.document.fault(path, f"{value!r} is not one of {', '.join(choices)}")
        return value

    def typed(self, path: KeyPath, value: object, kind: type, what: str) -> object:
        if type(value) is not kind:
            raise self.document.fault(path, f"expected {what}, found {value!r}")
        return value

    def in_kernel(self, path: KeyPath, entry: object) -> InKernel:
        entry = self.mapping(path, entry, ("saved", "writes", "keeps_output"))
        return InKernel(
            self.saved((*path, "saved"), entry.get("saved", [])),
            self.formula((*path, "writes"), entry["writes"]) if "writes" in entry else None,
            bool(entry.get("keeps_output", False)),
        )

    def panels(self, path: KeyPath, entry: object) -> dict[str, Effort]:
        entry = self.mapping(path, entry, ("forward", "gradient"), needed=True)
        return {key: self.effort((*path, key), value) for key, value in entry.items()}

    def saved(self, path: KeyPath, entries: object) -> tuple[str | TableFormula, ...]:
        result: list[str | TableFormula] = []
        for index, entry in enumerate(self.listed(path, entries)):
            if isinstance(entry, dict):
                inner = self.mapping((*path, index), entry, ("bytes",), needed=True)
                result.append(self.formula((*path, index, "bytes"), inner["bytes"]))
            elif entry in (*self.arguments, "y"):
                result.append(entry)
            else:
                raise self.document.fault((*path, index), f"{entry!r} is neither an argument nor y")
        return tuple(result)

    def copies(self, path: KeyPath, entry: object) -> tuple[str, Expression]:
        inner = self.mapping(path, entry, ("tensor", "number"), needed=True)
        tensor = inner["tensor"]
        if tensor not in (*(argument.rstrip("?") for argument in self.arguments), "y"):
            raise self.document.fault((*path, "tensor"), f"{tensor!r} is neither an argument nor y")
        return str(tensor), self.over_dimensions((*path, "number"), str(inner["number"]))

    def pairs(self, path: KeyPath, entry: object, what: str) -> dict[str, Pair]:
        shares: dict[str, Pair] = {}
        for key, share in (entry if isinstance(entry, dict) else {"": None}).items():
            match share:
                case [int(numerator), int(denominator)] if numerator >= 0 and denominator > 0:
                    shares[key] = (numerator, denominator)
                case [str(numerator), str(denominator)]:
                    shares[key] = (self.over_dimensions(path, numerator), self.over_dimensions(path, denominator))
                case _:
                    raise self.document.fault((*path, key), f"expected 'modifier: [{what}]', found {share!r}")
        return shares

    def over_dimensions(self, path: KeyPath, source: str) -> Expression:
        return self.parsed(path, source, {})[1]

    def listed(self, path: KeyPath, entry: object) -> list[Any]:
        if not isinstance(entry, list):
            raise self.document.fault(path, f"expected a list, found {entry!r}")
        return entry

    def effort(self, path: KeyPath, entry: object) -> Effort:
        return Effort(
            **{key: self.formula((*path, key), value) for key, value in self.mapping(path, entry, NAMES).items()}
        )

    def formula(self, path: KeyPath, value: object) -> TableFormula:
        # Parsed once here with dummy sizes, so that a bad formula is an error of the table and not of a layer.
        tensors = [name.rstrip("?") for name in self.arguments] + ["y", "dy"] + ["dx"] * ("gradient" in path)
        formula, expr = self.parsed(path, value, dict.fromkeys(FUNCTIONS, dict.fromkeys(tensors, 1).__getitem__))
        for name in sorted(names(expr).difference(QUANTITIES)):
            quantities = ", ".join(QUANTITIES)
            raise self.document.fault(
                path, f"no quantity {name!r}{did_you_mean(name, QUANTITIES)} (there are {quantities})"
            )
        return formula

    def parsed(self, path: KeyPath, value: object, functions: Functions) -> tuple[TableFormula, Expression]:
        file, _, line = self.document.place(path).rpartition(":")
        formula = TableFormula(str(value), file, int(line))
        try:
            return formula, formula.resolve(functions)
        except NotationError as error:
            raise self.document.fault(path, f"{value!r} is not an expression ({error})") from None
