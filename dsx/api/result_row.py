"""One row of a result set, with its input files, its hardware and its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dsx.api.inputs import Inputs
from dsx.argument_types import texts
from dsx.display.manifest_text import hardware_of
from dsx.display.placement import taken_text
from dsx.errors import InputError, StoreError, did_you_mean
from dsx.hardware.cluster import Cluster, cluster_from_spec
from dsx.pricing.problem import Problem
from dsx.remarks import warn
from dsx.results.manifest import Manifest
from dsx.results.schema import CUT
from dsx.results.stated_sweep import files_on, stated_files
from dsx.results.store import load_chosen, read_manifest
from dsx.space.choices import PLAN_COLUMNS, SEARCHED_COLUMNS
from dsx.space.plan import Plan
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.what_if import field, value_type
from dsx.units import counted, exact_quantity

Hardware = Mapping[str, object] | Sequence[str]

_SHOWN = 5  # hardware points in an error


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A row with the inputs that it was priced from."""

    inputs: Inputs
    strategy: str  # the name or path that the sweep gave
    plan: Plan
    hardware: dict[str, Any]  # the values of the cluster and of the what-if columns
    train_tokens: float | None
    searched: dict[str, list[int | str]]  # choices that the sweep searched, with their values
    partition: str

    @property
    def problem(self) -> Problem:
        """The problem of the row, under its strategy."""
        length = self.plan["sequence_length"]
        return self.inputs.problem([self.strategy], length, self.train_tokens, self.partition).searching(self.searched)


def row_of(folder: Path, candidate: object, hardware: Hardware) -> ResultRow:
    """Return the row of a candidate id; `hardware` has its cluster or what-if values, as COLUMN=VALUE.

    Numbers of a mapping are in SI units. In place of an id, `candidate` may be a row of the set's DataFrame, which has
    its hardware. Raises InputError if no row matches, or if several do.
    """
    manifest = read_manifest(folder)
    columns = hardware_of(manifest)
    stated: list[tuple[str, Any]] = (
        [*hardware.items()]
        if isinstance(hardware, Mapping)
        else [_split(choice) for choice in texts("hardware", hardware, "device.hbm_capacity=80 GB")]
    )
    if hasattr(candidate, "items"):
        given: dict[str, object] = dict(candidate.items())  # pyright: ignore[reportAttributeAccessIssue]
        stated = [(name, given[name]) for name in columns if name in given] + stated
        candidate = given.get("candidate")
    return _as_row(folder, manifest, _found(folder, manifest, str(candidate), stated, columns))


def _split(choice: str) -> tuple[str, str]:
    name, _, value = choice.partition("=")
    return name, value


def _found(
    folder: Path, manifest: Manifest, candidate: str, stated: Sequence[tuple[str, Any]], columns: list[str]
) -> dict[str, Any]:
    """Return the one row of a candidate at the stated hardware."""
    wanted = int(candidate) if candidate.isdecimal() and len(candidate) < 20 else None

    def choose(frame: Any) -> Any:
        return frame[frame["candidate"] == wanted]

    found: Any = load_chosen(folder, ["candidate"], choose)
    if found.empty:
        rows = sum(part.rows for part in manifest.parts)
        raise InputError(
            f"no candidate {candidate!r} among the {counted(rows, 'row')} of {folder}: an id is a number of its "
            f"column 'candidate'; 'dsx show {folder} --json' prints those of the fastest"
        )
    for name, value in stated:
        found = _at(found, name, value, columns)
    if len(found) > 1:
        points = [_written(row, columns) for row in found.head(_SHOWN).to_dict(orient="records")]
        more = ", ..." if len(found) > _SHOWN else ""
        raise InputError(
            f"candidate {candidate} was priced on {counted(len(found), 'hardware point')}; add one, as in "
            f"{points[0]} (there are {'; '.join(points)}{more})"
        )
    return found.to_dict(orient="records")[0]


def _at(found: Any, name: str, value: Any, columns: list[str]) -> Any:
    """Return the rows at one value of a hardware column: a name, a number in SI units, or a quantity with its unit."""
    choice = f"{name}={value}"
    if name not in columns:
        known = f"it varies {', '.join(columns)}" if columns else "it varies none"
        raise InputError(f"{choice!r}: the sweep does not vary {name!r}{did_you_mean(name, columns)} ({known})")
    wanted = _value(name, value) if isinstance(value, str) and name != "cluster" else value
    rows = found[found[name] == wanted]
    if rows.empty:
        there = ", ".join(_text(name, value) for value in sorted(found[name].unique().tolist()))
        raise InputError(f"{choice!r}: the candidate was not priced there; it was at {there}")
    return rows


def _value(name: str, text: str) -> Any:
    try:
        return value_type(name).validate_python(text)
    except ValidationError as error:
        raise InputError(f"{name}={text}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def _text(name: str, value: Any) -> str:
    """Return a value of a hardware column as a sweep file writes it."""
    return value if name == "cluster" else exact_quantity(value, field(name).unit)


def _written(row: dict[str, object], columns: list[str]) -> str:
    return " ".join(f"{name}='{_text(name, row[name])}'" for name in columns)


def inputs_of(folder: Path, manifest: Manifest, hardware: Mapping[str, object]) -> Inputs:
    """Return the input files of the rows at one hardware point; `hardware` has its columns.

    Raises StoreError if this version cannot read the files in the manifest of `folder`.
    """
    resolved = files_on(manifest.spec["resolved"], str(hardware["cluster"]))
    stated = {name: resolved[name] for name in ("model", "assumptions", "operator_times") if name in resolved}
    stated["cluster"] = resolved["clusters"][manifest.names["cluster"].index(hardware["cluster"])]
    near = Path(manifest.spec_file) if manifest.spec_file else None
    with stated_files(folder):
        data = Inputs.from_data(stated, near).to_data()
        for extra in manifest.what_if:
            _set(data if extra.name.startswith("assumptions.") else data["cluster"], extra.name, hardware[extra.name])
        return Inputs.from_data(data, near)


def taken_lines(folder: Path, manifest: Manifest, plans: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which rows of a set, counted from 1, leave GPUs of their nodes free, a line each.

    None does if this version cannot read the files in the manifest; a set is shown without them.
    """
    machines: dict[str, tuple[Cluster, AssumptionsSpec]] = {}
    lines: list[str] = []
    for number, one in enumerate(plans, 1):
        name = one["hardware"]["cluster"]
        if name not in machines:
            try:
                inputs = inputs_of(folder, manifest, one["hardware"])
            except StoreError as error:
                warn(f"GPUs that plans leave free are not known: {error}")
                return []
            machines[name] = cluster_from_spec(inputs.cluster), inputs.assumptions
        if taken := taken_text(one["plan"], *machines[name]):
            lines.append(f"{number} {taken}")
    return lines


def _as_row(folder: Path, manifest: Manifest, row: dict[str, Any]) -> ResultRow:
    resolved, sweep = files_on(manifest.spec["resolved"], row["cluster"]), manifest.sweep
    inputs = inputs_of(folder, manifest, row)
    # Rows have the name of a strategy; the sweep may have its path.
    strategy = dict(zip(manifest.names["strategy"], resolved["strategy"], strict=True))[row["strategy"]]
    if inputs.problem([strategy], None).fingerprint()[row["strategy"]] != resolved["layers"][row["strategy"]]:
        warn(
            "the layer definitions have changed since the row was priced; the numbers are those of today's definitions"
        )
    return ResultRow(
        inputs,
        strategy,
        Plan({name: row[name] for name in ("candidate", *PLAN_COLUMNS, CUT.name) if name in row}),
        {name: row[name] for name in ("cluster", *(extra.name for extra in manifest.what_if))},
        sweep.train_tokens,
        {name: values for name, values in sweep.fix.items() if name in SEARCHED_COLUMNS},
        sweep.partition,
    )


def _set(data: dict[str, Any], path: str, value: Any) -> None:
    *sections, name = path.split(".")
    for section in sections:
        data = data[section]
    data[name] = _text(path, value) if isinstance(value, float) else value
