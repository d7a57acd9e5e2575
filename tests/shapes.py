"""Checks the shapes that annotations state while tests run: of arguments, of results, and of the fields of records.

In a call an axis of one name has one size: in all arguments, in the arrays of their records, and in the result. What
states no shape is left to the type checker; of the rest every item of a sequence and every field of a record counts.
That takes time, and other tests would only find the same again. So the tests of a package check the functions of that
package alone, and of each function its first calls in a test.
"""

import ast
import builtins
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
import jaxtyping
import numpy as np
from jaxtyping._storage import pop_shape_memo, push_shape_memo

from dsx import records

Check = Callable[[typing.Any], str]  # why a value is not what its annotation says, or ""


def install(*packages: str) -> None:
    """Make the functions of packages, which are not imported yet, such that they can be checked."""
    for name in ("Bool", "Float", "Int", "Real", "Shaped"):
        setattr(records, name, getattr(jaxtyping, name))
    records.Array = np.ndarray | jax.Array
    records.ArrayLike = records.Array | float
    sys.meta_path.insert(0, _Finder(packages))


@dataclasses.dataclass(frozen=True)
class _Finder(importlib.abc.MetaPathFinder):
    packages: tuple[str, ...]

    def find_spec(self, fullname: str, path: typing.Any = None, target: typing.Any = None) -> typing.Any:
        if _package_of(fullname) not in self.packages:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def _package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


class _Loader(importlib.machinery.SourceFileLoader):
    """Decorates functions and methods; jaxtyping's hook does so with inner functions too, anew in every call."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        for owner in (tree, *(statement for statement in tree.body if isinstance(statement, ast.ClassDef))):
            for function in owner.body:
                if isinstance(function, ast.FunctionDef):
                    decorator = ast.parse(f"__import__({__name__!r}).jaxtyped", mode="eval").body
                    function.decorator_list.append(ast.copy_location(decorator, function))
        return compile(tree, path, "exec", dont_inherit=True)


_CALLS = 8  # of a function in a test: more would find the same again
_checked: set[str] = set()  # packages
_calls: Counter[Callable] = Counter()  # that were checked


@contextmanager
def checking(package: str) -> Iterator[None]:
    """Check calls of the functions of an installed package while this lasts."""
    _calls.clear()
    _checked.add(package)
    try:
        yield
    finally:
        _checked.discard(package)


def jaxtyped(function: Callable) -> Callable:
    """Return the function such that its calls are checked while `checking` of its package lasts."""
    package, with_checks = _package_of(function.__module__), None

    @functools.wraps(function)
    def call(*args, **kwargs):
        nonlocal with_checks
        if package not in _checked or _calls[function] >= _CALLS:
            return function(*args, **kwargs)
        _calls[function] += 1
        if with_checks is None:  # many are never checked in a process, and this takes a while
            with_checks = checked(function)
        return with_checks(*args, **kwargs)

    return call


def checked(function: Callable) -> Callable:
    """Return the function with its arguments and its result checked; itself if its annotations state no shape.

    `jaxtyping.jaxtyped` would do it in five times the time.
    """
    hints = _hints(function)
    checks = {name: check for name, hint in hints.items() if (check := check_of(hint))}
    of_result = checks.pop("return", None)
    signature = inspect.signature(function)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    for name in checks:
        if kinds[name] is inspect.Parameter.VAR_POSITIONAL:
            checks[name] = _of_items(checks[name])
    positional = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}

    @functools.wraps(function)
    def call(*args, **kwargs):
        if len(positional) == len(kinds):
            arguments = dict(zip(positional, args, strict=False)) | kwargs
        else:
            arguments = signature.bind(*args, **kwargs).arguments
        push_shape_memo(defaults | arguments)
        try:
            for name, check in checks.items():
                if name in arguments:
                    _require(function, f"parameter {name!r}", check(arguments[name]))
            result = function(*args, **kwargs)
            if of_result:
                _require(function, "return value", of_result(result))
            return result
        finally:
            pop_shape_memo()

    return call if checks or of_result else function


def _require(function: Callable, name: str, fault: str) -> None:
    if fault:
        raise jaxtyping.TypeCheckError(f"{name} of {function.__module__}.{function.__qualname__}: {fault}")


_of_records: dict[tuple[type, str], Check | None] = {}
_SCALARS = {float: (int,), int: (np.integer,), bool: (np.bool,)}  # what else is one number of a type


def check_of(annotation: typing.Any, over: str = "") -> Check | None:
    """Return the check of an annotation; None if it states no shape.

    The arrays of `Over[Record, "points ... keys"]` have axes before those that the record states, and others, after the
    dots, in place of its plans; "keys=works" after them puts works in place of keys, and "| None" lets a field be None.
    Dots alone: the record shares no axes with others. Nothing: it states no shape here.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        check = check_of(args[0], "" if args[1] == "..." else args[1]) if args[1] else None
        return functools.partial(_fault_of_its_own, check) if check and args[1] == "..." else check
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        if over:
            axes = _axes_over(annotation.dim_str, *over.removesuffix("| None").split("..."))
            annotation = annotation.dtype[annotation.array_type, axes]
        return functools.partial(_fault_of_array, annotation)
    if origin in (typing.Union, types.UnionType):
        return _of_union({member: check_of(member, over) for member in args})
    if origin in (list, Sequence) or (origin is tuple and args[-1] is Ellipsis):
        return _of_items(check_of(args[0], over))
    if origin is tuple:
        checks = [check_of(arg, over) for arg in args]
        return functools.partial(_fault_of_tuple, checks) if any(checks) else None
    if origin in (dict, Mapping):
        of_values = _of_items(check_of(args[1], over))
        return of_values and (lambda value: of_values(value.values()))
    return _of_record(annotation, over) if _is_record(annotation) else None


def _is_record(annotation: typing.Any) -> bool:
    # An annotation over a record has the attributes of the record.
    return isinstance(annotation, type) and (dataclasses.is_dataclass(annotation) or hasattr(annotation, "_fields"))


def _axes_over(axes: str, leading: str, new: str) -> str:
    named = dict(axis.split("=") for axis in new.split() if "=" in axis)
    of_plans = " ".join(axis for axis in new.split() if "=" not in axis)
    names = {"plans": of_plans or "*#plans", **named}
    return " ".join([leading, *(names.get(axis.strip("*#"), axis) for axis in axes.split())])


def _of_record(cls: type, over: str) -> Check | None:
    if (cls, over) not in _of_records:
        checks: dict[str, Check] = {}
        # A record may hold others of its class.
        _of_records[cls, over] = functools.partial(_fault_of_record, cls, checks)
        for name, hint in _hints(cls).items():
            hint = hint | None if over.endswith("| None") else hint
            if _reaches_shape(hint, set()) and (check := check_of(hint, over)):
                checks[name] = check
        if not checks:
            _of_records[cls, over] = None
    return _of_records[cls, over]


@functools.cache
def _hints(owner: type | Callable) -> dict[str, typing.Any]:
    names = _Names(vars(sys.modules[owner.__module__]))
    return typing.get_type_hints(owner, None, names, include_extras=True)


class _Names(dict):
    """The names of a module; what it imports for a type checker alone states no shape."""

    def __missing__(self, name: str) -> type:
        if hasattr(builtins, name):
            raise KeyError(name)
        return object


def _reaches_shape(annotation: typing.Any, seen: set[typing.Any]) -> bool:
    """Return whether an annotation states a shape, besides those `seen`."""
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    unchecked = typing.get_origin(annotation) is typing.Annotated and not typing.get_args(annotation)[1]
    if unchecked or annotation in seen or typing.get_origin(annotation) is Callable:
        return False
    seen.add(annotation)
    parts = _hints(annotation).values() if _is_record(annotation) else typing.get_args(annotation)
    return any(_reaches_shape(part, seen) for part in parts)


def _of_union(checks: Mapping[typing.Any, Check | None]) -> Check | None:
    plain = tuple(member for member, check in checks.items() if not check)
    if len(plain) == len(checks):
        return None
    plain = tuple(typing.get_origin(member) or member for member in plain)
    plain += tuple(scalar for member in plain for scalar in _SCALARS.get(member, ()))
    return functools.partial(_fault_of_union, plain, [check for check in checks.values() if check])


def _of_items(check: Check | None) -> Check | None:
    return check and functools.partial(_fault_of_items, check)


def _fault_of_array(annotation: type[jaxtyping.AbstractArray], value: typing.Any) -> str:
    """Return why a value is no such array: what isinstance asks. A scalar of NumPy is an array without axes."""
    return annotation.__instancecheck_str__(np.asarray(value) if isinstance(value, np.generic) else value)


def _fault_of_union(plain: tuple[type, ...], checks: Sequence[Check], value: typing.Any) -> str:
    if isinstance(value, plain):
        return ""
    faults: list[str] = []
    for check in checks:
        faults.append(check(value))
        if not faults[-1]:
            return ""
    return "; ".join(faults)


def _fault_of_tuple(checks: Sequence[Check | None], value: tuple) -> str:
    if len(value) != len(checks):
        return f"this value has {len(value)} items, not {len(checks)}"
    pairs = enumerate(zip(checks, value, strict=True))
    return next((f"[{index}]: {fault}" for index, (check, item) in pairs if check and (fault := check(item))), "")


def _fault_of_its_own(check: Check, value: typing.Any) -> str:
    with jaxtyping.jaxtyped("context"):
        return check(value)


def _fault_of_items(check: Check, value: Iterable[typing.Any]) -> str:
    return next((f"[{index}]: {fault}" for index, item in enumerate(value) if (fault := check(item))), "")


def _fault_of_record(cls: type, checks: Mapping[str, Check], value: typing.Any) -> str:
    if not isinstance(value, cls):
        return f"this value is not a {cls.__name__}"
    return next((f"{name}: {fault}" for name, check in checks.items() if (fault := check(getattr(value, name)))), "")
