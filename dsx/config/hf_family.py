"""Families of Hugging Face checkpoints: how a config.json of one `model_type` becomes a model.

The name of a family file is the `model_type`, so a new family is a new file; families share what their base files
state. For a config of a family that dsx does not have, the error says how to extend the nearest one.

Formulas of a family are small expressions in config keys, such as ``hidden_size / num_attention_heads``, in a subset of
Python: names of keys, numbers, strings, True, False and None; ``+ - * // % **``; ``/``, which must leave no remainder;
comparisons, ``in``, ``and or not``, ``a if condition else b``, ``list[index]``, and the functions ``len``, ``min`` and
``max`` of a list. Reading the family file checks the syntax, so later errors come from the values of a config alone.
"""

import ast
import operator
import re
import reprlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from dsx.config.documents import Document, Plain
from dsx.config.load import stated_document
from dsx.config.schema import Count, FileKind, Spec, Total, validate
from dsx.config.search_path import names, packaged_model
from dsx.errors import SpecError, UnknownNameError

_LONGEST, _MOST_NODES = 2_000, 400  # characters, and parts with signs; packaged formulas have up to 132 and 27
_LARGEST = 10**18  # absolute value of a result; no size is as large


@dataclass(frozen=True)
class ConfigFormula:
    """An expression in config keys."""

    text: str
    tree: ast.expr
    names: frozenset[str]  # keys that it reads


def parse(value: Plain) -> ConfigFormula:
    """Return a string or a plain constant of YAML as a formula; raises ValueError for any other expression."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _LONGEST:
        raise ValueError(f"{text!r}: a formula has at most {_LONGEST:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "1 if x else2" is only a warning of Python
            tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not a formula: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):  # invalid characters, or nested too deeply
        raise ValueError(f"{text!r} is not a formula that can be read") from None
    if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
        raise ValueError(f"{text!r}: a formula has at most {_MOST_NODES} parts")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and not isinstance(node.value, str | int | float | None):
            raise ValueError(f"{text!r}: {node.value!r} is not part of a formula")
        if not isinstance(node, _KNOWN):
            raise ValueError(f"{text!r}: {type(node).__name__} is not part of a formula")
        if isinstance(node, ast.Dict) and node.keys:
            raise ValueError(f"{text!r}: the only object of a formula is the empty one, {{}}")
        if isinstance(node, ast.Call) and (_function(node) is None or len(node.args) != 1 or node.keywords):
            raise ValueError(f"{text!r}: the only functions of a formula are {', '.join(_FUNCTIONS)}, of one argument")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _FUNCTIONS.keys()
    return ConfigFormula(text, tree, frozenset(names))


def evaluate(formula: ConfigFormula, values: Mapping[str, Plain]) -> Plain:
    """Return the value of the formula for these values of its names.

    Raises SpecError, with the formula and the values, if it has none: a remainder, an index out of range.
    """
    try:
        return _value(formula.tree, values)
    except _Remainder as error:
        raise SpecError(f"{formula.text} = {error} leaves a remainder") from None
    except (TypeError, ArithmeticError, LookupError, ValueError) as error:
        actual = ", ".join(f"{name} = {reprlib.repr(values.get(name))}" for name in sorted(formula.names))
        raise SpecError(f"{formula.text} has no value where {actual}: {error}") from None


class _Remainder(ArithmeticError):
    """A division of whole numbers that leaves one."""


def _divide(a: Plain, b: Plain) -> Plain:
    if b == 0 or a % b:
        raise _Remainder(f"{a} / {b}")
    return a // b


def _power(a: Plain, b: Plain) -> Plain:
    # Python would compute a power of integers to any number of digits.
    if abs(a) > 1 and abs(b) > _LARGEST.bit_length():
        raise OverflowError(f"{a} ** {b} is too large")
    return a**b


def _of_numbers(apply: Callable[[Plain, Plain], Plain]) -> Callable[[Plain, Plain], Plain]:
    """Return arithmetic that accepts numbers alone: a string or a list times a number could be of any length."""

    def applied(a: Plain, b: Plain) -> Plain:
        if not (isinstance(a, int | float) and isinstance(b, int | float)):
            raise TypeError(f"{reprlib.repr(a)} and {reprlib.repr(b)} are not two numbers")
        result = apply(a, b)
        if not isinstance(result, int | float) or not abs(result) <= _LARGEST:
            raise OverflowError(f"the result is not a number up to {_LARGEST:,}")
        return result

    return applied


_BINARY: dict[type[ast.AST], Callable[[Plain, Plain], Plain]] = {
    ast.Add: _of_numbers(operator.add),
    ast.Sub: _of_numbers(operator.sub),
    ast.Mult: _of_numbers(operator.mul),
    ast.Div: _of_numbers(_divide),
    ast.FloorDiv: _of_numbers(operator.floordiv),
    ast.Mod: _of_numbers(operator.mod),
    ast.Pow: _of_numbers(_power),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_UNARY: dict[type[ast.AST], Callable[[Plain], Plain]] = {ast.Not: operator.not_, ast.USub: operator.neg}
_KNOWN = (
    *(*_BINARY, *_UNARY, ast.And, ast.Or, ast.Load),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Subscript),
    *(ast.Name, ast.Constant, ast.List, ast.Dict),
)


_FUNCTIONS: dict[str, Callable[[Plain], Plain]] = {"len": len, "min": min, "max": max}


def _function(node: ast.Call) -> Callable[[Plain], Plain] | None:
    return _FUNCTIONS.get(node.func.id) if isinstance(node.func, ast.Name) else None


def _value(node: ast.AST, values: Mapping[str, Plain]) -> Plain:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.List(elts=items):
            return [_value(item, values) for item in items]
        case ast.Dict():
            return {}
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_value(operand, values))
        case ast.BoolOp(op=op, values=parts):
            # The value is that of the first part that decides.
            decides = isinstance(op, ast.Or)
            for part in parts[:-1]:
                value = _value(part, values)
                if bool(value) is decides:
                    return value
            return _value(parts[-1], values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            operands = [_value(operand, values) for operand in (left, *others)]
            pairs = zip(ops, operands, operands[1:], strict=False)
            return all(_BINARY[type(op)](a, b) for op, a, b in pairs)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _value(body if _value(test, values) else other, values)
        case ast.Subscript(value=sequence, slice=index):
            return _value(sequence, values)[_value(index, values)]
        case ast.Call(args=[argument]) if (function := _function(node)) is not None:
            return function(_value(argument, values))
    raise TypeError(f"{type(node).__name__} is not part of a formula")


LAYER = "i"  # in the conditions of a layer: its position in its group, from 0

Expression = Annotated[ConfigFormula, BeforeValidator(parse)]
# The type of a key: count is a whole number from 1, whole a whole number from 0.
Holds = Literal["count", "whole", "flag", "text", "list", "section"]


class _FamilyPart(Spec):
    model_config = ConfigDict(arbitrary_types_allowed=True)


class KeySpec(_FamilyPart):
    """A key of the config that the family reads; `hidden_size: count` is short for `{holds: count}`."""

    holds: Holds
    default: Expression | None = None  # for a key that is absent or null; None: the key is required
    also: list[str] = Field(default_factory=list)  # other spellings
    each_of: Literal["layers", "sides"] = "layers"  # what a list in place of a number has an entry for


KeyOrType = Annotated[KeySpec, BeforeValidator(lambda value: {"holds": value} if isinstance(value, str) else value)]


class RuleSpec(_FamilyPart):
    """A condition that a config must satisfy."""

    rule: Expression
    says: str  # the error message for a config that breaks it


# Name -> condition; the first name whose condition holds counts. A name alone always holds.
FirstOf = Annotated[
    dict[str, Expression],
    Field(min_length=1),
    BeforeValidator(lambda value: {value: True} if isinstance(value, str) else value),
]


class LayersSpec(_FamilyPart):
    """Consecutive layers, each with the options whose conditions hold."""

    count: Expression = parse(1)
    # Names of conditions on a layer, which the conditions below may read: {attention: "pattern[i] == '*'"}.
    where: dict[str, Expression] = Field(default_factory=dict)
    kind: FirstOf
    options: dict[str, Expression] = Field(default_factory=dict)  # option -> condition
    blocks: dict[str, FirstOf] = Field(default_factory=dict)  # block parameter -> blocks; its default if none holds

    @property
    def conditions(self) -> list[ConfigFormula]:
        """All conditions; they may read the position of the layer."""
        choices = [self.kind, self.options, *self.blocks.values()]
        return [condition for choice in choices for condition in choice.values()]


class UnpricedSpec(_FamilyPart):
    """A key that changes the cost, but not in any layer definition."""

    what: str  # the cost that it changes
    unless: list[Plain] = Field(default_factory=list)  # values, besides null, that change nothing
    when: Expression = parse(True)  # a condition on other keys without which no value changes anything


class PublishedSpec(_FamilyPart):
    """The published number of parameters of one checkpoint."""

    when: Expression  # holds for the configs of that checkpoint
    total: Total
    rounding: Count = 1  # 10000000 for a total published as 20.91 billion
    source: str


class FamilySpec(_FamilyPart):
    """How to read a config of one `model_type`."""

    file_kind = FileKind("family", "a model family", "families/ in a folder of DSX_PATH", "families")

    source: str
    section: str | None = None  # the section of the config that describes the language model; None: the whole config
    keys: Annotated[dict[str, KeyOrType], Field(max_length=1_000)]
    # The names of rules and layers let an extending file replace them.
    require: dict[str, RuleSpec] = Field(default_factory=dict)  # name -> rule
    dimensions: dict[str, Expression]  # letter -> formula; a dimension of 0 is left out
    default_sequence_length: Expression
    layers: Annotated[dict[str, LayersSpec], Field(min_length=1)]  # name -> layers, first to last
    unpriced: dict[str, UnpricedSpec] = Field(default_factory=dict)  # key -> the cost that it changes
    no_cost: dict[str, list[str]] = Field(default_factory=dict)  # topic -> keys that change no cost
    other_head: Expression = parse(False)  # whether the head is not that of the published checkpoints
    published: list[PublishedSpec] = Field(default_factory=list)

    @model_validator(mode="after")
    def _keys_are_known(self) -> Self:
        shared = [
            *(rule.rule for rule in self.require.values()),
            *self.dimensions.values(),
            self.default_sequence_length,
            *(layers.count for layers in self.layers.values()),
            *(published.when for published in self.published),
            *(key.default for key in self.keys.values() if key.default),
            *(key.when for key in self.unpriced.values()),
            self.other_head,
        ]
        of_layers = {*self.keys, LAYER}
        known_to = [(shared, {*self.keys})]
        for layers in self.layers.values():
            known_to += [([*layers.where.values()], of_layers), (layers.conditions, of_layers | layers.where.keys())]
        for formulas, allowed in known_to:
            for formula in formulas:
                if unknown := sorted(formula.names - allowed):
                    raise ValueError(f"{formula.text!r} reads {unknown[0]!r}, which is not one of 'keys'")
        return self


def load_family(model_type: str) -> FamilySpec:
    """Return the family of a known `model_type`; raises SpecError with all faults of its file."""
    return validate(stated_document(FamilySpec, model_type), FamilySpec)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # of a file
_FEWEST_KEYS = 4  # that a family reads of a config to be near it
_LISTED = 12  # keys


def unknown_family(
    key: str, model_type: str, document: Document, section: str | None, part: dict[str, Plain]
) -> UnknownNameError:
    """Return the error for a config with an unknown `model_type`, which stands at `key`.

    `part` is what describes its language model: the whole config, or that `section`.
    """
    families = names("families", ".yaml")
    packaged = packaged_model(model_type.replace("_", "-"), names("models", ".yaml"))
    hint = [f" at {document.place((key,))}"]
    if packaged:
        hint.append(f"the packaged model {packaged!r} may be it: --model {packaged}")
    if _NAME.fullmatch(model_type):
        hint += _advice(model_type, section, {name for name, value in part.items() if value is not None} - {key})
    return UnknownNameError(key, model_type, families, "\n".join(hint))


def known_spellings(family: FamilySpec) -> set[str]:
    """Return the keys that a family reads, in all spellings, and those that it lists as unpriced or without cost."""
    read = {name for key, spec in family.keys.items() for name in (key, *spec.also)}
    return {*read, *family.unpriced, *(key for keys in family.no_cost.values() for key in keys)}


def _advice(model_type: str, section: str | None, keys: set[str]) -> list[str]:
    """Return the lines of a family file."""
    families = {name: load_family(name) for name in names("families", ".yaml")}
    near = {
        name: family
        for name, family in families.items()
        if sum(bool(keys & {key, *spec.also}) for key, spec in family.keys.items()) >= _FEWEST_KEYS
    }
    file = f"families/{model_type}.yaml in a folder of DSX_PATH adds it (docs/how-to/import-hf.md)"
    if not near:
        return [file]
    # Of equally near families the one with most checkpoints.
    name = min(near, key=lambda name: (_distance(near[name], keys), -len(near[name].published), name))
    lines = [f"extends: {name}", f'source: "config.json, model_type {model_type}"']
    lines += [f"section: {section}"] if section else []
    if missing := _missing(families[name], keys):
        defaults = (
            f"{key}: {{holds: {families[name].keys[key].holds}, default: FORMULA OF OTHER KEYS}}" for key in missing
        )
        lines.append(f"keys: {{{', '.join(defaults)}}}")
    unread = sorted(keys - known_spellings(families[name]))
    more = ", ..." if len(unread) > _LISTED else ""
    unsaid = [f"and what {name} does not say: {', '.join(unread[:_LISTED])}{more}"] if unread else []
    return [
        f"{file}; the nearest family by its keys is {name}, so begin with:",
        *(f"  {line}" for line in lines),
        *unsaid,
    ]


def _missing(family: FamilySpec, keys: set[str]) -> list[str]:
    """Return the keys that the family requires and the config lacks."""
    return [key for key, spec in family.keys.items() if spec.default is None and not keys & {key, *spec.also}]


def _distance(family: FamilySpec, keys: set[str]) -> int:
    """Return how many keys either lacks of the other, and of how many the family takes a value that is not nothing."""
    absent = [spec.default for key, spec in family.keys.items() if spec.default and not keys & {key, *spec.also}]
    assumed = sum(bool(evaluate(default, {})) for default in absent if not default.names)
    return len(_missing(family, keys)) + len(keys - known_spellings(family)) + assumed
