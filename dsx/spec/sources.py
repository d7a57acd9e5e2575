"""The sources that files state for their values, which validation drops.

A file states a value with its source, ``{value: 80 GB, source: "data sheet"}`` (`dsx.spec.value_types`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dsx.spec.assumptions import AssumptionsSpec, load_assumptions
from dsx.spec.cluster import ClusterSpec, load_cluster
from dsx.spec.document import KeyPath, is_sourced, merged
from dsx.spec.load import Given, statements
from dsx.spec.stack import with_stack


class SourcedValue(NamedTuple):
    """A value as a file states it, by its dotted path, with where it is from."""

    path: str
    value: Any
    source: str


def assumption_sources(given: Given, near: Path | None = None) -> tuple[AssumptionsSpec, list[SourcedValue]]:
    """Return an assumption set, and those of its values that state a source; those of its stack are among them.

    Raises what `load_assumptions` raises.
    """
    stated = tuple(statements("assumptions", "assumptions", AssumptionsSpec, given, near))
    return load_assumptions(given, (), near), [*_sourced(merged(with_stack(stated)).data)]


def cluster_sources(given: Given, near: Path | None = None) -> tuple[ClusterSpec, list[SourcedValue]]:
    """Return a cluster, and those of its values that state a source; raises what `load_cluster` raises."""
    stated = statements("clusters", "cluster", ClusterSpec, given, near)
    return load_cluster(given, (), near), [*_sourced(merged(stated).data)]


def _sourced(data: Any, path: KeyPath = ()) -> Iterator[SourcedValue]:
    if is_sourced(data):
        if source := data.get("source"):
            yield SourcedValue(".".join(map(str, path)), data["value"], str(source))
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _sourced(value, (*path, key))
