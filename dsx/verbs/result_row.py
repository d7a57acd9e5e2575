"""One row of a result set, found by its id and its hardware: its input files and its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.what_if import value_type, varied_field
from dsx.errors import InputError, StoreError, did_you_mean, texts
from dsx.hardware.cluster import Cluster, cluster_from_spec
from dsx.plans.choices import PLAN_COLUMNS, SEARCHED_COLUMNS
from dsx.plans.plan import Plan
from dsx.pricing.problem import Problem
from dsx.progress import warn
from dsx.results.manifest import Manifest, files_on, stated_files
from dsx.results.set_columns import CUT
from dsx.results.sets import load_chosen, read_manifest
from dsx.tables.job import hardware_of
from dsx.tables.plans import taken_text
from dsx.text import Data, DataFrame, DataView
from dsx.units import counted, exact_quantity
from dsx.verbs.job import Inputs

Hardware = Mapping[str, object] | Sequence[str]
_SHOWN = 5  # hardware points in an error


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A row with the inputs that it was priced from."""

    inputs: Inputs
    strategy: str  # the name or path that the sweep gave
    plan: Plan
    hardware: Data  # the values of the cluster and of the what-if columns
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
    if isinstance(hardware, Mapping):
        conditions = [*hardware.items()]
    else:
        choices = (choice.partition("=") for choice in texts("hardware", hardware, "device.hbm_capacity=80 GB"))
        conditions = [(name, value) for name, _, value in choices]
    if hasattr(candidate, "items"):
        of_row: dict[str, object] = dict(candidate.items())  # pyright: ignore[reportAttributeAccessIssue]
        conditions = [(name, of_row[name]) for name in columns if name in of_row] + conditions
        candidate = of_row.get("candidate")
    rows = rows_of_candidate(folder, manifest, str(candidate))
    for name, value in conditions:
        rows = _at(rows, name, value, columns)
    if len(rows) > 1:
        points = [
            " ".join(f"{name}='{_text(name, row[name])}'" for name in columns)
            for row in rows.head(_SHOWN).to_dict(orient="records")
        ]
        more = ", ..." if len(rows) > _SHOWN else ""
        raise InputError(
            f"candidate {candidate} was priced on {counted(len(rows), 'hardware point')}; add one, as in "
            f"{points[0]} (there are {'; '.join(points)}{more})"
        )
    row: Data = rows.to_dict(orient="records")[0]  # pyright: ignore[reportAssignmentType]
    sweep, inputs = manifest.sweep, inputs_of(folder, manifest, row)
    resolved = files_on(manifest.spec["resolved"], row["cluster"])
    name = row["strategy"]
    strategy = manifest.strategy_paths[name]
    if inputs.problem([strategy], None).fingerprint()[name] != resolved["layers"][name]:
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


def rows_of_candidate(folder: Path, manifest: Manifest, candidate: str) -> DataFrame:
    """Return the rows of a candidate, one at each hardware point; raises InputError if there is none."""
    number = int(candidate) if candidate.isdecimal() and len(candidate) < 20 else None

    def of_candidate(frame: DataFrame) -> DataFrame:
        return frame[frame["candidate"] == number]  # pyright: ignore[reportReturnType]

    rows = load_chosen(folder, ["candidate"], of_candidate)
    if rows.empty:
        raise InputError(
            f"no candidate {candidate!r} among the {counted(manifest.num_rows, 'row')} of {folder}: an id is a number "
            f"of its column 'candidate'; 'dsx show {folder} --json' prints those of the fastest"
        )
    return rows


def _at(frame: DataFrame, name: str, value: object, columns: list[str]) -> DataFrame:
    """Return the rows at one value of a hardware column: a name, a number in SI units, or a quantity with its unit."""
    choice, number = f"{name}={value}", value
    if name not in columns:
        varied = f"it varies {', '.join(columns)}" if columns else "it varies none"
        raise InputError(f"{choice!r}: the sweep does not vary {name!r}{did_you_mean(name, columns)} ({varied})")
    if isinstance(value, str) and name != "cluster":
        try:
            number = value_type(name).validate_python(value)
        except ValidationError as error:
            raise InputError(f"{choice}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    rows = frame[frame[name] == number]
    if rows.empty:
        priced_at = ", ".join(_text(name, value) for value in sorted(frame[name].unique().tolist()))
        raise InputError(f"{choice!r}: the candidate was not priced there; it was at {priced_at}")
    return rows  # pyright: ignore[reportReturnType]


def _text(name: str, value: str | float) -> str:
    """Return a value of a hardware column as a sweep file writes it."""
    return value if isinstance(value, str) else exact_quantity(value, varied_field(name).unit)


def inputs_of(folder: Path, manifest: Manifest, hardware: Mapping[str, object]) -> Inputs:
    """Return the input files of the rows at one hardware point; `hardware` has its columns.

    Raises StoreError if this version cannot read the files in the manifest of `folder`.
    """
    resolved = files_on(manifest.spec["resolved"], str(hardware["cluster"]))
    files = {name: resolved[name] for name in ("model", "assumptions", "operator_times") if name in resolved}
    files["cluster"] = resolved["clusters"][manifest.names["cluster"].index(str(hardware["cluster"]))]
    with stated_files(folder):
        data = Inputs.from_data(files, manifest.near).to_data()
        for extra in manifest.what_if:
            *sections, name = extra.name.split(".")
            value = hardware[extra.name]
            part = data if extra.name.startswith("assumptions.") else data["cluster"]
            for section in sections:
                part = part[section]
            part[name] = _text(extra.name, value) if isinstance(value, float) else value
        return Inputs.from_data(data, manifest.near)


def taken_lines(folder: Path, manifest: Manifest, plans: Sequence[DataView]) -> list[str]:
    """Return which rows of a set, counted from 1, leave GPUs of their nodes free, a line each.

    None does if this version cannot read the files in the manifest; a set is shown without them.
    """
    machines: dict[str, tuple[Cluster, AssumptionsSpec]] = {}
    lines: list[str] = []
    for number, plan in enumerate(plans, 1):
        name = plan["hardware"]["cluster"]
        if name not in machines:
            try:
                inputs = inputs_of(folder, manifest, plan["hardware"])
            except StoreError as error:
                warn(f"GPUs that plans leave free are not known: {error}")
                return []
            machines[name] = cluster_from_spec(inputs.cluster), inputs.assumptions
        if taken := taken_text(plan["plan"], *machines[name]):
            lines.append(f"{number} {taken}")
    return lines
