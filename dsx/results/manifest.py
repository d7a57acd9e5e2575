"""The manifest of a result set: what was asked, what was found, and which files hold it.

It is one JSON file beside the parts, and the only thing that says which parts belong to the set. All of
it is plain data, so it reads without dsx.

Not covered: older schema versions. Version 1 is the first; a reader of several versions upgrades the
parsed JSON here, one function per version, before it becomes a `Manifest`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pydantic

import dsx
from dsx.errors import StoreError
from dsx.results.schema import Precision
from dsx.space.candidates import NAMED

SCHEMA_VERSION = 1
FILE = "manifest.json"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a candidate is rejected; its place in the list is its bit in `reject`."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Candidates of the space, of which feasible, and per reason how many it rejects.

    A candidate that is rejected for two reasons counts under both.
    """

    candidates: int
    feasible: int
    rejected: dict[str, int]


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file of the set, by its name in the folder."""

    file: str
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a result set is; `spec_hash` identifies the sweep that it answers.

    `spec_file` is where the sweep was read from, since what it names may lie beside it ("" if nowhere).
    `started` and `finished` are ISO 8601 times in UTC; `finished` is "" and `counts` is None until the
    set is complete.
    """

    schema_version: int
    dsx_version: str
    spec: dict[str, Any]
    spec_hash: str
    precision: Precision
    names: dict[str, tuple[str, ...]]
    reject_reasons: tuple[Reason, ...]
    counts: Counts | None
    parts: tuple[Part, ...]
    complete: bool
    started: str
    finished: str
    spec_file: str = ""


_ADAPTER = pydantic.TypeAdapter(Manifest)


def now() -> str:
    """Return the time in UTC, as the manifest writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a spec; neither the order of its keys nor its layout matters."""
    return hashlib.sha256(_canonical(spec).encode()).hexdigest()


def begin(
    spec: Mapping[str, Any],
    names: Mapping[str, Sequence[str]],
    reject_reasons: Sequence[tuple[str, str]],
    precision: Precision,
    spec_file: str = "",
) -> Manifest:
    """Return the manifest of a set that is about to be written.

    Args:
        spec: the sweep, as plain data.
        names: for each name column, the names that its codes stand for.
        reject_reasons: (name, description) of each bit of `reject`, lowest first.
        precision: of the cost columns.
        spec_file: where the sweep was read from.

    Raises StoreError if the spec holds something that JSON cannot, or a name column has no names.
    """
    missing = [name for name in NAMED if name not in names]
    if missing:
        raise StoreError(f"a result set needs the names of its codes for {', '.join(missing)}")
    canonical = _canonical(spec)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        dsx_version=dsx.__version__,
        spec=json.loads(canonical),
        spec_hash=spec_hash(spec),
        precision=precision,
        names={name: tuple(names[name]) for name in NAMED},
        reject_reasons=tuple(Reason(name, description) for name, description in reject_reasons),
        counts=None,
        parts=(),
        complete=False,
        started=now(),
        finished="",
        spec_file=spec_file,
    )


def to_json(manifest: Manifest) -> bytes:
    """Return the manifest as indented JSON."""
    return _ADAPTER.dump_json(manifest, indent=2) + b"\n"


def from_json(text: bytes, place: str) -> Manifest:
    """Return the manifest in `text`; `place` is what an error calls it.

    Raises StoreError if it is not a manifest, or one of a newer schema.
    """
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise StoreError(f"{place} is not JSON ({error}); run the sweep again, into another folder") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        wanted = raw.get("dsx_version", "a newer one")
        raise StoreError(
            f"{place} has schema version {version}, and dsx {dsx.__version__} reads versions up to "
            f"{SCHEMA_VERSION}; install the dsx that wrote it: pip install 'dsx>={wanted}'"
        )
    try:
        return _ADAPTER.validate_python(raw)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"]) or "the whole file"
        raise StoreError(
            f"{place} is not the manifest of a result set ({where}: {first['msg']}); "
            "run the sweep again, into another folder"
        ) from None


def file_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return what each part says about its set, so that a part alone can still be identified."""
    return {
        "schema_version": manifest.schema_version,
        "dsx_version": manifest.dsx_version,
        "spec_hash": manifest.spec_hash,
        "reject_reasons": [{"name": r.name, "description": r.description} for r in manifest.reject_reasons],
    }


def _canonical(spec: Mapping[str, Any]) -> str:
    try:
        return json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"a spec must be plain data to be stored: {error}") from None
