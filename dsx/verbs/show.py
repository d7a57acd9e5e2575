"""``dsx show``: a result set in short, its fastest plans, and one row of it, found by its id and hardware."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.cluster_file import Cluster, cluster_from_spec
from dsx.config.what_if import value_type, varied_field
from dsx.errors import InputError, StoreError, did_you_mean, file_path, texts
from dsx.launching.request import LaunchSettings
from dsx.launching.writers import launch_by, launch_data, launch_text
from dsx.notation.model import Model, build_model
from dsx.plans.choices import PLAN_COLUMNS, SEARCHED_COLUMNS
from dsx.plans.plan import Plan
from dsx.pricing.problem import Problem
from dsx.progress import warn
from dsx.results.frames import as_plans, column_list, fastest, load_chosen, read_manifest
from dsx.results.manifest import Manifest, files_on, stated_files
from dsx.results.set_columns import CUT
from dsx.tables.format import (
    counts_text,
    hardware_of,
    hardware_text,
    kept_text,
    rows_text,
    table,
    title_of,
    what_if_values,
    wrapped,
)
from dsx.tables.plans import plans_frame, plans_text, taken_text
from dsx.tables.terms import costs_text
from dsx.text import Data, DataFrame, DataView
from dsx.units import counted, exact_quantity
from dsx.verbs.arguments import PricedPlans, count, paragraphs
from dsx.verbs.job import Inputs
from dsx.verbs.searched import run_by_none

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


_TOP = 10


@dataclass(frozen=True, eq=False, repr=False)
class ShownSet(PricedPlans):
    """A result set and some of its plans."""

    folder: Path  # of the set
    manifest: Manifest
    priced: Sequence[Data]
    single: bool  # whether the plans are the rows of one candidate

    @cached_property
    def frame(self) -> DataFrame:
        """The plans as rows; units in `attrs`."""
        return plans_frame(self.priced, [reason.name for reason in self.manifest.reject_reasons])

    @property
    def infeasible(self) -> str:
        """Why there is no plan to show; empty if there is one."""
        rows = counted(self.manifest.num_rows, "row")
        return "" if self.priced else f"no plan to show: none of the {rows} of {self.folder} is feasible"

    def _data(self) -> Data:
        manifest, counts, sweep = self.manifest, self.manifest.counts, self.manifest.sweep
        launches = _launches(self.folder, self.priced, manifest)
        sizes, numbers = ("num_gpus", "global_batch_size"), ("candidates", "skipped", "bounded", "cut", "feasible")
        return {
            "folder": str(self.folder),
            "model": sweep.resolved.model.name,
            "clusters": list(manifest.names["cluster"]),
            "strategies": list(manifest.names["strategy"]),
            "assumptions": sweep.resolved.assumptions.name,
            **{name: getattr(sweep, name) for name in sizes},
            "sequence_length": sweep.tokens,
            "what_if": what_if_values(manifest),
            "keep": manifest.spec["keep"],
            "precision": manifest.precision,
            "spec_file": manifest.spec_file or None,
            "complete": manifest.complete,
            "started": manifest.started,
            "finished": manifest.finished or None,
            "dsx_version": manifest.dsx_version,
            **{name: getattr(counts, name) if counts else None for name in (*numbers, "rejected")},
            "rows": manifest.num_rows,
            "parts": len(manifest.parts),
            "plans": [
                plan | {"launch": launch and launch_data(launch)}
                for plan, launch in zip(self._plans_data(), launches, strict=True)
            ],
        }

    def __str__(self) -> str:
        parts = [_set_text(self.manifest)]
        if self.priced:
            lines = [plans_text(self.priced, with_settings=True, hardware=hardware_of(self.manifest))]
            if self.single:
                rejected = [(number, plan["reject"]) for number, plan in enumerate(self.priced, 1) if plan["reject"]]
                lines += [f"{number} is rejected: {', '.join(names)}" for number, names in rejected]
            lines += [wrapped(line) for line in taken_lines(self.folder, self.manifest, self.priced)]
            parts += ["\n".join(lines), wrapped(run_by_none(self.plans))]
            if self.single and len(self.priced) == 1:
                parts.append(costs_text(self.priced[0]))
            if launch := _launches(self.folder, self.priced[:1], self.manifest)[0]:
                parts.append(launch_text(launch, "plan 1"))
        return paragraphs(parts)


def show(
    folder: str | Path, top: int | None = None, *, per: str | Sequence[str] = (), candidate: int | str | None = None
) -> ShownSet:
    """Summarise a result set, and show its fastest plans.

        print(dsx.show("results/sweep", per="num_gpus"))

    Args:
        folder: the folder of the result set.
        top: how many plans to show; by default 10, with `per` 1 of each group.
        per: columns, for each of whose values the fastest plans are shown.
        candidate: an id; only the rows of this candidate are shown, whether they fit or not.

    Raises StoreError if the set cannot be read, InputError for an unknown candidate.
    """
    folder = file_path("folder", folder)
    manifest = read_manifest(folder)
    columns = column_list("per", per)
    most = None if top is None else count("top", top)
    if candidate is not None:
        if top is not None or columns:
            raise InputError(f"--candidate {candidate} shows that candidate alone: leave out --top and --per")
        plans = as_plans(rows_of_candidate(folder, manifest, str(candidate)))
    elif columns:
        plans = fastest(folder, None, columns, most or 1)
    else:
        plans = fastest(folder, most or _TOP)
    return ShownSet(folder, manifest, plans, candidate is not None)


def _launches(folder: Path, plans: Sequence[Data], manifest: Manifest) -> list[LaunchSettings | None]:
    """Return the launch flags of rows; None, with a warning, if their layer definitions no longer exist."""
    priced: dict[tuple[str, ...], tuple[Inputs, Model] | None] = {}  # by strategy and hardware
    words = manifest.spec["resolved"].get("framework", {}).get("flags")
    launches: list[LaunchSettings | None] = []
    for plan in plans:
        strategy, hardware = plan["plan"]["strategy"], plan["hardware"]
        key = strategy, *map(str, hardware.values())
        if key not in priced:
            priced[key] = None
            try:
                inputs = inputs_of(folder, manifest, hardware)
                path = manifest.strategy_paths[strategy]
                priced[key] = inputs, build_model(inputs.model, inputs.assumptions, path, inputs.near)
            except InputError as error:
                warn(f"no launch flags under {strategy}: {error}")
        launches.append(None)
        if (of_row := priced[key]) is not None:
            inputs, model = of_row
            device = inputs.cluster.device
            launches[-1] = launch_by(words, plan["plan"], inputs.model, model, inputs.assumptions, device)
    return launches


def _set_text(manifest: Manifest) -> str:
    sweep, counts = manifest.sweep, manifest.counts
    state = f"finished {manifest.finished}"
    if not manifest.complete:
        state = f"incomplete, {len(manifest.parts)} of {counted(manifest.num_parts, 'part')}; begun {manifest.started}"
    rows = [
        ["num_gpus", ", ".join(map(str, sweep.num_gpus))],
        ["global_batch_size", ", ".join(map(str, sweep.global_batch_size))],
        ["sequence_length", counted(sweep.tokens, "token")],
        ["tokens a step", ", ".join(f"{size * sweep.tokens:,}" for size in sweep.global_batch_size)],
        ["strategy", ", ".join(manifest.names["strategy"])],
        *(
            [name, ", ".join(hardware_text(name, v) for v in listed)]
            for name, listed in what_if_values(manifest).items()
        ),
        ["assumptions", f"{sweep.resolved.assumptions.name}, in {manifest.precision}"],
        ["sweep file", manifest.spec_file or "-"],
        ["state", f"{state}, by dsx {manifest.dsx_version}"],
    ]
    if counts:
        rows.append(["candidates", counts_text(counts)])
    rows.append(["kept", f"{kept_text(manifest)}: {rows_text(manifest)}"])
    return f"{title_of(manifest)}\n" + table(["", ""], [[f"  {name}", text] for name, text in rows], text=(0, 1))
