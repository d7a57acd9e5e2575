"""The manifest of a result set: the sweep, what it found, and the files that hold the rows.

It is one JSON file in the folder of the parts, and the only list of the parts of the set. It is plain data, so it can
be read without dsx. The manifest of an unfinished run states the sweep and its number of parts; the parts that exist
are those in its folder. The sweep is plain data too, so that it can be compared and hashed as written (`StatedSweep`
types what is read back).

Not covered: older schema versions. Version 1 had no cluster column and no what-ifs, version 2 no intervals, version 3
no zero_replicas, stored_layers and offload, version 4 no rank order, version 6 no counts of bounds; their sweeps must
be run again.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import BaseModel, Field

import dsx
from dsx.config.cluster_file import ChipSpec, label_of
from dsx.config.sweep_file import Keep, PlotSpec
from dsx.config.what_if import WhatIf, WhatIfPoints
from dsx.errors import StoreError
from dsx.files import install_text
from dsx.plans.rules import OPTIMAL
from dsx.results.folder import PartFile, parse_json, reason
from dsx.results.set_columns import COLUMNS, CUT, NAME_COLUMNS, Column, ExtraColumn, Precision, columns_with
from dsx.text import Data, DataView
from dsx.units import LARGEST_COUNT

_IGNORED = ("plot",)


def spec_hash(spec: Mapping[str, object]) -> str:
    """Return the SHA-256 of a spec; it depends neither on the order of the keys nor on the layout of the file."""
    return hashlib.sha256(canonical(_without_ignored(spec)).encode()).hexdigest()


def differences(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """Return the dotted paths at which two specs differ."""
    return _differing(_without_ignored(a), _without_ignored(b))


def canonical(spec: Mapping[str, object]) -> str:
    """Return a spec as JSON that depends on its content alone; StoreError if JSON cannot hold it."""
    try:
        return json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"a spec must be plain data to be stored: {error}") from None


def _without_ignored(spec: Mapping[str, object]) -> Data:
    return {key: value for key, value in spec.items() if key not in _IGNORED}


def _differing(a: object, b: object, path: str = "") -> list[str]:
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return [] if a == b else [path]
    return [
        inner
        for key in sorted({*a, *b})
        for inner in _differing(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    ]


# Fields of an assumption set that older manifests of this schema version state by a former name.
_FORMER_FIELDS = {"told_apart": "resolution"}

_Size = Annotated[int, Field(strict=True, ge=1, le=LARGEST_COUNT)]
_Sizes = Annotated[list[_Size], Field(min_length=1)]


class StatedFile(BaseModel, frozen=True):
    """A file that was priced, by its name."""

    name: str


class StatedDevice(BaseModel, frozen=True):
    """The device of a cluster, by its name, and the chip that it is a part of."""

    name: str
    chip: ChipSpec | None = None


class StatedCluster(StatedFile, frozen=True):
    """A cluster that was priced."""

    device: StatedDevice | None = None

    @property
    def label(self) -> str:
        """The name, with what a GPU is where that is not plain, as of `ClusterSpec`."""
        return label_of(self.name, self.device.name, self.device.chip) if self.device else self.name


class StatedModel(StatedFile, frozen=True):
    """The model that was priced."""

    default_sequence_length: _Size


class PricedFiles(BaseModel, frozen=True):
    """The files of a sweep: `strategy` as the sweep states it, `layers` the hash of each strategy's definitions."""

    model: StatedModel
    clusters: list[StatedCluster]
    assumptions: StatedFile
    strategy: list[str]
    layers: dict[str, str]
    operator_times: Data | None = None
    # The assumption set and the layers on clusters, by name, where a framework lacks something that the first one has.
    on_cluster: dict[str, Data] = Field(default_factory=dict)


class StatedSweep(BaseModel, frozen=True):
    """The settings of a sweep that describe its result set."""

    num_gpus: _Sizes
    global_batch_size: _Sizes
    sequence_length: _Size | None = None
    train_tokens: float | None = None
    fix: dict[str, list[int | str]] = Field(default_factory=dict)
    what_if: WhatIfPoints = WhatIf()
    partition: Literal["even", "optimal"] = "even"
    keep: Keep
    plot: PlotSpec | None = None
    resolved: PricedFiles

    @property
    def tokens(self) -> int:
        """The tokens of a sequence; the same in all rows."""
        return self.sequence_length or self.resolved.model.default_sequence_length


def files_on(resolved: DataView, cluster: str) -> Data:
    """Return the files of a sweep, as its manifest has them, with those of a cluster of its own."""
    return {**resolved, **resolved.get("on_cluster", {}).get(cluster, {})}


@contextmanager
def stated_files(folder: Path) -> Iterator[None]:
    """Raise a ValidationError of the block as a StoreError; the block reads what the manifest in `folder` states."""
    try:
        yield
    except pydantic.ValidationError as error:
        raise StoreError(
            f"{folder}: its manifest states a {error.title} that this dsx cannot read ({reason(error)}); run the sweep "
            "again, into another folder"
        ) from None


SCHEMA_VERSION = 9

_MOST_NAMES = 128  # codes of a name column are int8
_MOST_REASONS = 63  # bits of an int64


Whole = Annotated[int, Field(strict=True, ge=0)]  # a count


@dataclass(frozen=True, slots=True)
class RejectReason:
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
class StoredPart:
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
    spec: Data
    spec_hash: str
    precision: Precision
    names: dict[str, tuple[str, ...]]
    what_if: tuple[ExtraColumn, ...]
    reject_reasons: tuple[RejectReason, ...]
    num_parts: Whole
    counts: Counts | None
    parts: tuple[StoredPart, ...]
    complete: bool
    started: str
    finished: str
    spec_file: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the set, in order."""
        return columns_with(self.what_if, self.spec.get("partition") == OPTIMAL)

    @property
    def num_rows(self) -> int:
        """The number of rows of the set, over all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def near(self) -> Path | None:
        """The file of the sweep, which may name files relative to it; None if there is none."""
        return Path(self.spec_file) if self.spec_file else None

    @property
    def strategy_paths(self) -> dict[str, str]:
        """The strategies as the sweep states them, which may be paths, by the names that rows have."""
        return dict(zip(self.names["strategy"], self.spec["resolved"]["strategy"], strict=True))

    @property
    def sweep(self) -> StatedSweep:
        """The sweep that `spec` states, typed."""
        return StatedSweep.model_validate(self.spec)


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

    `names` are the names of the codes by name column, `reject_reasons` (name, description) of each bit of `reject`,
    lowest first. Raises StoreError if JSON cannot hold the spec, or if a name column has no names, a name twice, or too
    many.
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
        reject_reasons=tuple(RejectReason(name, description) for name, description in reject_reasons),
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
        of_column = list(names[column])
        if twice := [name for name in of_column if of_column.count(name) > 1]:
            return f"names: column {column} has the name {twice[0]!r} twice; give one of them another name"
        if len(of_column) > _MOST_NAMES:
            return f"names: column {column} has {len(of_column)} names, but a result set holds at most {_MOST_NAMES}"
        for name in of_column:
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
    """Return the manifest in `text`; StoreError, which calls it `place`, for another thing or schema version."""
    try:
        raw = parse_json(text, place)
    except StoreError as error:
        raise StoreError(f"{error}; run the sweep again, into another folder") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        reads = f"{version}, but dsx {dsx.__version__} reads version"
        if version < SCHEMA_VERSION:
            cure = "run the sweep again, into another folder"
            raise StoreError(f"{place} has the older schema version {reads} {SCHEMA_VERSION}; {cure}")
        writer = raw.get("dsx_version", "a newer one")
        cure = f"install the dsx that wrote it: {install_text(f'>={writer!s:.40}')}"
        raise StoreError(f"{place} has schema version {reads}s up to {SCHEMA_VERSION}; {cure}")
    try:
        manifest = _ADAPTER.validate_python(raw)
        wrong = _fault(manifest)
    except pydantic.ValidationError as error:
        manifest, wrong = None, reason(error)
    if manifest is None or wrong:
        cure = "run the sweep again, into another folder"
        raise StoreError(f"{place} is not the manifest of a result set ({wrong}); {cure}")
    files = manifest.spec["resolved"]
    assumptions = {_FORMER_FIELDS.get(name, name): value for name, value in files["assumptions"].items()}
    return dataclasses.replace(manifest, spec={**manifest.spec, "resolved": {**files, "assumptions": assumptions}})


def _fault(manifest: Manifest) -> str:
    """Return how a manifest with the right types contradicts itself; "" if it does not."""
    what_if = [extra.name for extra in manifest.what_if]
    fixed = {CUT.name, *(column.name for column in COLUMNS)}
    files = [part.file for part in manifest.parts]
    if wrong := _fault_of_names(manifest.names):
        return wrong
    if odd := [name for name in manifest.names if name not in NAME_COLUMNS]:
        return f"names: {odd[0]!r} is not a name column"
    if len({*what_if}) < len(what_if) or fixed & {*what_if}:
        return "what_if: a column is listed twice"
    if len(manifest.reject_reasons) > _MOST_REASONS:
        return f"reject_reasons: has {len(manifest.reject_reasons)} reasons, but there are only {_MOST_REASONS} bits"
    if len({*files}) < len(files):
        return "parts: a file is listed twice"
    if manifest.complete and manifest.counts is None:
        return "counts: is missing, but the set is complete"
    try:
        sweep = manifest.sweep
    except pydantic.ValidationError as error:
        return reason(error, "spec")
    priced = sweep.resolved
    for column, count in (("cluster", len(priced.clusters)), ("strategy", len(priced.strategy))):
        if count != len(manifest.names[column]):
            return f"names.{column}: has {len(manifest.names[column])} names, but the sweep states {count}"
    if missing := [name for name in manifest.names["strategy"] if name not in priced.layers]:
        return f"spec.resolved.layers: has no hash of the layer definitions of {missing[0]!r}"
    if sorted(what_if) != sorted(sweep.what_if.fields):
        return f"what_if: has the columns {', '.join(what_if) or 'none'}, but the sweep varies others"
    return ""


def total(manifest: Manifest, counts: Iterable[Counts]) -> Counts:
    """Return the sum of the counts of parts, with every reason of the set, in order."""
    of_parts = [*counts]
    rejected = {reason.name: 0 for reason in manifest.reject_reasons}
    for name, count in (entry for part in of_parts for entry in part.rejected.items()):
        rejected[name] = rejected.get(name, 0) + count
    numbers = ("candidates", "feasible", "skipped", "bounded", "cut")
    return Counts(**{name: sum(getattr(part, name) for part in of_parts) for name in numbers}, rejected=rejected)
