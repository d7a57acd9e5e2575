"""What a report assumes: the values of the assumption set and of the clusters, each with its source.

A file states a value with its source, ``{value: 80 GB, source: "data sheet"}`` (`dsx.config.values`), which validation
drops. So a manifest has the values without their sources, which the files of today state. A source is shown only where
the file of today has the value that was priced.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.cluster_file import ClusterSpec, load_cluster
from dsx.config.documents import KeyPath, is_sourced, merged
from dsx.config.load import Given, statements
from dsx.config.stack import with_stack
from dsx.errors import InputError
from dsx.pictures.html.markup import Markup, element, folded, markup, table
from dsx.results.manifest import Manifest
from dsx.tables.job import stated_text
from dsx.units import exact_quantity, stated_quantity

Sources = Mapping[str, str]  # of values, by their dotted path
_Read = Callable[[Given, Path | None], tuple[BaseModel, Sources]]
_CHANGED = "stated by the sweep"
_UNKNOWN = "no source in a file of today"


def assumption_sources(file: Given, near: Path | None = None) -> tuple[AssumptionsSpec, Sources]:
    """Return an assumption set, and the sources of its values and of those of its stack, as far as files state them.

    Raises what `load_assumptions` raises.
    """
    statement = tuple(statements(AssumptionsSpec, file, near))
    return load_assumptions(file, (), near), dict(_sources(merged(with_stack(statement)).data))


def cluster_sources(file: Given, near: Path | None = None) -> tuple[ClusterSpec, Sources]:
    """Return a cluster, and the sources of its values; raises what `load_cluster` raises."""
    statement = statements(ClusterSpec, file, near)
    return load_cluster(file, (), near), dict(_sources(merged(statement).data))


def _sources(data: object, path: KeyPath = ()) -> Iterator[tuple[str, str]]:
    if is_sourced(data):
        if source := data.get("source"):
            yield ".".join(map(str, path)), str(source)
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _sources(value, (*path, key))


class _PricedFile:
    """A file as it was priced, `content`, beside the file of today, of which nothing is known if it cannot be read."""

    def __init__(self, read: _Read, file: Given, content: Mapping[str, object], manifest: Manifest) -> None:
        near = Path(manifest.spec_file) if manifest.spec_file else None
        self.content = content
        self.today: Mapping[str, object] = {}
        self.sources: Sources = {}
        try:
            spec, self.sources = read(file, near)
            self.today = spec.model_dump(mode="json")
        except InputError:
            pass

    def values(self) -> dict[str, object]:
        """Return the values by dotted path; lists, and what has a source as a whole, are one value."""
        return dict(_leaves(self.content, self.sources))

    def source(self, path: str, value: object) -> str:
        """Return the source of a value."""
        today: object = self.today
        for key in path.split("."):
            today = today.get(key) if isinstance(today, Mapping) else None
        if self.today and today != value:
            return _CHANGED
        return self.sources.get(path, "" if self.today else _UNKNOWN)


def _leaves(value: object, sources: Sources, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and path not in sources:
        for key, inner in value.items():
            yield from _leaves(inner, sources, f"{path}.{key}" if path else key)
    elif value not in (None, [], ""):
        yield path, value


def _files(manifest: Manifest) -> Iterator[tuple[str, _PricedFile]]:
    """Yield the assumption set and the clusters of a sweep, with their kind."""
    spec, resolved = manifest.spec, manifest.spec["resolved"]
    clusters = spec["cluster"] if isinstance(spec["cluster"], list) else [spec["cluster"]]
    yield "assumptions", _PricedFile(assumption_sources, spec["assumptions"], resolved["assumptions"], manifest)
    for file, content in zip(clusters, resolved["clusters"], strict=True):
        yield "cluster", _PricedFile(cluster_sources, file, content, manifest)


def stated_values(manifest: Manifest) -> Markup:
    """Return the tables of the assumption set and of each cluster, and the source of the model."""
    model = manifest.spec["resolved"]["model"]
    source = f": {model['source']}" if model.get("source") else ""
    return markup(element("p", f"Model {model['name']}{source}."), [_table(*file) for file in _files(manifest)])


def _table(kind: str, file: _PricedFile) -> Markup:
    rows = [
        [path, stated_text(value), file.source(path, value)]
        for path, value in file.values().items()
        if path not in ("name", "description", "source")
    ]
    about = [str(file.content[key]) for key in ("description", "source") if file.content.get(key)]
    title = {"assumptions": "Assumption set", "cluster": "Cluster"}[kind]
    summary = f"{title} {file.content['name']}: {len(rows)} values"
    return folded(
        summary,
        element("p", " Source: ".join(about)) if about else "",
        table(["field", "value", "source"], rows, summary, numbers=False),
    )


def assignments(manifest: Manifest) -> list[str]:
    """Return what the sweep was told by --set, as far as its files of today tell: FIELD=VALUE each.

    Of several clusters nothing is said, since --set holds for all of them.
    """
    single = len(manifest.spec["resolved"]["clusters"]) == 1
    return [
        f"{kind}.{path}={_exact(value) if isinstance(value, str) else json.dumps(value)}"
        for kind, file in _files(manifest)
        if file.today and (single or kind != "cluster")
        for path, value in file.values().items()
        if file.source(path, value) == _CHANGED
    ]


def _exact(text: str) -> str:
    """Return a quantity as people write it, so that it reads back exactly; any other text unchanged."""
    quantity = stated_quantity(text)
    return text if quantity is None else exact_quantity(*quantity)
