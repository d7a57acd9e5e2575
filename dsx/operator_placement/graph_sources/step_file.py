"""A step from a Python file: `FILE.py:NAME`, where NAME is a function that returns a step and its shapes."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from dsx.errors import DsxError, InputError, did_you_mean
from dsx.remarks import remark

Step = tuple[Callable[..., Any], tuple[Any, ...]]  # a step, and its arguments as shapes


def load_step(text: str) -> Step:
    """Return the step that a function of a file returns, `FILE.py:NAME`, and the shapes of its arguments.

    The function is called without arguments and returns (step, shapes); shapes that are no tuple are one argument. Its
    folder can be imported from meanwhile. Raises InputError, which names file and function.
    """
    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise InputError(f"{text!r} is no step: FILE.py:NAME is wanted, with a function that returns (step, shapes)")
    path = Path(file)
    if not path.is_file():
        near = did_you_mean(path.name, [one.name for one in path.parent.glob("*.py")])
        raise InputError(f"{text}: there is no file {file!r}{near}")
    remark(f"{file} is run as it is, with all that it does")
    with _importable(path.parent), _reported(f"{text}: "):
        module = _loaded(path)
        made = getattr(module, name, None)
        if not callable(made):
            near = did_you_mean(name, [one for one, value in vars(module).items() if callable(value)])
            raise InputError(f"{file} has no function {name!r}{near}")
        found = made()
    if not (isinstance(found, tuple) and len(found) == 2 and callable(found[0])):
        returned = f"a tuple of {len(found)}" if isinstance(found, tuple) else f"{type(found).__name__}"
        raise InputError(f"{text} returns no step but {returned}: (step, shapes) is wanted, a function and its shapes")
    step, shapes = found
    arguments = shapes if isinstance(shapes, tuple) else (shapes,)
    for path_of, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]:
        if not isinstance(leaf, int | float | complex) and not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            place = jax.tree_util.keystr(path_of)
            raise InputError(f"{text}: shapes{place} is {leaf!r:.60}; a jax.ShapeDtypeStruct or an array is wanted")
    return step, arguments


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules of a folder be imported; they are forgotten afterwards, since other folders may have such names."""
    before = {*sys.modules}
    own = str(folder.resolve())
    sys.path.insert(0, own)
    try:
        yield
    finally:
        sys.path.remove(own)
        for name in {*sys.modules} - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().parent == Path(own):
                del sys.modules[name]


@contextmanager
def _reported(place: str) -> Iterator[None]:
    """Turn what a file raises into an InputError with its place."""
    try:
        yield
    except DsxError:
        raise
    except (Exception, SystemExit) as error:
        first = next(iter(str(error).splitlines()), "")
        raise InputError(f"{place}{type(error).__name__}: {first}") from None


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"step_of_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module
