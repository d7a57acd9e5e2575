"""Times of kernels on the device at hand, as a file of operator times."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from dsx.api.answer import Answer, paragraphs
from dsx.api.arguments import Fields, assignments, count, option_of, seconds_from, watcher
from dsx.api.inputs import split_overrides
from dsx.api.job import DEFAULT_ASSUMPTIONS, Job
from dsx.api.measured_device import collectives_file, device_file
from dsx.api.measured_file import MeasuredFile
from dsx.api.measured_plans import MeasuredPlans, cases, plans_of_job, plans_of_set, spread_of_model
from dsx.api.output_file import check_output_file, write_output_file
from dsx.argument_types import file_path
from dsx.display.measured_text import collectives_text, kernels_text, left_out_text, spread_text
from dsx.errors import InputError
from dsx.measuring.cases import Case
from dsx.measuring.library import Library, find_library
from dsx.measuring.run_cases import Outcome, outcomes
from dsx.progress import Watch, progress
from dsx.spec.load import Given
from dsx.spec.locate import shown
from dsx.spec.operator_times import DIRECTIONS, shape_text
from dsx.units import counted

if TYPE_CHECKING:
    import pandas as pd

    from dsx.measuring.collectives import CollectiveTime

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
    from dsx.measuring.collectives import SIZES, collective_times, groups

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
    from dsx.measuring.device_rates import device_rates

    rates = device_rates(runs, wanted[0].dtype)
    return device_file(path.stem, f"{runs.software} on {runs.device}", rates, times)
