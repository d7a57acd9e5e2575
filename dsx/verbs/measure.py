"""``dsx measure``: times of kernels on the device at hand, as a file of operator times.

The kernels are those of the best plans of a job or of a result set, or of a spread over a model's shapes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.load import Assignment, Given
from dsx.config.model_file import load_model
from dsx.config.operator_files import DIRECTIONS, shape_text
from dsx.config.search_path import shown
from dsx.errors import InputError, NothingFeasible, SpecError, file_path
from dsx.measuring.array_library import Library, find_library
from dsx.measuring.cases import Case, Outcome, cases_of, in_turn, outcomes
from dsx.measuring.device import CollectiveTime
from dsx.notation.model import Model, build_model, layer_check
from dsx.notation.syntax import AXES
from dsx.plans.choices import KEY_COLUMNS
from dsx.plans.violations import allowed
from dsx.pricing.measured_share import key_of
from dsx.progress import Watch, progress
from dsx.results.sets import fastest, read_manifest
from dsx.tables.format import table
from dsx.text import Data, DataView
from dsx.units import counted, format_quantity
from dsx.verbs.answer import Answer, paragraphs
from dsx.verbs.arguments import (
    Fields,
    assignments,
    check_output_file,
    count,
    option_of,
    seconds_from,
    watcher,
    write_output_file,
)
from dsx.verbs.best import best
from dsx.verbs.job import DEFAULT_ASSUMPTIONS, Job, file_of, split_overrides
from dsx.verbs.measured_file import MeasuredFile, collectives_file, device_file
from dsx.verbs.result_row import inputs_of

if TYPE_CHECKING:
    import pandas as pd

    from dsx.measuring.device import CollectiveTime


# Of a spread: the tensor-parallel degrees that a fast domain has room for, and sequences of a microbatch.
_SPREAD = {"tp": (1, 2, 4, 8), "microbatch_size": (1, 2, 4)}


@dataclass(frozen=True, slots=True)
class MeasuredPlans:
    """Plans of a model under one strategy and sequence length, as a key table."""

    model: Model
    assumptions: AssumptionsSpec
    sequence_length: int
    keys: Mapping[str, np.ndarray]


def cases(plans: Sequence[MeasuredPlans]) -> list[Case]:
    """Return the distinct kernels of several plans, in the order in which they are measured."""
    of_plans = [
        case for plan in plans for case in cases_of(plan.model, plan.assumptions, plan.sequence_length, plan.keys)
    ]
    return in_turn({case.key: case for case in reversed(of_plans)}.values())


def plans_of_job(job: Job, top: int) -> list[MeasuredPlans]:
    """Return the `top` fastest plans of a job; raises NothingFeasible, with the reason, if none fits."""
    answer = best(job, top)
    if not answer.plans:
        raise NothingFeasible(answer.infeasible)
    models = dict(zip(answer.problem.strategies, answer.problem.models, strict=True))
    return _grouped([(plan, models[plan["strategy"]], job.assumptions) for plan in answer.plans])


def plans_of_set(folder: Path, top: int) -> list[MeasuredPlans]:
    """Return the `top` fastest plans of a result set.

    Raises StoreError if the set cannot be read, NothingFeasible if none of its rows fits.
    """
    manifest = read_manifest(folder)
    rows = fastest(folder, top)
    if not rows:
        raise NothingFeasible(f"no plan to measure: none of the rows of {folder} is feasible")
    paths = dict(zip(manifest.names["strategy"], manifest.spec["resolved"]["strategy"], strict=True))
    with_models: list[tuple[DataView, Model, AssumptionsSpec]] = []
    models: dict[str, tuple[Model, AssumptionsSpec]] = {}
    for row in rows:
        strategy = row["plan"]["strategy"]
        if strategy not in models:
            inputs = inputs_of(folder, manifest, row["hardware"])
            built = build_model(inputs.model, inputs.assumptions, paths[strategy], inputs.near)
            models[strategy] = (built, inputs.assumptions)
        with_models.append((row["plan"], *models[strategy]))
    return _grouped(with_models)


def spread_of_model(
    model: Given, assumptions: Given, overrides: Mapping[str, Sequence[Assignment]], sequence_length: int | None
) -> list[MeasuredPlans]:
    """Return tensor-parallel degrees and microbatch sizes of a model, under the default strategy.

    Raises SpecError for a file that cannot be read, an override of a cluster, and a strategy that allows none of them.
    """
    for path, value in overrides["cluster"]:
        raise SpecError(f"--set cluster.{path}={value}: no cluster is read here; shapes do not depend on one")
    near = file_of(model)
    assumed = load_assumptions(assumptions, overrides["assumptions"])
    spec = load_model(model, overrides["model"], None, layer_check(near, assumed))
    built = build_model(spec, assumed, assumed.default_strategy, near)
    length = sequence_length or spec.default_sequence_length
    degrees, sizes = (column.ravel() for column in np.meshgrid(_SPREAD["tp"], _SPREAD["microbatch_size"]))
    ones = np.ones_like(degrees)
    keys = {name: ones for name in (*KEY_COLUMNS, *AXES, "panels")} | {
        "strategy": np.zeros_like(degrees),
        "tp": degrees,
        "microbatch_size": sizes,
    }
    good = np.asarray(allowed(built.body_layer, spec.dimensions, length, keys))
    if not good.any():
        raise SpecError(
            f"strategy {assumed.default_strategy!r} runs none of tp={','.join(map(str, _SPREAD['tp']))} on model "
            f"{spec.name!r}: give a job, with --cluster, --num-gpus and --global-batch-size"
        )
    return [MeasuredPlans(built, assumed, length, {name: column[good] for name, column in keys.items()})]


def _grouped(plans: Sequence[tuple[DataView, Model, AssumptionsSpec]]) -> list[MeasuredPlans]:
    """Return plans in groups of one model, strategy and sequence length."""
    groups: dict[tuple[int, int], list[tuple[DataView, Model, AssumptionsSpec]]] = {}
    for plan, model, assumptions in plans:
        groups.setdefault((id(model), plan["sequence_length"]), []).append((plan, model, assumptions))
    measured_plans: list[MeasuredPlans] = []
    for (_, length), members in groups.items():
        tables = [key_of(plan) for plan, _, _ in members]
        keys = {name: np.concatenate([keys_of_plan[name] for keys_of_plan in tables]) for name in tables[0]}
        measured_plans.append(MeasuredPlans(members[0][1], members[0][2], int(length), keys))
    return measured_plans


_KERNELS = 0.75  # share of the time that kernels have where collectives are timed too


@dataclass(frozen=True, eq=False, repr=False)
class Measured(Answer):
    """Measured times of kernels, and of collectives where they were asked for."""

    device: str  # of the times
    software: str  # the array library and its release
    outcomes: Sequence[Outcome]  # of this run
    num_kept: int  # kernels that the file had already
    collectives: Sequence["CollectiveTime"]  # of this run, where they were asked for
    out: Path | None  # the file of operator times
    text: str  # its content

    @property
    def measured(self) -> list[Data]:
        """The kernels that this run timed, as plain data; times in seconds, spread as a share of the median."""
        return [
            _as_data(outcome.case)
            | {"time_s": outcome.timing.median_s, "spread": outcome.timing.spread, "samples": outcome.timing.samples}
            for outcome in self.outcomes
            if outcome.timing is not None
        ]

    @property
    def left_out(self) -> list[Data]:
        """The kernels without a time, and why."""
        return [
            _as_data(outcome.case) | {"why_not": outcome.why_not} for outcome in self.outcomes if outcome.timing is None
        ]

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """The kernels that this run timed, one per row; units in `attrs`."""
        import pandas as pd

        frame = pd.DataFrame(self.measured)
        frame.attrs["units"] = {"time_s": "s", "bytes": "bytes", "flops": "FLOP"}
        return frame

    def _data(self) -> Data:
        return {
            "device": self.device,
            "software": self.software,
            "file": self.out and str(self.out),
            "kept": self.num_kept,
            "measured": self.measured,
            "left_out": self.left_out,
            "collectives": [_collective_data(collective) for collective in self.collectives],
        }

    def __str__(self) -> str:
        measured = self.measured
        where = f" in {shown(self.out)}" if self.out else ""
        kept = f", {self.num_kept} were there" if self.num_kept else ""
        head = f"{counted(len(measured), 'kernel')} measured with {self.software} on {self.device}{where}{kept}"
        return paragraphs(
            [
                "\n".join(filter(None, (head, kernels_text(measured)))),
                collectives_text([_collective_data(collective) for collective in self.collectives]),
                "\n".join(filter(None, (spread_text(measured), left_out_text(self.left_out)))),
            ]
        )


def _as_data(case: Case) -> Data:
    m, n, k, batch = case.shape
    return {
        "operator": case.operator,
        "direction": None if case.direction is None else DIRECTIONS[case.direction],
        "m": m,
        "n": n,
        "k": k or None,
        "batch": batch or None,
        "shape": shape_text(case.shape),
        "dtype": case.dtype,
        "flops": case.flops,
        "bytes": case.num_bytes,
    }


def _collective_data(collective: "CollectiveTime") -> Data:
    return {
        "collective": collective.kind,
        "num_devices": collective.num_devices,
        "bytes": collective.num_bytes,
        "time_s": collective.timing.median_s,
        "spread": collective.timing.spread,
    }


def measure(
    what: Job | Given | None = None,
    out: str | Path | None = None,
    *,
    results: str | Path | None = None,
    sequence_length: int | None = None,
    assumptions: Given = DEFAULT_ASSUMPTIONS,
    set: Fields | None = None,
    top: int = 3,
    library: str | None = None,
    time_limit: str = "5 min",
    collectives: str | Path | None = None,
    device: str | Path | None = None,
    watch: Watch | None = None,
) -> Measured:
    """Time multiplies, attention and norms on the device at hand.

    The kernels are those of plans; their times are written as operator times.

        job = dsx.Job("llama-3-8b", "h100-nvs8", num_gpus=64, global_batch_size=256)
        dsx.measure(job, "times.csv")                    # the kernels of its best plans
        dsx.best(job.replace(operator_times="times.csv"))
        dsx.measure("llama-3-8b", "times.csv")           # of tensor-parallel degrees and microbatch sizes
        dsx.measure(results="results/sweep", out="times.csv")

    Multiplies, attention, norms and other operators with a function here are timed once a shape, the heaviest of each
    operator first. A row is written as soon as it is known; kernels that the file has already are not timed again.

    Args:
        what: a job, whose best plans are measured; or a model, as `Job` takes it, of which a spread of shapes is.
        out: the file of operator times to write, or to go on with; by default none.
        results: the folder of a result set whose fastest plans are measured, in place of a job or a model.
        sequence_length: tokens of a sequence of a model; by default its own.
        assumptions: the assumption set of a model.
        set: overridden fields of model and assumptions of a model, as `Job` takes them.
        top: how many plans of a job or a result set.
        library: "jax" or "torch"; by default the one that has an accelerator, else jax.
        time_limit: no kernel is begun after it, or if it would not be done by then.
        collectives: a CSV file for the times of collectives over the local devices, if there are several (with JAX).
        device: a cluster file to write, with the rates that the local devices reach (arithmetic and memory with JAX).
        watch: called with the kernels done, their number and a word; by default a bar is shown.

    Raises InputError for a library that is not installed and a file that another device or library has made, StoreError
    for a file that cannot be written, NothingFeasible for a job without a plan that fits.
    """
    watch, limit_s, most = watcher(watch), seconds_from("time_limit", time_limit), count("top", top)
    files = {"-o": out, "--collectives": collectives, "--device": device}
    paths = {option: file_path(option, path) for option, path in files.items() if path is not None}
    for option, path in paths.items():
        check_output_file(path, (), option)
    plans = _plans(what, results, sequence_length, assumptions, set, most)
    runs = find_library(library)
    file = MeasuredFile(paths.get("-o"), f"{runs.software} on {runs.device}")
    kernels = cases(plans)
    missing = [case for case in kernels if not file.has(case)]
    with_network = bool({"--collectives", "--device"} & paths.keys())
    begin = monotonic()
    timed: list[Outcome] = []
    with progress(len(missing), "measuring", watch) as advance:
        for outcome in outcomes(missing, runs, limit_s * (_KERNELS if with_network else 1.0)):
            timed.append(outcome)
            if outcome.timing is not None:
                file.add(outcome.case, outcome.timing)
            advance(1)
    times = _collectives(limit_s - (monotonic() - begin), watch) if with_network else ()
    if "--collectives" in paths:
        write_output_file(paths["--collectives"], collectives_file(times))
    if "--device" in paths:
        write_output_file(paths["--device"], _device(paths["--device"], runs, kernels, times))
    return Measured(runs.device, runs.software, timed, len(kernels) - len(missing), times, paths.get("-o"), file.text)


def _plans(
    what: Job | Given | None,
    results: str | Path | None,
    sequence_length: int | None,
    assumptions: Given,
    fields: Fields | None,
    top: int,
) -> list[MeasuredPlans]:
    hint = "a job or a model is measured, or the plans of a result set"
    if what is not None and results is not None:
        raise InputError(f"{hint}; both are given")
    superfluous = [name for name, value in (("sequence_length", sequence_length), ("set", fields)) if value]
    if superfluous and (results is not None or isinstance(what, Job)):
        whose = "a result set has that of its sweep" if results is not None else "a job has its own"
        raise InputError(f"{option_of(superfluous[0])}: {whose}; leave it out")
    if results is not None:
        return plans_of_set(file_path("results", results), top)
    if what is None:
        raise InputError(f"{hint}; neither is given")
    if isinstance(what, Job):
        return plans_of_job(what, top)
    length = None if sequence_length is None else count("sequence_length", sequence_length)
    return spread_of_model(what, assumptions, split_overrides(assignments("set", fields)), length)


def _collectives(limit_s: float, watch: Watch | None) -> "Sequence[CollectiveTime]":
    """Return the times of collectives over all local devices, and over fewer of them, as far as the time goes."""
    from dsx.measuring.device import SIZES, collective_times, groups

    end = monotonic() + limit_s
    times: list[CollectiveTime] = []
    sizes = [*reversed(groups())]
    with progress(len(sizes) * len(SIZES), "collectives", watch) as advance:
        for num_devices in sizes:
            for collective in collective_times(num_devices, SIZES):
                times.append(collective)
                advance(1)
                if monotonic() > end:
                    return times
    return times


def _device(path: Path, runs: Library, kernels: Sequence[Case], times: "Sequence[CollectiveTime]") -> str:
    from dsx.measuring.device import device_rates

    rates = device_rates(runs, kernels[0].dtype)
    return device_file(path.stem, f"{runs.software} on {runs.device}", rates, times)


LARGE = 0.1  # a spread above it is said


_SHOWN = 10  # kernels of a list in a text


def kernels_text(measured: Sequence[DataView]) -> str:
    """Return kernels as a table, with the rate of each: FLOP/s of multiplies, else bytes/s."""
    rows = [
        [
            kernel["operator"],
            kernel["direction"] or "",
            kernel["shape"],
            kernel["dtype"],
            format_quantity(kernel["time_s"], "s"),
            f"{100 * kernel['spread']:.0f} %",
            _rate(kernel),
        ]
        for kernel in measured
    ]
    header = ["operator", "direction", "m x n x k", "dtype", "time", "spread", "rate"]
    return table(header, rows, text=(0, 1, 2, 3)) if rows else ""


def _rate(kernel: DataView) -> str:
    amount, unit = (kernel["flops"], "flop/s") if kernel["flops"] else (kernel["bytes"], "bytes/s")
    return format_quantity(amount / kernel["time_s"], unit)


def spread_text(measured: Sequence[DataView]) -> str:
    """Return which times vary much; empty if none does."""
    loose = [kernel for kernel in measured if kernel["spread"] > LARGE]
    if not loose:
        return ""
    named = [
        f"{kernel['operator']} {kernel['direction'] or ''} {kernel['shape']}".replace("  ", " ")
        for kernel in loose[:_SHOWN]
    ]
    more = ", ..." if len(loose) > _SHOWN else ""
    return (
        f"{counted(len(loose), 'time')} with a spread above {100 * LARGE:.0f} % between the quartiles; was something "
        f"else running? {', '.join(named)}{more}"
    )


def left_out_text(left_out: Sequence[DataView]) -> str:
    """Return the kernels without a time by the reason; empty if there are none."""
    reasons: dict[str, list[str]] = {}
    for kernel in left_out:
        what = f"{kernel['operator']} {kernel['direction'] or ''}".strip()
        reasons.setdefault(kernel["why_not"], []).append(f"{what} {kernel['shape']}")
    lines = [
        f"{counted(len(names), 'kernel')} not measured ({reason}): {', '.join(names[:_SHOWN])}"
        f"{', ...' if len(names) > _SHOWN else ''}"
        for reason, names in reasons.items()
    ]
    return "\n".join(lines)


def collectives_text(measured: Sequence[DataView]) -> str:
    """Return collectives as a table."""
    rows = [
        [
            collective["collective"],
            str(collective["num_devices"]),
            format_quantity(collective["bytes"], "bytes"),
            format_quantity(collective["time_s"], "s"),
            f"{100 * collective['spread']:.0f} %",
            format_quantity(collective["bytes"] / collective["time_s"], "bytes/s"),
        ]
        for collective in measured
    ]
    return table(["collective", "devices", "size", "time", "spread", "rate"], rows) if rows else ""
