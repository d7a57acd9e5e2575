"""The manifest of a result set: the sweep, what it found, and the files that hold the rows.

It is one JSON file in the folder of the parts, and the only list of the parts of the set. It is plain data, so it can
be read without dsx.

The manifest of an unfinished run states the sweep and its number of parts; the parts that exist are those in its
folder.

Not covered: older schema versions. Version 1 had no cluster column and no what-ifs, version 2 no intervals, version 3
no zero_replicas, stored_layers and offload, version 4 no rank order, version 6 no counts of bounds; their sweeps must
be run again.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import pydantic
from pydantic import Field

import dsx
from dsx.errors import StoreError
from dsx.installed import install_text
from dsx.results import plain_json
from dsx.results.file_names import PartFile
from dsx.results.schema import COLUMNS, CUT, NAME_COLUMNS, Column, ExtraColumn, Precision, columns_with
from dsx.results.spec_hash import canonical, spec_hash
from dsx.results.stated_sweep import StatedSweep, fault_of, stated_sweep, with_current_names
from dsx.space.limits import OPTIMAL

SCHEMA_VERSION = 9

_MOST_NAMES = 128  # codes of a name column are int8
_MOST_REASONS = 63  # bits of an int64


Whole = Annotated[int, Field(strict=True, ge=0)]  # a count


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a candidate is rejected; its position in the list is its bit in `reject`."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of candidates, of feasible ones, and of rejected ones by reason.

    A candidate that is rejected for two reasons counts under both. Where only the fastest are kept, bounds leave out
    candidates that cannot be among them: `skipped` by a bound of many, `bounded` by a bound of their own. These are
    neither feasible nor rejected. `cut` are those that got their best cut.
    """

    candidates: Whole
    feasible: Whole
    rejected: dict[str, Whole]
    skipped: Whole = 0
    bounded: Whole = 0
    cut: Whole = 0


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file of the set, by its name in the folder."""

    file: PartFile
    rows: Whole


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a result set; `spec_hash` identifies its sweep.

    `spec_file` is the file of the sweep ("" if there is none); files that the sweep names may be relative to it.
    `what_if` are the columns that the sweep varies. A sweep is divided into `num_parts` parts; the set has those with
    rows, or all merged into one. `started` and `finished` are ISO 8601 times in UTC. In an incomplete set `finished` is
    "", and `parts` and `counts` are those so far.
    """

    schema_version: int
    dsx_version: str
    spec: dict[str, Any]
    spec_hash: str
    precision: Precision
    names: dict[str, tuple[str, ...]]
    what_if: tuple[ExtraColumn, ...]
    reject_reasons: tuple[Reason, ...]
    num_parts: Whole
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

    @property
    def sweep(self) -> StatedSweep:
        """The sweep that `spec` states, typed."""
        return stated_sweep(self.spec)


_ADAPTER = pydantic.TypeAdapter(Manifest)


def now() -> str:
    """Return the current time in UTC, in the form of the manifest."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def begin(
    spec: Mapping[str, object],
    names: Mapping[str, Sequence[str]],
    reject_reasons: Sequence[tuple[str, str]],
    precision: Precision,
    spec_file: str = "",
    what_if: Sequence[ExtraColumn] = (),
) -> Manifest:
    """Return the manifest of a new set.

    Args:
        spec: the sweep, as plain data.
        names: for each name column, the names of its codes.
        reject_reasons: (name, description) of each bit of `reject`, lowest first.
        precision: of the cost columns.
        spec_file: the file of the sweep.
        what_if: the columns that the sweep varies.

    Raises StoreError if JSON cannot hold the spec, or if a name column has no names, a name twice, or too many.
    """
    if wrong := _fault_of_names(names):
        raise StoreError(f"a result set cannot be written: {wrong}")
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


def _fault_of_names(names: Mapping[str, Sequence[str]]) -> str:
    """Return the fault of the names of the codes; "" if there is none."""
    if missing := [column for column in NAME_COLUMNS if not names.get(column)]:
        return f"names: the names of the codes are missing for {', '.join(missing)}"
    for column in NAME_COLUMNS:
        known = list(names[column])
        if twice := [name for name in known if known.count(name) > 1]:
            return f"names: column {column} has the name {twice[0]!r} twice; give one of them another name"
        if len(known) > _MOST_NAMES:
            return f"names: column {column} has {len(known)} names, but a result set holds at most {_MOST_NAMES}"
        for name in known:
            # Other tools read the names, as UTF-8.
            if not name.isascii() and name.encode("utf-8", "replace").decode() != name:
                return f"names: column {column} has the name {name!r}, which is not valid Unicode"
    return ""


def to_json(manifest: Manifest) -> bytes:
    """Return the manifest as indented JSON."""
    text = json.dumps(dataclasses.asdict(manifest), indent=2, ensure_ascii=False)
    # Bytes of a file name that are not UTF-8 are written with a backslash, as in JSON.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def from_json(text: bytes, place: str) -> Manifest:
    """Return the manifest in `text`; errors call it `place`.

    Raises StoreError if it is not a manifest, or has an older or newer schema version.
    """
    try:
        raw = plain_json.parse(text, place)
    except StoreError as error:
        raise StoreError(f"{error}; run the sweep again, into another folder") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        wanted = raw.get("dsx_version", "a newer one")
        raise StoreError(
            f"{place} has schema version {version}, but dsx {dsx.__version__} reads versions up to "
            f"{SCHEMA_VERSION}; install the dsx that wrote it: {install_text(f'>={wanted!s:.40}')}"
        )
    if isinstance(version, int) and version < SCHEMA_VERSION:
        raise StoreError(
            f"{place} has the older schema version {version}, but dsx {dsx.__version__} reads version "
            f"{SCHEMA_VERSION}; run the sweep again, into another folder"
        )
    try:
        manifest = _ADAPTER.validate_python(raw)
        wrong = _fault(manifest)
    except pydantic.ValidationError as error:
        manifest, wrong = None, plain_json.reason(error)
    if manifest is None or wrong:
        raise StoreError(
            f"{place} is not the manifest of a result set ({wrong}); run the sweep again, into another folder"
        )
    return dataclasses.replace(manifest, spec=with_current_names(manifest.spec))


def _fault(manifest: Manifest) -> str:
    """Return how a manifest with the right types contradicts itself; "" if it does not."""
    what_if = [extra.name for extra in manifest.what_if]
    own = {CUT.name, *(column.name for column in COLUMNS)}
    files = [part.file for part in manifest.parts]
    if wrong := _fault_of_names(manifest.names):
        return wrong
    if odd := [name for name in manifest.names if name not in NAME_COLUMNS]:
        return f"names: {odd[0]!r} is not a name column"
    if len({*what_if}) < len(what_if) or own & {*what_if}:
        return "what_if: a column is listed twice"
    if len(manifest.reject_reasons) > _MOST_REASONS:
        return f"reject_reasons: has {len(manifest.reject_reasons)} reasons, but there are only {_MOST_REASONS} bits"
    if len({*files}) < len(files):
        return "parts: a file is listed twice"
    if manifest.complete and manifest.counts is None:
        return "counts: is missing, but the set is complete"
    return fault_of(manifest.spec, manifest.names, tuple(what_if))


def total(manifest: Manifest, counts: Iterable[Counts]) -> Counts:
    """Return the sum of the counts of parts, with every reason of the set, in order."""
    sums = dict.fromkeys(("candidates", "feasible", "skipped", "bounded", "cut"), 0)
    rejected = {reason.name: 0 for reason in manifest.reject_reasons}
    for part in counts:
        sums = {name: count + getattr(part, name) for name, count in sums.items()}
        for name, count in part.rejected.items():
            rejected[name] = rejected.get(name, 0) + count
    return Counts(**sums, rejected=rejected)
