"""Checks the shapes that annotations state while tests run: of arguments, of results, and of the fields of records.

In a call an axis of one name has one size: in all arguments, in the arrays of their records, and in the result. What
states no shape is left to the type checker; of the rest every item of a sequence and every field of a record counts.
That is a third of the time of tests/cost, and other tests would only find the same again, so it is for those alone.
"""

import ast
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
import jaxtyping
import numpy as np

from dsx import records

Check = Callable[[typing.Any], str]  # why a value is not what its annotation says, or ""


def install(package: str) -> None:
    """Make the functions of a package, which is not imported yet, such that they can be checked."""
    for name in ("Bool", "Float", "Int", "Real"):
        setattr(records, name, getattr(jaxtyping, name))
    records.Array = jax.Array | np.ndarray
    records.ArrayLike = records.Array | float
    sys.meta_path.insert(0, _Finder(package))
    jaxtyping.config.update("jaxtyping_disable", True)


@dataclasses.dataclass(frozen=True)
class _Finder(importlib.abc.MetaPathFinder):
    package: str

    def find_spec(self, fullname: str, path: typing.Any = None, target: typing.Any = None) -> typing.Any:
        if fullname != self.package and not fullname.startswith(f"{self.package}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


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


@contextmanager
def checking() -> Iterator[None]:
    """Check every call while this lasts."""
    jaxtyping.config.update("jaxtyping_disable", False)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", True)


def jaxtyped(function: Callable) -> Callable:
    """Return the function such that its calls are checked while `checking` lasts."""
    return jaxtyping.jaxtyped(function, typechecker=checked)


def checked(function: Callable) -> Callable:
    """Return the function with its arguments checked, or its result.

    Of each function jaxtyping hands over two: one for the arguments, and then one that states and returns the result.
    """
    signature = inspect.signature(function)
    if signature.return_annotation not in (typing.Any, signature.empty):
        return _with_result_checked(function, check_of(signature.return_annotation))
    checks = {name: check_of(parameter.annotation) for name, parameter in signature.parameters.items()}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            checks[name] = _of_items(checks[name])
    return _with_arguments_checked(function, signature, {name: check for name, check in checks.items() if check})


def _with_result_checked(function: Callable, check: Check | None) -> Callable:
    @functools.wraps(function)
    def with_check(*args, **kwargs):
        result = function(*args, **kwargs)
        _require("the result", check(result))
        return result

    return with_check if check else function


def _with_arguments_checked(function: Callable, signature: inspect.Signature, checks: Mapping[str, Check]) -> Callable:
    @functools.wraps(function)
    def with_check(*args, **kwargs):
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in checks:
                _require(name, checks[name](value))
        return function(*args, **kwargs)

    return with_check if checks else function


def _require(name: str, fault: str) -> None:
    if fault:
        raise TypeError(f"{name}: {fault}")


_of_records: dict[type, Check | None] = {}


def check_of(annotation: typing.Any) -> Check | None:
    """Return the check of an annotation; None if it states no shape."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return annotation.__instancecheck_str__  # what isinstance asks, and why not
    if origin in (typing.Union, types.UnionType):
        return _of_union(args)
    if origin in (list, Sequence) or (origin is tuple and args[-1] is Ellipsis):
        return _of_items(check_of(args[0]))
    if origin is tuple:
        checks = [check_of(arg) for arg in args]
        return functools.partial(_fault_of_tuple, checks) if any(checks) else None
    if origin in (dict, Mapping):
        of_values = _of_items(check_of(args[1]))
        return of_values and (lambda value: of_values(value.values()))
    if dataclasses.is_dataclass(annotation) or hasattr(annotation, "_fields"):
        return _of_record(annotation)
    return None


def _of_record(cls: type) -> Check | None:
    if cls not in _of_records:
        checks: dict[str, Check] = {}
        _of_records[cls] = functools.partial(_fault_of_record, cls, checks)  # a record may hold others of its class
        found = {name: check_of(annotation) for name, annotation in typing.get_type_hints(cls).items()}
        checks |= {name: check for name, check in found.items() if check}
        if not checks:
            _of_records[cls] = None
    return _of_records[cls]


def _of_union(members: Iterable[typing.Any]) -> Check | None:
    checks = {member: check_of(member) for member in members}
    plain = tuple(member for member, check in checks.items() if not check)
    if len(plain) == len(checks):
        return None
    plain += (int,) if float in plain else ()
    return functools.partial(_fault_of_union, plain, [check for check in checks.values() if check])


def _of_items(check: Check | None) -> Check | None:
    return check and functools.partial(_fault_of_items, check)


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


def _fault_of_items(check: Check, value: Iterable[typing.Any]) -> str:
    return next((f"[{index}]: {fault}" for index, item in enumerate(value) if (fault := check(item))), "")


def _fault_of_record(cls: type, checks: Mapping[str, Check], value: typing.Any) -> str:
    if not isinstance(value, cls):
        return f"this value is not a {cls.__name__}"
    return next((f"{name}: {fault}" for name, check in checks.items() if (fault := check(getattr(value, name)))), "")
