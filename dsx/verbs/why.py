"""The rules that a plan breaks, and its time and memory compared with the fastest plan of its job.

One row of a result set, with its input files, its hardware and its plan.

The rules that a plan breaks, and its time and memory compared with the fastest plan of its job.

The explanation of a row of a result set.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.framework_file import FrameworkSpec
from dsx.config.load import Given
from dsx.config.model_file import has_experts
from dsx.config.what_if import value_type, varied_field
from dsx.errors import InputError, SpecError, StoreError, did_you_mean, file_path, texts
from dsx.hardware.cluster import Cluster, cluster_from_spec
from dsx.launching.writers import counted_ends_text
from dsx.plans.choices import PLAN_COLUMNS, SEARCHED_COLUMNS
from dsx.plans.frameworks import read_framework
from dsx.plans.layer_layout import LAYOUT
from dsx.plans.plan import Plan
from dsx.pricing.one_plan import PricedPlan, evaluate_plan, price_plan
from dsx.pricing.problem import Problem
from dsx.progress import warn
from dsx.results.manifest import Manifest, files_on, stated_files
from dsx.results.set_columns import CUT
from dsx.results.sets import load_chosen, read_manifest
from dsx.search.fastest import SearchCounts, fastest, spaces_of
from dsx.tables.format import whole_plan_text
from dsx.tables.job import hardware_of
from dsx.tables.plans import filled_text, margin_text, placement_text, plans_frame, taken_text
from dsx.tables.terms import comparison_text, costs_text, effects_text, lacked_effects, stages_data, stages_text
from dsx.text import printable
from dsx.units import counted, exact_quantity, format_quantity
from dsx.verbs.answer import Answer, paragraphs
from dsx.verbs.evaluate import as_row, broken_rules, plan_text, rule_names, rules_text
from dsx.verbs.job import Inputs, Job, checked
from dsx.verbs.plan import PlanLike, Row, given_plan, plan_problem
from dsx.verbs.searched import limits_broken, no_optimizer_text, not_run_text, plan_not_run_text

if TYPE_CHECKING:
    import pandas as pd


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
    return value if name == "cluster" else exact_quantity(value, varied_field(name).unit)


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


_FEW = 0.1  # relative differences below it are said in percent
_SAME = 1e-9  # relative difference of step times that rounding alone may make


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Answer):
    """A priced plan, the rules that it breaks, and the fastest plan of the same job and strategy."""

    problem: Problem
    priced: PricedPlan
    fastest: Mapping[str, Any] | None  # its `plan`, and its costs by column; None if none fits
    counts: SearchCounts  # number of candidates of the search, and of those that were priced
    framework: FrameworkSpec  # whose plans it is compared with, or, if it does not run the strategy, with all plans

    @property
    def plan(self) -> Plan:
        """Every choice by its column, with the candidate id."""
        return self.priced.plan

    @property
    def costs(self) -> Mapping[str, float]:
        """The costs by column; seconds and bytes."""
        return self.priced.costs

    @property
    def step_time_s(self) -> float:
        """Seconds of one step."""
        return self.costs["step_time_s"]

    @property
    def reject(self) -> tuple[str, ...]:
        """The names of the rules that the plan breaks; memory is one of them."""
        return tuple(violation.reason.name for violation in self.priced.broken)

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """The plan and the fastest one as rows, with the columns of a result set; units in `attrs`."""
        cluster = self.problem.cluster.name
        fastest = [{**self.fastest, "hardware": {"cluster": cluster}}] if self.fastest else []
        return plans_frame([as_row(self.priced, cluster), *fastest], rule_names(self.problem))

    @property
    def not_run(self) -> dict[str, Any]:
        """The fewest choices of the plan that would have to change for the framework to run it."""
        return limits_broken(self.framework, has_experts(self.problem.model.dimensions), self.plan)

    @property
    def fits(self) -> bool:
        """Whether the plan fits in memory, and gives every rank a part of each dimension."""
        return self.priced.fits

    @property
    def broken(self) -> dict[str, str]:
        """The rules that the plan breaks, by name: the cause, and the nearest value that obeys the rule."""
        return broken_rules(self.priced)

    def _data(self) -> dict[str, Any]:
        """Return the answer as plain data; times in seconds, sizes in bytes."""
        priced = self.priced
        violations = [{"reason": one.reason.name, "detail": one.detail} for one in priced.broken]
        data: dict[str, object] = {"plan": dict(priced.plan), **priced.costs, "fits": priced.fits}
        data |= {"reject": [one["reason"] for one in violations]}
        data["lacks"] = lacked_effects(self.problem.assumptions_spec, self.plan)
        data |= {"stages": stages_data(priced.plan, priced.stages)} if priced.stages else {}
        best = self.fastest and {**self.fastest, "plan": dict(self.fastest["plan"])}
        data |= {"why": violations, "best": best, "candidates": self.counts.candidates}
        return data | {"framework": self.framework.name, "not_run": self.not_run}

    def __str__(self) -> str:
        priced = self.priced
        number = len(priced.broken)
        rejected = f"is rejected, for {number} reason{'s' if number > 1 else ''}:"
        head = [
            plan_text(self.problem, priced.plan),
            filled_text(priced.plan, priced.filled),
            counted_ends_text(priced.plan, self.problem),
            rules_text(priced, rejected, "fits, and breaks no rule."),
            margin_text(priced.costs["peak_bytes"], self.problem) if priced.fits else "",
        ]
        return paragraphs(
            [
                "\n".join(filter(None, head)),
                placement_text(priced.plan, self.problem),
                costs_text(priced.costs),
                effects_text(self.problem.assumptions_spec, self.plan),
                stages_text(priced.plan, priced.stages) if priced.stages else "",
                self._compared_with_fastest(),
            ]
        )

    def _compared_with_fastest(self) -> str:
        fastest, name = self.fastest, printable(self.framework.name)
        not_run = plan_not_run_text(self.framework, self.not_run)
        other = f"{not_run} " if not_run else ""
        all_run = self.framework.unlimited or "strategy" in self.not_run
        runs = "" if all_run else f" that {name} runs"
        searched = f"{counted(self.counts.candidates, 'candidate')} of this job and strategy{runs}"
        if margin := self.problem.assumptions_spec.memory_margin:
            searched = f"{searched}, with a memory margin of {margin:.2g},"
        if fastest is None:
            return f"{other}Of {searched} none fits."
        if all(fastest["plan"].get(column) == self.plan.get(column) for column in ("candidate", LAYOUT)):
            return f"It is the fastest of {searched.removesuffix(',')}."
        takes = f"{other}The fastest of {searched} takes {format_quantity(fastest['step_time_s'], 's')}"
        if math.isnan(self.costs["mfu"]):  # its seconds are not those of a step
            return f"{takes} ({whole_plan_text(fastest['plan'])})."
        ratio = self.priced.costs["step_time_s"] / fastest["step_time_s"]
        longer = f"{ratio:.3g} times as long"
        if abs(ratio - 1) < _FEW:
            more = f"{100 * abs(ratio - 1):.2g} % {'longer' if ratio > 1 else 'less'}"
            longer = "as long" if abs(ratio - 1) < _SAME else more
        return (
            f"{takes} ({whole_plan_text(fastest['plan'])}); "
            f"this plan takes {longer}.{self._resolution(ratio)}\n\n"
            f"{comparison_text(self.costs, fastest)}"
        )

    def _resolution(self, ratio: float) -> str:
        resolution = self.problem.assumptions_spec.resolution
        if resolution is None or not 1 + _SAME < ratio <= 1 + resolution:
            return ""
        return f" That is within {100 * resolution:.2g} %, the resolution of the measurements."


def why(
    job: Job,
    plan: PlanLike | None = None,
    *,
    strategy: str | None = None,
    partition: Literal["even", "optimal"] | None = None,
    framework: Given | None = None,
    **choices: object,
) -> Explanation:
    """Explain a plan: the rules that it breaks, its time, its memory, and the fastest plan of the same job.

        print(dsx.why(job, "tp=16 pp=4 dp=16"))

    The fastest plan is one that `framework` runs, and both are priced with its software, as of `best`. Other arguments
    are those of `evaluate`. Raises PlanError for an invalid plan, UnknownNameError or SpecError for a framework that
    cannot be read or does not run the strategy.
    """
    job = checked(job).run_by(framework)
    given = given_plan(plan, choices, job)
    settings, cut = given.cut(partition)
    job = given.of_job(job)
    problem = plan_problem(job, settings, given.strategy if strategy is None else strategy, cut)
    priced = evaluate_plan(problem, settings, job.num_gpus, job.global_batch_size)
    return explained(problem, priced, None if framework is None else read_framework(framework))


def explained(problem: Problem, priced: PricedPlan, framework: FrameworkSpec | None = None) -> Explanation:
    """Return a priced plan with the fastest one of its job that a framework runs, by default the assumption set's.

    If that of the assumption set does not run the strategy, it is the fastest one of all. Raises SpecError if a given
    framework does not.
    """
    strategy, experts = problem.strategies[0], has_experts(problem.model.dimensions)
    compared = framework or problem.framework or read_framework(problem.assumptions_spec.of_framework)
    optimizer = problem.assumptions_spec.optimizer
    if framework and not framework.with_optimizer(optimizer).runs:
        raise SpecError(no_optimizer_text(framework, optimizer))
    compared = compared.with_optimizer(optimizer)
    if compared.runs_strategy(strategy, experts):
        problem = problem.run_by(compared)
        compared = problem.framework or compared
    elif framework:
        raise SpecError(f"strategy {strategy}: {not_run_text(framework, strategy, experts)}")
    spaces = spaces_of([problem], priced.plan["num_gpus"], priced.plan["global_batch_size"], {})
    found = fastest(spaces, 1)
    return Explanation(problem, priced, next(iter(found.plans), None), found.counts, compared)


def why_row(folder: str | Path, candidate: int | str | Row, hardware: Hardware = ()) -> Explanation:
    """Explain a row of a result set: the rules that it breaks, its time, its memory, and the fastest of its job.

        dsx.why_row("results/sweep", df.iloc[0])
        dsx.why_row("results/sweep", 8151892079365825710, {"device.hbm_capacity": "80 GB"})

    Args:
        folder: the folder of the result set.
        candidate: its id, or the row itself as `dsx.load` gives it.
        hardware: the cluster or the what-if values of the row, if the sweep varies them: a mapping, with numbers in SI
            units, or a list such as ["device.hbm_capacity=80 GB"].

    Raises InputError if there is no such row, or several; StoreError if the set cannot be read.
    """
    row = row_of(file_path("folder", folder), candidate, hardware)
    problem = row.problem
    return explained(problem, price_plan(problem, row.plan))
