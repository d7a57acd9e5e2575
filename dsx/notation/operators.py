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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from dsx.config.documents import Document, parse_document, read_text
from dsx.config.search_path import shown
from dsx.errors import NotationError, SpecError, did_you_mean
from dsx.notation.expressions import names, parts
from dsx.notation.syntax import LineReader, Place, parse_expression

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

    def resolve(self, functions: dict[str, Callable[[str], Any]]) -> Any:
        """Return the expression over dimensions and degrees; `functions` gives sizes by argument name."""
        line = LineReader(self.source, self.file, self.line)
        result = parse_expression(line, functions)
        line.finish()
        if (found := parts(result)) > _MOST_PARTS:
            raise Place(self.file, self.line, 1).error(
                f"with the sizes of its tensors substituted, the formula has {found:,} numbers and dimensions; at most "
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

    saved: tuple["str | TableFormula", ...] = ()
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
    saved: tuple["str | TableFormula", ...] = ()
    in_kernel: InKernel | None = None
    panels: "dict[str, Effort]" = field(default_factory=dict)
    work: "dict[str, tuple[Any, Any]]" = field(default_factory=dict)
    statistics: int = 0
    rearranges: bool = False
    copies: tuple[str, Any] | None = None
    groups: "dict[str, tuple[Any, Any]]" = field(default_factory=dict)

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
        self.document = document

    def fail(self, path: tuple[Any, ...], message: str) -> SpecError:
        return self.document.fault(path, message)

    def mapping(
        self, path: tuple[Any, ...], entry: Any, allowed: tuple[str, ...], needed: bool = False
    ) -> dict[str, Any]:
        if not isinstance(entry, dict):
            raise self.fail(path, f"expected a mapping of {', '.join(allowed)}, found {entry!r}")
        for key in entry:
            if key not in allowed:
                raise self.fail((*path, key), f"no such field{did_you_mean(str(key), allowed)}")
        for key in allowed if needed else ():
            if key not in entry:
                raise self.fail(path, f"the field {key!r} is missing")
        return entry

    def kind(self, name: str, entry: Any) -> OperatorKind:
        known = tuple(OperatorKind.__dataclass_fields__)[1:]
        entry = self.mapping((name,), entry, known)
        self.arguments = arguments = tuple(self.listed((name, "arguments"), entry.get("arguments", [])))
        if not arguments or not all(isinstance(argument, str) for argument in arguments):
            raise self.fail((name,), "an operator must name its arguments, as in 'arguments: [x]'")
        values: dict[str, Any] = {"name": name, "arguments": arguments}
        for key in ("forward", "backward", "gradient"):
            if key in entry:
                values[key] = self.effort((name, key), entry[key])
        for key, choices in (
            ("shape", ("same", "contract", "lookup", "view", "free")),
            ("linear", ("none", "each", "one")),
        ):
            if key in entry:
                if entry[key] not in choices:
                    raise self.fail((name, key), f"{entry[key]!r} is not one of {', '.join(choices)}")
                values[key] = entry[key]
        for key, kind, what in (("statistics", int, "a count"), ("rearranges", bool, "true or false")):
            if key in entry:
                if type(entry[key]) is not kind:
                    raise self.fail((name, key), f"expected {what}, found {entry[key]!r}")
                values[key] = entry[key]
        values["saved"] = self.saved((name, "saved"), entry.get("saved", []), arguments)
        if "in_kernel" in entry:
            inner = self.mapping((name, "in_kernel"), entry["in_kernel"], ("saved", "writes", "keeps_output"))
            values["in_kernel"] = InKernel(
                self.saved((name, "in_kernel", "saved"), inner.get("saved", []), arguments),
                self.formula((name, "in_kernel", "writes"), inner["writes"]) if "writes" in inner else None,
                bool(inner.get("keeps_output", False)),
            )
        if "panels" in entry:
            inner = self.mapping((name, "panels"), entry["panels"], ("forward", "gradient"), needed=True)
            values["panels"] = {key: self.effort((name, "panels", key), value) for key, value in inner.items()}
        if "work" in entry:
            values["work"] = self.pairs((name, "work"), entry["work"], "numerator, denominator")
        if "copies" in entry:
            values["copies"] = self.copies((name, "copies"), entry["copies"], arguments)
        if "groups" in entry:
            values["groups"] = self.pairs((name, "groups"), entry["groups"], "groups, groups of a token")
        return OperatorKind(**values)

    def saved(self, path: tuple[Any, ...], entries: list[Any], arguments: tuple[str, ...]) -> tuple[Any, ...]:
        result: list[Any] = []
        for index, entry in enumerate(self.listed(path, entries)):
            if isinstance(entry, dict):
                inner = self.mapping((*path, index), entry, ("bytes",), needed=True)
                result.append(self.formula((*path, index, "bytes"), inner["bytes"]))
            elif entry in (*arguments, "y"):
                result.append(entry)
            else:
                raise self.fail((*path, index), f"{entry!r} is neither an argument nor y")
        return tuple(result)

    def copies(self, path: tuple[Any, ...], entry: Any, arguments: tuple[str, ...]) -> tuple[str, Any]:
        inner = self.mapping(path, entry, ("tensor", "number"), needed=True)
        if inner["tensor"] not in (*(argument.rstrip("?") for argument in arguments), "y"):
            raise self.fail((*path, "tensor"), f"{inner['tensor']!r} is neither an argument nor y")
        return inner["tensor"], self.over_dimensions((*path, "number"), str(inner["number"]))

    def pairs(self, path: tuple[Any, ...], entry: Any, what: str) -> dict[str, tuple[Any, Any]]:
        shares: dict[str, tuple[Any, Any]] = {}
        for key, share in (entry if isinstance(entry, dict) else {"": None}).items():
            match share:
                case [int(numerator), int(denominator)] if numerator >= 0 and denominator > 0:
                    shares[key] = (numerator, denominator)
                case [str(numerator), str(denominator)]:
                    shares[key] = (self.over_dimensions(path, numerator), self.over_dimensions(path, denominator))
                case _:
                    raise self.fail((*path, key), f"expected 'modifier: [{what}]', found {share!r}")
        return shares

    def over_dimensions(self, path: tuple[Any, ...], source: str) -> Any:
        file, _, line = self.document.place(path).rpartition(":")
        try:
            return TableFormula(source, file, int(line)).resolve({})
        except NotationError as error:
            raise self.fail(path, f"{source!r} is not an expression ({error})") from None

    def listed(self, path: tuple[Any, ...], entry: Any) -> list[Any]:
        if not isinstance(entry, list):
            raise self.fail(path, f"expected a list, found {entry!r}")
        return entry

    def effort(self, path: tuple[Any, ...], entry: Any) -> Effort:
        entry = self.mapping(path, entry, NAMES)
        return Effort(**{key: self.formula((*path, key), value) for key, value in entry.items()})

    def formula(self, path: tuple[Any, ...], value: Any) -> TableFormula:
        file, _, line = self.document.place(path).rpartition(":")
        formula = TableFormula(str(value), file, int(line))
        # Parsed once here with dummy sizes, so that a bad formula is an error of the table and not of a layer.
        tensors = [name.rstrip("?") for name in self.arguments] + ["y", "dy"] + ["dx"] * ("gradient" in path)

        def known(name: str) -> int:
            if name not in tensors:
                raise KeyError(name)
            return 1

        try:
            free = names(formula.resolve(dict.fromkeys(FUNCTIONS, known)))
        except NotationError as error:
            raise self.fail(path, f"{value!r} is not an expression ({error})") from None
        for name in sorted(free.difference(QUANTITIES)):
            quantities = ", ".join(QUANTITIES)
            raise self.fail(path, f"no quantity {name!r}{did_you_mean(name, QUANTITIES)} (there are {quantities})")
        return formula
