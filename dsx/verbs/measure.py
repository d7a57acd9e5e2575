"""Times of kernels on the device at hand, as a file of operator times, and the device as a cluster file.

The device at hand as a cluster file, and its collectives as a table of measured times.

The file of ``dsx measure``: it grows by a row as soon as a kernel is timed, and a later run goes on with it.

The plans whose kernels are measured: the best of a job or of a result set, or a spread over a model's shapes.

Times of kernels on the device at hand, as a file of operator times.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.load import Assignment, Given
from dsx.config.model_file import load_model
from dsx.config.operator_files import (
    DIRECTIONS,
    DTYPES,
    WRITTEN,
    OperatorTime,
    read_operator_times,
    shape_text,
    written_row,
)
from dsx.config.search_path import shown
from dsx.errors import InputError, NothingFeasible, SpecError, file_path
from dsx.measuring.cases import Case, Outcome, cases_of, in_turn, outcomes
from dsx.measuring.device import CollectiveTime, DeviceRates
from dsx.measuring.library import Library, find_library
from dsx.measuring.timing import Timing
from dsx.notation.model import Model, build_model, layer_check
from dsx.notation.syntax import AXES
from dsx.plans.choices import KEY_COLUMNS
from dsx.plans.violations import allowed
from dsx.pricing.measured_share import key_of
from dsx.progress import Watch, progress
from dsx.results.sets import fastest, read_manifest
from dsx.tables.answers import collectives_text, kernels_text, left_out_text, spread_text
from dsx.units import counted, exact_quantity
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
from dsx.verbs.why import inputs_of

if TYPE_CHECKING:
    import pandas as pd

    from dsx.measuring.device import CollectiveTime


# The first four columns are those of data/validation/nccl.csv, to which the network's parameters are fitted.
_COLUMNS = ("collective", "num_nodes", "gpus_per_node", "message_bytes", "time_us", "spread")
# Of a device without neighbours; no plan on one device uses them.
_BANDWIDTH, _LATENCY = 1e10, 1e-6


def collectives_file(measured: Sequence[CollectiveTime]) -> str:
    """Return measured collectives as CSV, a row for each; all devices are on one node."""
    rows = [
        (
            one.kind.replace("-", ""),
            "1",
            str(one.num_devices),
            str(one.num_bytes),
            f"{1e6 * one.timing.median_s:.6g}",
            f"{one.timing.spread:.3f}",
        )
        for one in measured
    ]
    return "".join(f"{','.join(cells)}\n" for cells in (_COLUMNS, *rows))


def device_file(name: str, measured_with: str, rates: DeviceRates, collectives: Sequence[CollectiveTime]) -> str:
    """Return a cluster file of the local devices, with what they reach in place of the peaks of a data sheet."""
    source = f"dsx measure with {measured_with}"
    devices = max((one.num_devices for one in collectives), default=1)
    of_all = [one for one in collectives if one.num_devices == devices]
    bandwidth = max((one.num_bytes / one.timing.median_s for one in of_all), default=_BANDWIDTH)
    latency = min((one.timing.median_s for one in of_all), default=_LATENCY)
    network = (
        f"{source}: the best rate and the shortest time of a collective over all devices"
        if of_all
        else "assumption: one device has no neighbours"
    )

    def sourced(value: float, unit: str, source: str) -> str:
        return f"{{value: {exact_quantity(float(f'{value:.4g}'), unit)}, source: {json.dumps(source)}}}"

    tier = [f"bandwidth: {sourced(bandwidth, 'bytes/s', network)}", f"latency: {sourced(latency, 's', network)}"]
    lines = [
        f"name: {json.dumps(name)}",
        f"description: {json.dumps(f'The local devices, measured with {measured_with}.')}",
        "device:",
        f"  name: {json.dumps(name)}",
        f"  matrix_flops: {sourced(rates.matrix_flops, 'flop/s', f'{source}: the best rate of square multiplies')}",
        f"  vector_flops: {sourced(rates.vector_flops, 'flop/s', f'{source}: multiplies and additions of float32')}",
        f"  hbm_bandwidth: {sourced(rates.bandwidth, 'bytes/s', f'{source}: the sum of two arrays')}",
        f"  hbm_capacity: {sourced(rates.memory_bytes, 'bytes', f'{source}: memory of the device')}",
        "network:",
        "  nvs:",
        f"    size: {{value: {devices}, source: {json.dumps(f'{source}: the local devices')}}}",
        *(f"    {line}" for line in tier),
        "  net:",
        *(f"    {line}" for line in tier),
    ]
    return "".join(f"{line}\n" for line in lines)


_MADE_BY = "# measured with "
_HEADER = ",".join(WRITTEN)


class MeasuredFile:
    """The operator times of one device, in a file or, without a path, in memory."""

    def __init__(self, path: Path | None, measured_with: str) -> None:
        """Begin a file, or go on with the one that is there.

        `measured_with` names the library and the device, in one line. Raises OperatorTimesError for a file that cannot
        be read, InputError for one that `dsx measure` has not written, or on another device or with another library.
        """
        if path is not None and path.exists() and not path.is_file():
            raise InputError(f"-o {shown(path)}: is no file, and times are written one by one; choose a file")
        self.path = path
        self._lines = [f"{_MADE_BY}{measured_with}", _HEADER]
        self.kept: tuple[OperatorTime, ...] = ()  # rows that were there
        if path is not None and path.is_file() and path.stat().st_size:
            self.kept = read_operator_times(str(path)).rows
            lines = path.read_text(encoding="utf-8").splitlines()
            self._check(path, lines)
            self._lines = lines
        self._there = {key for row in self.kept for key in _keys(row)}

    def _check(self, path: Path, lines: list[str]) -> None:
        if not lines[0].startswith(_MADE_BY) or lines[1:2] != [_HEADER]:
            raise InputError(
                f"-o {shown(path)}: is no file of dsx measure, which begins with {_MADE_BY!r} and the columns "
                f"{_HEADER}; choose another file"
            )
        if lines[0] != self._lines[0]:
            raise InputError(
                f"-o {shown(path)}: was {lines[0].removeprefix('# ')}, and this is "
                f"{self._lines[0].removeprefix(_MADE_BY)}; choose another file"
            )

    def has(self, case: Case) -> bool:
        """Return whether a kernel has a row."""
        return case.key in self._there

    def add(self, case: Case, timing: Timing) -> None:
        """Add a row and write the file; raises StoreError if that fails."""
        row = written_row(case.operator, case.direction, case.shape, case.dtype, timing.median_s, timing.spread)
        self._lines.append(row)
        self._there.add(case.key)
        if self.path is not None:
            write_output_file(self.path, self.text)

    @property
    def text(self) -> str:
        """The content of the file."""
        return "".join(f"{line}\n" for line in self._lines)


def _keys(row: OperatorTime) -> Iterator[tuple[str, int | None, tuple[int, int, int, int], int]]:
    """Yield the keys of the kernels (`Case.key`) that a row gives the time of."""
    for width in [DTYPES[row.dtype]] if row.dtype else dict.fromkeys(DTYPES.values()):
        for direction in (None,) if len(row.directions) > 1 else row.directions:
            yield row.operator, direction, row.shape, width


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
    found = [case for one in plans for case in cases_of(one.model, one.assumptions, one.sequence_length, one.keys)]
    return in_turn({case.key: case for case in reversed(found)}.values())


def plans_of_job(job: Job, top: int) -> list[MeasuredPlans]:
    """Return the `top` fastest plans of a job; raises NothingFeasible, with the reason, if none fits."""
    found = best(job, top)
    if not found.plans:
        raise NothingFeasible(found.infeasible)
    models = dict(zip(found.problem.strategies, found.problem.models, strict=True))
    return _grouped([(plan, models[plan["strategy"]], job.assumptions) for plan in found.plans])


def plans_of_set(folder: Path, top: int) -> list[MeasuredPlans]:
    """Return the `top` fastest plans of a result set.

    Raises StoreError if the set cannot be read, NothingFeasible if none of its rows fits.
    """
    manifest = read_manifest(folder)
    rows = fastest(folder, top)
    if not rows:
        raise NothingFeasible(f"no plan to measure: none of the rows of {folder} is feasible")
    stated = dict(zip(manifest.names["strategy"], manifest.spec["resolved"]["strategy"], strict=True))
    found: list[tuple[Mapping[str, Any], Model, AssumptionsSpec]] = []
    models: dict[str, tuple[Model, AssumptionsSpec]] = {}
    for row in rows:
        strategy = row["plan"]["strategy"]
        if strategy not in models:
            inputs = inputs_of(folder, manifest, row["hardware"])
            built = build_model(inputs.model, inputs.assumptions, stated[strategy], inputs.near)
            models[strategy] = (built, inputs.assumptions)
        found.append((row["plan"], *models[strategy]))
    return _grouped(found)


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


def _grouped(plans: Sequence[tuple[Mapping[str, Any], Model, AssumptionsSpec]]) -> list[MeasuredPlans]:
    """Return plans in groups of one model, strategy and sequence length."""
    groups: dict[tuple[int, int], list[tuple[Mapping[str, Any], Model, AssumptionsSpec]]] = {}
    for plan, model, assumptions in plans:
        groups.setdefault((id(model), plan["sequence_length"]), []).append((plan, model, assumptions))
    made: list[MeasuredPlans] = []
    for (_, length), members in groups.items():
        tables = [key_of(plan) for plan, _, _ in members]
        keys = {name: np.concatenate([one[name] for one in tables]) for name in tables[0]}
        made.append(MeasuredPlans(members[0][1], members[0][2], int(length), keys))
    return made


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
    def measured(self) -> list[dict[str, Any]]:
        """The kernels that this run timed, as plain data; times in seconds, spread as a share of the median."""
        return [
            _as_data(one.case)
            | {"time_s": one.timing.median_s, "spread": one.timing.spread, "samples": one.timing.samples}
            for one in self.outcomes
            if one.timing is not None
        ]

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """The kernels without a time, and why."""
        return [_as_data(one.case) | {"why_not": one.why_not} for one in self.outcomes if one.timing is None]

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """The kernels that this run timed, one per row; units in `attrs`."""
        import pandas as pd

        frame = pd.DataFrame(self.measured)
        frame.attrs["units"] = {"time_s": "s", "bytes": "bytes", "flops": "FLOP"}
        return frame

    def _data(self) -> dict[str, Any]:
        """Return the answer as plain data; times in seconds."""
        return {
            "device": self.device,
            "software": self.software,
            "file": self.out and str(self.out),
            "kept": self.num_kept,
            "measured": self.measured,
            "left_out": self.left_out,
            "collectives": [_collective_data(one) for one in self.collectives],
        }

    def __str__(self) -> str:
        measured = self.measured
        where = f" in {shown(self.out)}" if self.out else ""
        kept = f", {self.num_kept} were there" if self.num_kept else ""
        head = f"{counted(len(measured), 'kernel')} measured with {self.software} on {self.device}{where}{kept}"
        return paragraphs(
            [
                "\n".join(filter(None, (head, kernels_text(measured)))),
                collectives_text([_collective_data(one) for one in self.collectives]),
                "\n".join(filter(None, (spread_text(measured), left_out_text(self.left_out)))),
            ]
        )


def _as_data(case: Case) -> dict[str, Any]:
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


def _collective_data(one: "CollectiveTime") -> dict[str, Any]:
    return {
        "collective": one.kind,
        "num_devices": one.num_devices,
        "bytes": one.num_bytes,
        "time_s": one.timing.median_s,
        "spread": one.timing.spread,
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
    """Time the kernels that plans run on the device at hand, and write them as operator times.

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
        results: the folder of a result set in place of `what`, whose fastest plans are measured.
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
    wanted = cases(plans)
    missing = [case for case in wanted if not file.has(case)]
    with_network = bool({"--collectives", "--device"} & paths.keys())
    begin = monotonic()
    found: list[Outcome] = []
    with progress(len(missing), "measuring", watch) as advance:
        for outcome in outcomes(missing, runs, limit_s * (_KERNELS if with_network else 1.0)):
            found.append(outcome)
            if outcome.timing is not None:
                file.add(outcome.case, outcome.timing)
            advance(1)
    times = _collectives(limit_s - (monotonic() - begin), watch) if with_network else ()
    if "--collectives" in paths:
        write_output_file(paths["--collectives"], collectives_file(times))
    if "--device" in paths:
        write_output_file(paths["--device"], _device(paths["--device"], runs, wanted, times))
    return Measured(runs.device, runs.software, found, len(wanted) - len(missing), times, paths.get("-o"), file.text)


def _plans(
    what: Job | Given | None,
    results: str | Path | None,
    sequence_length: int | None,
    assumptions: Given,
    fields: Fields | None,
    top: int,
) -> list[MeasuredPlans]:
    wanted = "a job or a model is measured, or the plans of a result set"
    if what is not None and results is not None:
        raise InputError(f"{wanted}; both are given")
    given = [name for name, value in (("sequence_length", sequence_length), ("set", fields)) if value]
    if given and (results is not None or isinstance(what, Job)):
        whose = "a result set has that of its sweep" if results is not None else "a job has its own"
        raise InputError(f"{option_of(given[0])}: {whose}; leave it out")
    if results is not None:
        return plans_of_set(file_path("results", results), top)
    if what is None:
        raise InputError(f"{wanted}; neither is given")
    if isinstance(what, Job):
        return plans_of_job(what, top)
    length = None if sequence_length is None else count("sequence_length", sequence_length)
    return spread_of_model(what, assumptions, split_overrides(assignments("set", fields)), length)


def _collectives(limit_s: float, watch: Watch | None) -> "Sequence[CollectiveTime]":
    """Return the times of collectives over all local devices, and over fewer of them, as far as the time goes."""
    from dsx.measuring.device import SIZES, collective_times, groups

    end = monotonic() + limit_s
    found: list[CollectiveTime] = []
    sizes = [*reversed(groups())]
    with progress(len(sizes) * len(SIZES), "collectives", watch) as advance:
        for num_devices in sizes:
            for one in collective_times(num_devices, SIZES):
                found.append(one)
                advance(1)
                if monotonic() > end:
                    return found
    return found


def _device(path: Path, runs: Library, wanted: Sequence[Case], times: "Sequence[CollectiveTime]") -> str:
    from dsx.measuring.device import device_rates

    rates = device_rates(runs, wanted[0].dtype)
    return device_file(path.stem, f"{runs.software} on {runs.device}", rates, times)
