"""What is assumed: the values of the assumption set and of the clusters, each with its source.

A manifest has the values without their sources, which the files of today state. A source is shown only where the file
of today has the value that was priced.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dsx.display.manifest_text import stated_text
from dsx.errors import InputError
from dsx.reporting.markup import Markup, element, folded, markup, table
from dsx.results.manifest import Manifest
from dsx.spec.load import Given
from dsx.spec.sources import SourcedValue, assumption_sources, cluster_sources
from dsx.units import exact_quantity, stated_quantity

_Read = Callable[[Given, Path | None], tuple[BaseModel, list[SourcedValue]]]
_CHANGED = "stated by the sweep"
_UNKNOWN = "no source in a file of today"


def stated_values(manifest: Manifest) -> Markup:
    """Return the tables of the assumption set and of each cluster, and the source of the model."""
    spec, resolved = manifest.spec, manifest.spec["resolved"]
    near = Path(manifest.spec_file) if manifest.spec_file else None
    named = spec["cluster"] if isinstance(spec["cluster"], list) else [spec["cluster"]]
    parts = [_file("Assumption set", resolved["assumptions"], _today(assumption_sources, spec["assumptions"], near))]
    for given, content in zip(named, resolved["clusters"], strict=True):
        parts.append(_file("Cluster", content, _today(cluster_sources, given, near)))
    model = resolved["model"]
    source = f": {model['source']}" if model.get("source") else ""
    return markup(element("p", f"Model {model['name']}{source}."), parts)


def _today(read: _Read, given: Any, near: Path | None) -> tuple[Mapping[str, Any], Iterable[SourcedValue]]:
    """Return the content of a file as a manifest would have it, and its sources; nothing if it cannot be read."""
    try:
        content, sourced = read(given, near)
    except InputError:
        return {}, ()
    return content.model_dump(mode="json"), sourced


def _file(kind: str, content: Mapping[str, Any], today: tuple[Mapping[str, Any], Iterable[SourcedValue]]) -> Markup:
    there, sourced = today
    sources = {one.path: one.source for one in sourced}
    values = dict(_leaves(content, sources))
    rows = [
        [path, stated_text(value), _source(path, value, there, sources)]
        for path, value in values.items()
        if path not in ("name", "description", "source")
    ]
    said = [content[key] for key in ("description", "source") if content.get(key)]
    summary = f"{kind} {content['name']}: {len(rows)} values"
    return folded(
        summary,
        element("p", " Source: ".join(said)) if said else "",
        table(["field", "value", "source"], rows, summary, numbers=False),
    )


def _leaves(value: Any, whole: Mapping[str, str], path: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the values of a file by dotted path; lists, and what has a source as a whole, are one value."""
    if isinstance(value, dict) and path not in whole:
        for key, inner in value.items():
            yield from _leaves(inner, whole, f"{path}.{key}" if path else key)
    elif value not in (None, [], ""):
        yield path, value


def _source(path: str, value: Any, there: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    at: Any = there
    for key in path.split("."):
        at = at.get(key) if isinstance(at, Mapping) else None
    if there and at != value:
        return _CHANGED
    return sources.get(path, "" if there else _UNKNOWN)


def _exact(text: str) -> str:
    """Return a quantity as people write it, so that it reads back exactly; any other text unchanged."""
    return text if (found := stated_quantity(text)) is None else exact_quantity(*found)


def assignments(manifest: Manifest) -> list[str]:
    """Return what the sweep was told by --set, as far as its files of today tell: FIELD=VALUE each.

    Of several clusters nothing is said, since --set holds for all of them.
    """
    spec, resolved = manifest.spec, manifest.spec["resolved"]
    near = Path(manifest.spec_file) if manifest.spec_file else None
    files = [("assumptions", resolved["assumptions"], _today(assumption_sources, spec["assumptions"], near))]
    if len(resolved["clusters"]) == 1:
        given = spec["cluster"][0] if isinstance(spec["cluster"], list) else spec["cluster"]
        files.append(("cluster", resolved["clusters"][0], _today(cluster_sources, given, near)))
    return [
        f"{target}.{path}={_exact(value) if isinstance(value, str) else json.dumps(value)}"
        for target, content, (there, sourced) in files
        if there
        for path, value in _leaves(content, {one.path: "" for one in sourced})
        if _source(path, value, there, {}) == _CHANGED
    ]
