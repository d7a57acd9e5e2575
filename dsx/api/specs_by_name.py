"""Sweeps stated in Python, whose models, clusters and assumptions may be given by content.

A result set refers to its files by name, and stores their content. So content is replaced by its name here, and
returned separately.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dsx.errors import SpecError
from dsx.spec.assumptions import load_assumptions
from dsx.spec.cluster import load_cluster
from dsx.spec.load import Given, Spec
from dsx.spec.model import load_model

_LOADERS = {"model": load_model, "cluster": load_cluster, "assumptions": load_assumptions}

Contents = dict[tuple[str, str], Given]  # by key of the sweep, and name


def by_name(stated: Mapping[str, object]) -> tuple[dict[str, Any], Contents]:
    """Return a sweep in which names replace content, and the content by name.

    Raises SpecError for invalid content, or if two entries have the same name.
    """
    contents: Contents = {}

    def named(key: str, given: object) -> Any:
        if key not in _LOADERS or not isinstance(given, Mapping | Spec):
            return given
        name = _LOADERS[key](given).name
        contents[key, name] = given
        return name

    def all_named(key: str, several: Sequence[object]) -> list[Any]:
        names = [named(key, each) for each in several]
        for name in names:
            if (key, name) in contents and names.count(name) > 1:
                raise SpecError(f"sweep: {key}: two entries are called {name!r}: give one of them another 'name'")
        return names

    sweep = {
        key: all_named(key, given) if isinstance(given, list | tuple) and key in _LOADERS else named(key, given)
        for key, given in stated.items()
    }
    return sweep, contents
