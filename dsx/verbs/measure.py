"""``dsx measure``: times of kernels on the device at hand, as a file of operator times.

The kernels are those of the best plans of a job or of a result set, or of a spread over a model's shapes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.load import Assignment, Given, value_text
from dsx.config.model_file import load_model
from dsx.config.operator_files import DTYPES, WRITTEN, read_operator_times, shape_text, written_row
from dsx.config.search_path import shown
from dsx.errors import InputError, NothingFeasible, SpecError, file_path
from dsx.measuring.array_library import Library, Timing, find_library
from dsx.measuring.cases import Case, Outcome, cases_of, in_turn, outcomes
from dsx.measuring.jax_library import SIZES, CollectiveTime, collective_times, device_rates, groups
from dsx.notation.model import Model, build_model, layer_check
from dsx.notation.syntax import AXES
from dsx.plans.choices import KEY_COLUMNS
from dsx.plans.enumerate import Arrays
from dsx.plans.violations import allowed
from dsx.pricing.measured_share import key_of
from dsx.progress import Watch, progress
from dsx.results.frames import fastest, read_manifest
from dsx.tables.format import table
from dsx.tables.terms import shapes_data
from dsx.text import Data, DataFrame, DataView
from dsx.units import counted, exact_quantity, format_quantity
from dsx.verbs.arguments import (
    Answer,
    Fields,
    assignments,
    check_output_file,
    count,
    option_of,
    paragraphs,
    seconds_from,
    watcher,
    with_units,
    write_output_file,
)
from dsx.verbs.best import best
from dsx.verbs.job import DEFAULT_ASSUMPTIONS, Job, file_of, split_overrides
from dsx.verbs.show import inputs_of

# Of a spread: the tensor-parallel degrees that a fast domain has room for, and sequences of a microbatch.
_SPREAD = {"tp": (1, 2, 4, 8), "microbatch_size": (1, 2, 4)}


# Plans of a model under one strategy and sequence length, as a key table: the arguments of `cases_of`.
MeasuredPlans = tuple[Model, AssumptionsSpec, int, Mapping[str, np.ndarray]]


def cases(plans: Sequence[MeasuredPlans]) -> list[Case]:
    """Return the distinct kernels of several plans, in the order in which they are measured."""
    of_plans = [case for plan in plans for case in cases_of(*plan)]
    return in_turn({case.key: case for case in reversed(of_plans)}.values())


def _spread_of_model(
    model: Given, assumptions: Given, overrides: Mapping[str, Sequence[Assignment]], sequence_length: int | None
) -> list[MeasuredPlans]:
    """Return tensor-parallel degrees and microbatch sizes of a model, under the default strategy.

    Raises SpecError for a file that cannot be read, an override of a cluster, and a strategy that allows none of them.
    """
    for path, value in overrides["cluster"]:
        setting = f"--set cluster.{path}={value_text(value)}"
        raise SpecError(f"{setting}: no cluster is read here; shapes do not depend on one")
    near = file_of(model)
    assumed = load_assumptions(assumptions, overrides["assumptions"])
    spec = load_model(model, overrides["model"], None, layer_check(near, assumed))
    built = build_model(spec, assumed, assumed.default_strategy, near)
    length = sequence_length or spec.default_sequence_length
    degrees, sizes = (column.ravel() for column in np.meshgrid(_SPREAD["tp"], _SPREAD["microbatch_size"]))
    keys = {name: np.ones_like(degrees) for name in (*KEY_COLUMNS, *AXES, "panels")}
    keys |= {"strategy": np.zeros_like(degrees), "tp": degrees, "microbatch_size": sizes}
    good = np.asarray(allowed(built.body_layer, spec.dimensions, length, keys))
    if not good.any():
        raise SpecError(
            f"strategy {assumed.default_strategy!r} runs none of tp={','.join(map(str, _SPREAD['tp']))} on model "
            f"{spec.name!r}: give a job, with --cluster, --num-gpus and --global-batch-size"
        )
    return [(built, assumed, length, {name: column[good] for name, column in keys.items()})]


_KERNELS = 0.75  # share of the time that kernels have where collectives are timed too
_LARGE = 0.1  # a spread above it is said
_SHOWN = 10  # kernels of a list in a text


@dataclass(frozen=True, eq=False, repr=False)
class Measured(Answer):
    """Measured times of kernels, and of collectives where they were asked for."""

    device: str  # of the times
    software: str  # the array library and its release
    outcomes: Sequence[Outcome]  # of this run
    num_kept: int  # kernels that the file had already
    collectives: Sequence[CollectiveTime]  # of this run, where they were asked for
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
        untimed = [outcome for outcome in self.outcomes if outcome.timing is None]
        return [_as_data(outcome.case) | {"why_not": outcome.why_not} for outcome in untimed]

    @cached_property
    def frame(self) -> DataFrame:
        """The kernels that this run timed, one per row; units in `attrs`."""
        return with_units(self.measured)

    def _data(self) -> Data:
        collectives = [
            {"collective": c.kind, "num_devices": c.num_devices, "bytes": c.num_bytes}
            | {"time_s": c.timing.median_s, "spread": c.timing.spread}
            for c in self.collectives
        ]
        data: Data = {"device": self.device, "software": self.software, "file": self.out and str(self.out)}
        data |= {"kept": self.num_kept, "measured": self.measured, "left_out": self.left_out}
        return data | {"collectives": collectives}

    def __str__(self) -> str:
        measured, kept = self.measured, f", {self.num_kept} were there" if self.num_kept else ""
        where = f" in {shown(self.out)}" if self.out else ""
        head = f"{counted(len(measured), 'kernel')} measured with {self.software} on {self.device}{where}{kept}"
        kernels: list[list[str]] = []
        for kernel in measured:
            of_matrix, seconds = kernel["flops"], kernel["time_s"]
            rate = format_quantity((of_matrix or kernel["bytes"]) / seconds, "flop/s" if of_matrix else "bytes/s")
            words = [kernel["operator"], kernel["direction"] or "", kernel["shape"], kernel["dtype"]]
            kernels.append([*words, format_quantity(seconds, "s"), f"{100 * kernel['spread']:.0f} %", rate])
        header = ["operator", "direction", "m x n x k", "dtype", "time", "spread", "rate"]
        collectives: list[list[str]] = []
        for collective in self.collectives:
            size, seconds = collective.num_bytes, collective.timing.median_s
            times = [format_quantity(seconds, "s"), f"{100 * collective.timing.spread:.0f} %"]
            what = [collective.kind, str(collective.num_devices), format_quantity(size, "bytes")]
            collectives.append([*what, *times, format_quantity(size / seconds, "bytes/s")])
        of_collectives = ["collective", "devices", "size", "time", "spread", "rate"]
        loose = [_name(kernel) for kernel in measured if kernel["spread"] > _LARGE]
        untimed: dict[str, list[str]] = {}
        for kernel in self.left_out:
            untimed.setdefault(kernel["why_not"], []).append(_name(kernel))
        lacking = [(counted(len(names), "kernel"), reason, names) for reason, names in untimed.items()]
        remarks = [f"{number} not measured ({reason}): {_first(names)}" for number, reason, names in lacking]
        if loose:
            times = f"{counted(len(loose), 'time')} with a spread above {100 * _LARGE:.0f} % between the quartiles"
            remarks = [f"{times}; was something else running? {_first(loose)}", *remarks]
        of_kernels = "\n".join([head, *([table(header, kernels, text=(0, 1, 2, 3))] if kernels else [])])
        of_network = table(of_collectives, collectives) if collectives else ""
        return paragraphs([of_kernels, of_network, "\n".join(remarks)])


def _name(kernel: DataView) -> str:
    return " ".join(filter(None, (kernel["operator"], kernel["direction"], kernel["shape"])))


def _first(names: Sequence[str]) -> str:
    return ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])


def _as_data(case: Case) -> Data:
    (kernel,) = shapes_data([(case.operator, case.direction, case.shape)])
    kernel |= {"shape": shape_text(case.shape), "dtype": case.dtype}
    return kernel | {"flops": case.flops, "bytes": case.num_bytes}


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
        lines = [",".join(_COLUMNS)]
        for collective in times:
            kind, time_us = collective.kind.replace("-", ""), 1e6 * collective.timing.median_s
            sizes = f"1,{collective.num_devices},{collective.num_bytes}"
            lines.append(f"{kind},{sizes},{time_us:.6g},{collective.timing.spread:.3f}")
        write_output_file(paths["--collectives"], "".join(f"{line}\n" for line in lines))
    if "--device" in paths:
        write_output_file(paths["--device"], _device(paths["--device"].stem, runs, kernels, times))
    return Measured(runs.device, runs.software, timed, len(kernels) - len(missing), times, paths.get("-o"), file.text)


def _plans(
    what: Job | Given | None,
    results: str | Path | None,
    sequence_length: int | None,
    assumptions: Given,
    fields: Fields | None,
    top: int,
) -> list[MeasuredPlans]:
    """Return the `top` fastest plans of a job or of a result set, or a spread over the shapes of a model.

    Raises NothingFeasible, with the reason, if no plan fits, StoreError if the set cannot be read.
    """
    hint = "a job or a model is measured, or the plans of a result set"
    if what is not None and results is not None:
        raise InputError(f"{hint}; both are given")
    superfluous = [name for name, value in (("sequence_length", sequence_length), ("set", fields)) if value]
    if superfluous and (results is not None or isinstance(what, Job)):
        whose = "a result set has that of its sweep" if results is not None else "a job has its own"
        raise InputError(f"{option_of(superfluous[0])}: {whose}; leave it out")
    plans: list[DataView] = []
    models: dict[str, tuple[Model, AssumptionsSpec]] = {}  # by strategy
    if results is not None:
        folder = file_path("results", results)
        manifest = read_manifest(folder)
        rows = fastest(folder, top)
        if not rows:
            raise NothingFeasible(f"no plan to measure: none of the rows of {folder} is feasible")
        for row in rows:
            plans.append(row["plan"])
            strategy = row["plan"]["strategy"]
            if strategy not in models:
                inputs = inputs_of(folder, manifest, row["hardware"])
                built = build_model(inputs.model, inputs.assumptions, manifest.strategy_paths[strategy], inputs.near)
                models[strategy] = built, inputs.assumptions
    elif what is None:
        raise InputError(f"{hint}; neither is given")
    elif isinstance(what, Job):
        answer = best(what, top)
        if not answer.plans:
            raise NothingFeasible(answer.infeasible)
        plans += answer.plans
        for strategy, model in zip(answer.problem.strategies, answer.problem.models, strict=True):
            models[strategy] = model, what.assumptions
    else:
        length = None if sequence_length is None else count("sequence_length", sequence_length)
        return _spread_of_model(what, assumptions, split_overrides(assignments("set", fields)), length)
    groups: dict[tuple[str, int], list[Arrays]] = {}
    for plan in plans:
        groups.setdefault((plan["strategy"], int(plan["sequence_length"])), []).append(key_of(plan))
    return [
        (*models[strategy], length, {name: np.concatenate([keys[name] for keys in of]) for name in of[0]})
        for (strategy, length), of in groups.items()
    ]


def _collectives(limit_s: float, watch: Watch | None) -> Sequence[CollectiveTime]:
    """Return the times of collectives over all local devices, and over fewer of them, as far as the time goes."""
    end = monotonic() + limit_s
    times: list[CollectiveTime] = []
    sizes = [*reversed(groups())]
    with progress(len(sizes) * len(SIZES), "collectives", watch) as advance:
        for collective in (collective for size in sizes for collective in collective_times(size, SIZES)):
            times.append(collective)
            advance(1)
            if monotonic() > end:
                break
    return times


# The first four columns are those of data/validation/nccl.csv, to which the network's parameters are fitted.
_COLUMNS = ("collective", "num_nodes", "gpus_per_node", "message_bytes", "time_us", "spread")
# Of a device without neighbours; no plan on one device uses them.
_BANDWIDTH, _LATENCY = 1e10, 1e-6


def _device(name: str, runs: Library, kernels: Sequence[Case], collectives: Sequence[CollectiveTime]) -> str:
    """Return a cluster file of the local devices, with what they reach in place of the peaks of a data sheet."""
    rates, measured_with = device_rates(runs, kernels[0].dtype), f"{runs.software} on {runs.device}"
    source = f"dsx measure with {measured_with}"
    devices = max((collective.num_devices for collective in collectives), default=1)
    of_all = [collective for collective in collectives if collective.num_devices == devices]
    bandwidth = max((collective.num_bytes / collective.timing.median_s for collective in of_all), default=_BANDWIDTH)
    latency = min((collective.timing.median_s for collective in of_all), default=_LATENCY)
    network = "assumption: one device has no neighbours"
    if of_all:
        network = f"{source}: the best rate and the shortest time of a collective over all devices"

    def sourced(value: float, unit: str, source: str) -> str:
        return f"{{value: {exact_quantity(float(f'{value:.4g}'), unit)}, source: {json.dumps(source)}}}"

    tier = f"    bandwidth: {sourced(bandwidth, 'bytes/s', network)}\n    latency: {sourced(latency, 's', network)}\n"
    return (
        f"name: {json.dumps(name)}\n"
        f"description: {json.dumps(f'The local devices, measured with {measured_with}.')}\n"
        "device:\n"
        f"  name: {json.dumps(name)}\n"
        f"  matrix_flops: {sourced(rates.matrix_flops, 'flop/s', f'{source}: the best rate of square multiplies')}\n"
        f"  vector_flops: {sourced(rates.vector_flops, 'flop/s', f'{source}: multiplies and additions of float32')}\n"
        f"  hbm_bandwidth: {sourced(rates.bandwidth, 'bytes/s', f'{source}: the sum of two arrays')}\n"
        f"  hbm_capacity: {sourced(rates.memory_bytes, 'bytes', f'{source}: memory of the device')}\n"
        "network:\n"
        "  nvs:\n"
        f"    size: {{value: {devices}, source: {json.dumps(f'{source}: the local devices')}}}\n"
        f"{tier}"
        "  net:\n"
        f"{tier}"
    )


_MADE_BY = "# measured with "
_HEADER = ",".join(WRITTEN)


class MeasuredFile:
    """The operator times of one device, in a file or, without a path, in memory."""

    def __init__(self, path: Path | None, measured_with: str) -> None:
        """Begin a file, or go on with the one that is there.

        `measured_with` names the library and the device, in one line. Raises OperatorTimesError for a file that cannot
        be read, InputError for one that `dsx measure` has not written, or on another device or with another library.
        """
        self._path = path
        self._lines = [f"{_MADE_BY}{measured_with}", _HEADER]
        self._keys: set[object] = set()  # of the kernels (`Case.key`) that have a row
        if path is None or not path.exists():
            return
        if not path.is_file():
            raise InputError(f"-o {shown(path)}: is no file, and times are written one by one; choose a file")
        if not path.stat().st_size:
            return
        for row in read_operator_times(str(path)).rows:
            widths = [DTYPES[row.dtype]] if row.dtype else dict.fromkeys(DTYPES.values())
            directions = (None,) if len(row.directions) > 1 else row.directions
            self._keys |= {(row.operator, direction, row.shape, width) for width in widths for direction in directions}
        lines = path.read_text(encoding="utf-8").splitlines()
        if not lines[0].startswith(_MADE_BY) or lines[1:2] != [_HEADER]:
            raise InputError(
                f"-o {shown(path)}: is no file of dsx measure, which begins with {_MADE_BY!r} and the columns "
                f"{_HEADER}; choose another file"
            )
        if lines[0] != self._lines[0]:
            raise InputError(
                f"-o {shown(path)}: was {lines[0].removeprefix('# ')}, and this is {measured_with}; choose another file"
            )
        self._lines = lines

    def has(self, case: Case) -> bool:
        """Return whether a kernel has a row."""
        return case.key in self._keys

    def add(self, case: Case, timing: Timing) -> None:
        """Add a row and write the file; raises StoreError if that fails."""
        row = written_row(case.operator, case.direction, case.shape, case.dtype, timing.median_s, timing.spread)
        self._lines.append(row)
        self._keys.add(case.key)
        if self._path is not None:
            write_output_file(self._path, self.text)

    @property
    def text(self) -> str:
        """The content of the file."""
        return "".join(f"{line}\n" for line in self._lines)
