"""``dsx trace replay``: execution traces replayed on a cluster, event by event."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.load import Given
from dsx.cost.context import assumptions_from_spec
from dsx.errors import SpecError, TraceError, file_path
from dsx.hardware.cluster import cluster_from_spec
from dsx.plans.choices import STEP_COLUMNS
from dsx.plans.frameworks import read_framework
from dsx.plans.plan import Plan
from dsx.plans.violations import for_plan, on_platform
from dsx.progress import Watch, progress, remark
from dsx.tables.format import shares, table
from dsx.text import Data, DataView, printable
from dsx.traces.checks import CONTRADICTORY_ORDER, check
from dsx.traces.chrome import Event, chrome_file
from dsx.traces.columns import RankTrace
from dsx.traces.rank_program import RankTimes, StepTimes
from dsx.traces.replay import Emit
from dsx.traces.step_replay import Slow, StepTraces, replay_step, slow_ranks
from dsx.traces.trace_folder import WORLD, TraceFolder, open_folder, traces
from dsx.units import counted, format_quantity
from dsx.verbs.answer import Answer
from dsx.verbs.arguments import Fields, assignments, check_output_file, watcher
from dsx.verbs.job import DEFAULT_ASSUMPTIONS, of_its_framework, split_overrides

if TYPE_CHECKING:
    import pandas as pd
from dsx.verbs.trace_inspect import elements_text

_BLOCK = 5_000  # events of a timeline that are written at once
_ISSUE = "dispatch_latency"  # the one effect that a replay takes from an assumption set; overlaps are in the nodes
_SHOWN = 8  # slow ranks in a remark


@dataclass(frozen=True, eq=False, repr=False)
class TraceReplay(Answer):
    """The time of a step as its traces replay on a cluster, and where it goes on each rank."""

    folder: str  # of the traces
    cluster: str  # its name
    assumptions: str  # name of the assumption set
    times: StepTimes  # of all ranks
    slow: Mapping[int, float]  # factor of the compute of slow ranks
    without_slow: StepTimes | None  # None without slow ranks
    element_bytes: int | None = None  # of an element, where the traces count elements and multiply-adds

    @property
    def step_time_s(self) -> float:
        """Seconds of the step."""
        return self.times.step_time_s

    @property
    def ranks(self) -> tuple[RankTimes, ...]:
        """Where the time of each rank goes."""
        return self.times.ranks

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """A row for each rank: its step and where the time goes, seconds; `<axis>_comm_s` is what is exposed."""
        import pandas as pd

        rows = [asdict(rank) for rank in self.ranks]
        rows = [row | {f"{axis or 'other'}_comm_s": s for axis, s in row.pop("comm_s").items()} for row in rows]
        frame = pd.DataFrame(rows)
        frame.attrs["units"] = {name: "s" for name in frame.columns if name.endswith("_s")}
        return frame

    @property
    def slowdown(self) -> float:
        """The step time over that without slow ranks, less 1; 0 without slow ranks."""
        reference = 0.0 if self.without_slow is None else self.without_slow.step_time_s
        return self.step_time_s / reference - 1.0 if reference > 0 else 0.0

    def _data(self) -> Data:
        return {
            "folder": self.folder,
            "cluster": self.cluster,
            "assumptions": self.assumptions,
            "nodes": self.times.num_nodes,
            "element_bytes": self.element_bytes,
            "step_time_s": self.step_time_s,
            "slow": {str(rank): factor for rank, factor in self.slow.items()},
            "step_time_without_slow_s": None if self.without_slow is None else self.without_slow.step_time_s,
            "slowdown_percent": 100.0 * self.slowdown,
            "ranks": [asdict(rank) for rank in self.ranks],
        }

    def __str__(self) -> str:
        return replay_text(self._data())


def replay(
    folder: str | Path,
    cluster: Given,
    assumptions: Given = DEFAULT_ASSUMPTIONS,
    slow: Slow | None = None,
    chrome: str | Path | None = None,
    set: Fields | None = None,
    element_bytes: int | None = None,
    *,
    framework: Given | None = None,
    watch: Watch | None = None,
) -> TraceReplay:
    """Replay the traces of all ranks on a cluster, event by event.

    Each rank runs its nodes, and waits for others where it must.

        dsx.trace.replay("traces/plan", "h100-nvs8", slow="0-7=1.3")

    Kernels and collectives are priced as for a plan; how they follow each other and wait is not, so a replay checks the
    formulas for a step.

    Args:
        folder: a folder with a file `<prefix>.<rank>.et` for each rank, or for one rank of each stage.
        cluster: a name, a path, the content of a cluster file, or the `cluster` of a job.
        assumptions: the assumption set.
        slow: ranks whose compute takes longer: "0-7=1.3", several of them, or {3: 1.3}.
        chrome: a file for a timeline (chrome://tracing).
        set: fields to override, as of a job: {"cluster.device.hbm_bandwidth": "4 TB/s"}.
        element_bytes: bytes of an element, for traces that count elements; 2 by default.
        framework: what runs the traces, with its software, as of `dsx.evaluate`; by default that of the assumption set.
        watch: told how many ranks are read, instead of a progress bar.

    Raises TraceError if a trace is missing or has faults, if ranks wait for what never comes, and for `element_bytes`
    of traces that count bytes; UnknownNameError and SpecError for the cluster and the assumption set; InputError for
    slow ranks that are not there; StoreError if the timeline cannot be written.
    """
    opened = open_folder(file_path("folder", folder), element_bytes)
    stands_for = _stands_for(opened)
    used = opened.only(stands_for) if stands_for else opened
    factors = slow_ranks(slow, used.files)
    output = None if chrome is None else file_path("chrome", chrome)
    if output is not None:
        check_output_file(output, opened.files.values(), "--chrome")
    overrides = split_overrides(assignments("set", set))
    if overrides["model"]:
        raise SpecError("--set model: a trace has its model; write it again with another one")
    spec = load_cluster(cluster, overrides["cluster"])
    base = of_its_framework(load_assumptions(assumptions, overrides["assumptions"]), spec.device.family)
    if framework is not None:
        base = base.run_by(read_framework(framework), spec.device.family)
    assumed = _for_traced_plan(base, opened, spec.device.software)
    machine, parameters = cluster_from_spec(spec), assumptions_from_spec(assumed, spec.device.family)
    _remark(opened, used, assumed, machine.network.nvs.size, factors)
    with progress(len(used.files), "read", watcher(watch)) as advance:
        ranks = [*_counted(traces(used, tensors=False), advance)]
    for trace in ranks:
        used = used.with_groups(trace)
    _check(used, ranks)
    step = _step(used, ranks, stands_for)
    without_slow = replay_step(step, machine, parameters) if factors else None
    with nullcontext() if output is None else _timeline(output) as emit:
        times = replay_step(step, machine, parameters, factors, emit)
    counted_as = next((trace.element_bytes for trace in ranks), None)
    return TraceReplay(str(used.path), spec.name, assumed.name, times, factors, without_slow, counted_as)


def _for_traced_plan(spec: AssumptionsSpec, folder: TraceFolder, platform: str) -> AssumptionsSpec:
    """Return an assumption set with the effects of the plan of a trace; without a plan, with none that need one."""
    columns, on_device = folder.manifest.get("columns"), on_platform(spec, platform)
    try:
        codes = Plan(columns).codes if isinstance(columns, Mapping) else {}
        if codes.keys() >= {*STEP_COLUMNS}:
            return for_plan(on_device, codes)
    except (SpecError, TypeError, ValueError) as error:
        raise TraceError(f"{folder.path}: the manifest has columns of no plan: {error}") from None
    unknown = for_plan(on_device, None)
    if unknown.dispatch_latency != on_device.dispatch_latency:
        latencies = (1e6 * assumed.dispatch_latency for assumed in (unknown, on_device))
        remark(
            "the trace states no plan, so the host takes {:g} us to issue a kernel: {:g} us "
            "(--set assumptions.dispatch_latency) needs {}".format(*latencies, on_device.conditions.stated[_ISSUE].text)
        )
    return unknown


@contextmanager
def _timeline(path: Path) -> Iterator[Emit]:
    """Give a function that adds an event to a timeline; raises StoreError if it cannot be written."""
    with chrome_file(path) as write:
        events: list[Event] = []

        def emit(rank: int, stream: str, name: str, start_s: float, duration_s: float) -> None:
            events.append(Event(rank, stream, name, start_s, duration_s))
            if len(events) == _BLOCK:
                write(events)
                events.clear()

        yield emit
        write(events)


def _counted(ranks: Iterable[RankTrace], advance: Callable[[int], None]) -> Iterator[RankTrace]:
    for trace in ranks:
        yield trace
        advance(1)


def _check(folder: TraceFolder, ranks: Sequence[RankTrace]) -> None:
    """Raise TraceError if traces have faults; a replay says itself where ranks wait for each other."""
    faults = [fault for fault in check(folder, ranks) if not fault.is_note and fault.what != CONTRADICTORY_ORDER]
    if faults:
        more = f"; dsx trace inspect lists all ({len(faults)})" if len(faults) > 1 else ""
        raise TraceError(f"{folder.path}: {faults[0]}{more}")


def _remark(
    opened: TraceFolder, used: TraceFolder, assumptions: AssumptionsSpec, domain: int, slow: Mapping[int, float]
) -> None:
    """Say where a replay differs from what the manifest says of the trace."""
    traced = opened.manifest.get("assumptions")
    if isinstance(traced, str) and traced != assumptions.name:
        remark(f"the trace was written under {traced}; the replay is under {assumptions.name} (--assumptions)")
    runs, software = opened.manifest.get("framework"), opened.manifest.get("stack")
    if isinstance(runs, str) and runs != assumptions.framework:
        remark(
            f"the trace was written as {runs} runs it; the replay is as {assumptions.framework} runs it (--framework)"
        )
    elif isinstance(software, str) and software != assumptions.stack:
        remark(
            f"the trace was written with the software {software}; the replay is with {assumptions.stack} "
            "(--set assumptions.stack)"
        )
    written = opened.manifest.get("slow")
    if isinstance(written, list) and written and not slow:
        more = ", ..." if len(written) > _SHOWN else ""
        remark(
            f"the durations of the trace have slow ranks ({', '.join(map(str, written[:_SHOWN]))}{more}), but a replay "
            "prices the work of nodes: --slow gives them here too"
        )
    placed = _ranks_per_domain(opened)
    if placed is not None and min(placed, opened.num_ranks) != min(domain, opened.num_ranks):
        remark(f"the ranks are placed {placed} to a fast domain, as they were traced; the cluster has {domain} in one")
    if unused := len(opened.files) - len(used.files):
        remark(
            f"{counted(unused, 'file')} left out: the ranks {', '.join(map(str, used.files))} stand for their stages"
        )


def _step(folder: TraceFolder, ranks: Iterable[RankTrace], stands_for: Mapping[int, Sequence[int]]) -> StepTraces:
    """Return the traces of a folder with what its manifest says of their ranks; raises TraceError."""
    everyone = dict.fromkeys(WORLD, range(folder.num_ranks))
    return StepTraces(
        {trace.rank: trace for trace in ranks}, {**everyone, **folder.groups}, _ranks_per_domain(folder), stands_for
    )


def _ranks_per_domain(folder: TraceFolder) -> int | None:
    number = folder.manifest.get("ranks_per_domain")
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number > 0):
        return number
    raise TraceError(f"{folder.path}: the manifest has ranks_per_domain {number!r:.60}, which is no number of ranks")


def _stands_for(folder: TraceFolder) -> dict[int, list[int]]:
    ranks = folder.manifest.get("stands_for") or {}
    try:
        return {int(rank): [int(other) for other in members] for rank, members in ranks.items()}
    except (AttributeError, TypeError, ValueError):
        raise TraceError(
            f"{folder.path}: the manifest has stands_for {ranks!r:.60}; the ranks that each rank stands for are wanted"
        ) from None


_RANK_ROWS = 24  # of the table of ranks


_COLUMNS = {"compute_s": "compute", "send_s": "sends", "bubble_s": "bubble", "offload_s": "offload", "host_s": "host"}


def replay_text(replay: DataView) -> str:
    """Return the data of a replay as text: the step, where its time goes on the slowest rank, and all ranks."""
    return "\n\n".join(filter(None, [_replay_title(replay), _slowest(replay["ranks"]), _ranks(replay["ranks"])]))


def _replay_title(replay: DataView) -> str:
    lines = [
        f"{replay['folder']}: {counted(len(replay['ranks']), 'rank')}, {counted(replay['nodes'], 'node')}, "
        f"on {replay['cluster']} under {replay['assumptions']}",
        *elements_text(replay["element_bytes"]),
        f"step time: {format_quantity(replay['step_time_s'], 's')}",
    ]
    if replay["slow"]:
        slow = "; ".join(f"{factor:g} times as long on {_ranges(ranks)}" for factor, ranks in _by_factor(replay))
        usual = format_quantity(replay["step_time_without_slow_s"], "s")
        lines.append(f"slowdown: {replay['slowdown_percent']:.2f} % over {usual} (kernels take {slow})")
    return printable("\n".join(lines), keep="\n")


def _by_factor(replay: DataView) -> list[tuple[float, list[int]]]:
    by_factor: dict[float, list[int]] = {}
    for rank, factor in replay["slow"].items():
        by_factor.setdefault(factor, []).append(int(rank))
    return list(by_factor.items())


def _slowest(ranks: Sequence[DataView]) -> str:
    if not ranks:
        return ""
    slowest = max(ranks, key=lambda rank: rank["step_s"])
    parts = _parts(slowest)
    named = [(name, seconds) for name, seconds in parts.items() if seconds > 0]
    of = shares([seconds for _, seconds in named], slowest["step_s"])
    rows = [[name, format_quantity(seconds, "s"), part] for (name, seconds), part in zip(named, of, strict=True)]
    return table([f"rank {slowest['rank']}", "time", ""], rows)


def _ranks(ranks: Sequence[DataView]) -> str:
    """Return a row for all ranks whose row is the same."""
    columns = [name for name in (_parts(ranks[0]) if ranks else ()) if any(_parts(rank)[name] > 0 for rank in ranks)]
    by_cells: dict[tuple[str, ...], list[int]] = {}
    for rank in ranks:
        seconds = _parts(rank)
        cells = [format_quantity(value, "s") for value in (rank["step_s"], *(seconds[name] for name in columns))]
        by_cells.setdefault(tuple(cells), []).append(rank["rank"])
    rows = [[_ranges(members), *cells] for cells, members in by_cells.items()]
    more = f"\n... and {len(rows) - _RANK_ROWS:,} more rows" if len(rows) > _RANK_ROWS else ""
    return table(["ranks", "step", *columns], rows[:_RANK_ROWS]) + more if len(rows) > 1 else ""


def _parts(rank: DataView) -> dict[str, float]:
    """Return the parts of a rank's step by their titles; a part of communication is what is exposed of an axis."""
    by_axis = {f"{axis or 'other'} comm": seconds for axis, seconds in rank["comm_s"].items()}
    parts = {title: rank[name] for name, title in _COLUMNS.items()}
    return {"compute": parts.pop("compute"), **by_axis, **parts}


def _ranges(ranks: Sequence[int]) -> str:
    """Return ranks as ranges: "0-7, 12"."""
    starts = [ranks[0], *(following for rank, following in pairwise(ranks) if following != rank + 1)]
    ends = [*(rank for rank, following in pairwise(ranks) if following != rank + 1), ranks[-1]]
    texts = [f"{start}" if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    shown = texts if len(texts) <= 4 else [*texts[:3], "...", texts[-1]]
    return ", ".join(shown)
