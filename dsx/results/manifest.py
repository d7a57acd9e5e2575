"""The manifest of a result set: what was asked, what was found, and which files hold it.

It is one JSON file beside the parts, and the only thing that says which parts belong to the set. All of
it is plain data, so it reads without dsx.

The manifest of an unfinished run says what the run is, and into how many parts its sweep is cut; which of
them are there only its folder says.

Not covered: older schema versions. Version 1 had no cluster column and no what-ifs, version 2 no intervals, version 3
no copies of what ZeRO divides, stored layers and offload, version 4 no rank order; their sweeps are run again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pydantic

import dsx
from dsx.errors import StoreError
from dsx.results.identity import canonical, spec_hash
from dsx.results.schema import NAME_COLUMNS, Column, ExtraColumn, Precision, columns_with
from dsx.space.codes import OPTIMAL

SCHEMA_VERSION = 5
FILE = "manifest.json"

_MOST_NAMES = 128  # codes of a name column are int8


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
    `what_if` are the columns that the sweep varies. A sweep is cut into `num_parts`, of which the set has
    those that have rows, or all merged into one. `started` and `finished` are ISO 8601 times in UTC; of an
    incomplete set `finished` is "", and `parts` and `counts` are those that are there so far.
    """

    schema_version: int
    dsx_version: str
    spec: dict[str, Any]
    spec_hash: str
    precision: Precision
    names: dict[str, tuple[str, ...]]
    what_if: tuple[ExtraColumn, ...]
    reject_reasons: tuple[Reason, ...]
    num_parts: int
    counts: Counts | None
    parts: tuple[Part, ...]
    complete: bool
    started: str
    finished: str
    spec_file: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the set, in order."""
        return columns_with(self.what_if, self.spec.get("partition") == OPTIMAL)


_ADAPTER = pydantic.TypeAdapter(Manifest)


def now() -> str:
    """Return the time in UTC, as the manifest writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def begin(
    spec: Mapping[str, Any],
    names: Mapping[str, Sequence[str]],
    reject_reasons: Sequence[tuple[str, str]],
    precision: Precision,
    spec_file: str = "",
    what_if: Sequence[ExtraColumn] = (),
) -> Manifest:
    """Return the manifest of a set that is about to be written.

    Args:
        spec: the sweep, as plain data.
        names: for each name column, the names that its codes stand for.
        reject_reasons: (name, description) of each bit of `reject`, lowest first.
        precision: of the cost columns.
        spec_file: where the sweep was read from.
        what_if: the columns that the sweep varies.

    Raises StoreError if the spec holds something that JSON cannot, or a name column has no names, two that
    are the same, or too many.
    """
    _check_names(names)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        dsx_version=dsx.__version__,
        spec=json.loads(canonical(spec)),
        spec_hash=spec_hash(spec),
        precision=precision,
        names={name: tuple(names[name]) for name in NAME_COLUMNS},
        what_if=tuple(what_if),
        reject_reasons=tuple(Reason(name, description) for name, description in reject_reasons),
        num_parts=0,
        counts=None,
        parts=(),
        complete=False,
        started=now(),
        finished="",
        spec_file=spec_file,
    )


def _check_names(names: Mapping[str, Sequence[str]]) -> None:
    missing = [column for column in NAME_COLUMNS if column not in names]
    if missing:
        raise StoreError(f"a result set needs the names of its codes for {', '.join(missing)}")
    for column in NAME_COLUMNS:
        known = list(names[column])
        if twice := [name for name in known if known.count(name) > 1]:
            raise StoreError(f"column {column} has the name {twice[0]!r} twice; give one of them another name")
        if len(known) > _MOST_NAMES:
            raise StoreError(f"column {column} has {len(known)} names, and a result set holds {_MOST_NAMES} of them")


def to_json(manifest: Manifest) -> bytes:
    """Return the manifest as indented JSON."""
    return _ADAPTER.dump_json(manifest, indent=2) + b"\n"


def from_json(text: bytes, place: str) -> Manifest:
    """Return the manifest in `text`; `place` is what an error calls it.

    Raises StoreError if it is not a manifest, or one of an older or newer schema.
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
    if isinstance(version, int) and version < SCHEMA_VERSION:
        raise StoreError(
            f"{place} has the older schema version {version}, and dsx {dsx.__version__} reads version "
            f"{SCHEMA_VERSION}; run the sweep again, into another folder"
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


def total(manifest: Manifest, counts: Iterable[Counts]) -> Counts:
    """Return the sum of the counts of parts, with every reason of the set, in its order."""
    candidates = feasible = 0
    rejected = {reason.name: 0 for reason in manifest.reject_reasons}
    for part in counts:
        candidates += part.candidates
        feasible += part.feasible
        for name, count in part.rejected.items():
            rejected[name] = rejected.get(name, 0) + count
    return Counts(candidates, feasible, rejected)
