"""``dsx trace replay``: execution traces replayed on a cluster, event by event."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.cluster_file import cluster_from_spec, load_cluster
from dsx.config.load import Given
from dsx.cost.context import assumptions_from_spec
from dsx.errors import PlanError, SpecError, TraceError, file_path
from dsx.plans.choices import STEP_COLUMNS
from dsx.plans.frameworks import read_framework
from dsx.plans.plan import Plan
from dsx.plans.violations import for_plan, on_platform
from dsx.progress import Watch, progress, remark
from dsx.tables.format import shares, table
from dsx.text import Data, DataFrame, printable
from dsx.traces.checks import CONTRADICTORY_ORDER, check
from dsx.traces.chrome import Event, chrome_file
from dsx.traces.columns import RankTrace
from dsx.traces.rank_program import RankTimes, StepTimes
from dsx.traces.read import WORLD, TraceFolder, open_folder, traces
from dsx.traces.replay import Emit
from dsx.traces.step_replay import Slow, StepTraces, replay_step, slow_ranks
from dsx.units import counted, format_quantity
from dsx.verbs.arguments import Answer, Fields, assignments, output_file, paragraphs, watcher, with_units
from dsx.verbs.job import DEFAULT_ASSUMPTIONS, of_its_framework, split_overrides
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
    def frame(self) -> DataFrame:
        """A row for each rank: its step and where the time goes, seconds; `<axis>_comm_s` is what is exposed."""
        rows = [asdict(rank) for rank in self.ranks]
        return with_units(
            [row | {f"{axis or 'other'}_comm_s": s for axis, s in row.pop("comm_s").items()} for row in rows]
        )

    @property
    def slowdown(self) -> float:
        """The step time over that without slow ranks, less 1; 0 without slow ranks."""
        reference = 0.0 if self.without_slow is None else self.without_slow.step_time_s
        return self.step_time_s / reference - 1.0 if reference > 0 else 0.0

    def _data(self) -> Data:
        return {
            **{name: getattr(self, name) for name in ("folder", "cluster", "assumptions")},
            "nodes": self.times.num_nodes,
            **{name: getattr(self, name) for name in ("element_bytes", "step_time_s")},
            "slow": {str(rank): factor for rank, factor in self.slow.items()},
            "step_time_without_slow_s": self.without_slow and self.without_slow.step_time_s,
            "slowdown_percent": 100.0 * self.slowdown,
            "ranks": [asdict(rank) for rank in self.ranks],
        }

    def __str__(self) -> str:
        ranks = self.ranks
        lines = [
            f"{self.folder}: {counted(len(ranks), 'rank')}, {counted(self.times.num_nodes, 'node')}, "
            f"on {self.cluster} under {self.assumptions}",
            *elements_text(self.element_bytes),
            f"step time: {format_quantity(self.step_time_s, 's')}",
        ]
        if self.slow and self.without_slow:
            by_factor: dict[float, list[int]] = {}
            for rank, factor in self.slow.items():
                by_factor.setdefault(factor, []).append(rank)
            slow = "; ".join(f"{factor:g} times as long on {_ranges(members)}" for factor, members in by_factor.items())
            usual = format_quantity(self.without_slow.step_time_s, "s")
            lines.append(f"slowdown: {100 * self.slowdown:.2f} % over {usual} (kernels take {slow})")
        return paragraphs([printable("\n".join(lines), keep="\n"), _slowest(ranks), _ranks(ranks)])


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
    output = output_file("chrome", chrome, opened.files.values(), "--chrome", ".json")
    overrides = split_overrides(assignments("set", set))
    if overrides["model"]:
        raise SpecError("--set model: a trace has its model; write it again with another one")
    spec = load_cluster(cluster, overrides["cluster"])
    base = of_its_framework(load_assumptions(assumptions, overrides["assumptions"]), spec.device.family)
    if framework is not None:
        base = base.run_by(read_framework(framework), spec.device.family)
    assumed = _for_traced_plan(base, opened, spec.device.software)
    machine, parameters = cluster_from_spec(spec), assumptions_from_spec(assumed, spec.device.family)
    domain = _ranks_per_domain(opened)
    _remark_on_manifest(opened, assumed, factors)
    if domain is not None and min(domain, opened.num_ranks) != min(machine.network.nvs.size, opened.num_ranks):
        has = f"the cluster has {machine.network.nvs.size} in one"
        remark(f"the ranks are placed {domain} to a fast domain, as they were traced; {has}")
    if unused := len(opened.files) - len(used.files):
        members = ", ".join(map(str, used.files))
        remark(f"{counted(unused, 'file')} left out: the ranks {members} stand for their stages")
    ranks: dict[int, RankTrace] = {}
    with progress(len(used.files), "read", watcher(watch)) as advance:
        for trace in traces(used, tensors=False):
            ranks[trace.rank] = trace
            advance(1)
    for trace in ranks.values():
        used = used.with_groups(trace)
    # A replay says itself where ranks wait for each other.
    checked = check(used, [*ranks.values()])
    if faults := [fault for fault in checked if not fault.is_note and fault.what != CONTRADICTORY_ORDER]:
        more = f"; dsx trace inspect lists all ({len(faults)})" if len(faults) > 1 else ""
        raise TraceError(f"{used.path}: {faults[0]}{more}")
    everyone = dict.fromkeys(WORLD, range(used.num_ranks))
    step = StepTraces(ranks, {**everyone, **used.groups}, domain, stands_for)
    without_slow = replay_step(step, machine, parameters) if factors else None
    with nullcontext() if output is None else _timeline(output) as emit:
        times = replay_step(step, machine, parameters, factors, emit)
    counted_as = next((trace.element_bytes for trace in ranks.values()), None)
    return TraceReplay(str(used.path), spec.name, assumed.name, times, factors, without_slow, counted_as)


def _for_traced_plan(spec: AssumptionsSpec, folder: TraceFolder, platform: str) -> AssumptionsSpec:
    """Return an assumption set with the effects of the plan of a trace; without a plan, with none that need one."""
    columns, on_device = folder.manifest.get("columns"), on_platform(spec, platform)
    try:
        codes = Plan(columns).codes if isinstance(columns, Mapping) else {}
        if codes.keys() >= {*STEP_COLUMNS}:
            return for_plan(on_device, codes)
    except (PlanError, SpecError, TypeError, ValueError) as error:
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


def _remark_on_manifest(opened: TraceFolder, assumptions: AssumptionsSpec, slow: Mapping[int, float]) -> None:
    """Say where a replay differs from what the manifest says of the trace."""
    traced, runs, software, slow_then = map(opened.manifest.get, ("assumptions", "framework", "stack", "slow"))
    if isinstance(traced, str) and traced != assumptions.name:
        remark(f"the trace was written under {traced}; the replay is under {assumptions.name} (--assumptions)")
    if isinstance(runs, str) and runs != assumptions.framework:
        written = f"the trace was written as {runs} runs it"
        remark(f"{written}; the replay is as {assumptions.framework} runs it (--framework)")
    elif isinstance(software, str) and software != assumptions.stack:
        written = f"the trace was written with the software {software}"
        remark(f"{written}; the replay is with {assumptions.stack} (--set assumptions.stack)")
    if isinstance(slow_then, list) and slow_then and not slow:
        shown = ", ".join([*map(str, slow_then[:_SHOWN]), *(["..."] if len(slow_then) > _SHOWN else [])])
        remark(
            f"the durations of the trace have slow ranks ({shown}), but a replay prices the work of nodes: "
            "--slow gives them here too"
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
_COLUMNS = ("sends", "bubble", "offload", "host")


def _slowest(ranks: Sequence[RankTimes]) -> str:
    if not ranks:
        return ""
    slowest = max(ranks, key=lambda rank: rank.step_s)
    named = {name: seconds for name, seconds in _parts(slowest).items() if seconds > 0}
    of = shares([*named.values()], slowest.step_s)
    times = [format_quantity(seconds, "s") for seconds in named.values()]
    rows = [list(row) for row in zip(named, times, of, strict=True)]
    return table([f"rank {slowest.rank}", "time", ""], rows)


def _ranks(ranks: Sequence[RankTimes]) -> str:
    """Return a row for all ranks whose row is the same."""
    parts = {rank.rank: _parts(rank) for rank in ranks}
    names = parts[ranks[0].rank] if ranks else ()
    columns = [name for name in names if any(part[name] > 0 for part in parts.values())]
    by_cells: dict[tuple[str, ...], list[int]] = {}
    for rank in ranks:
        seconds = (rank.step_s, *(parts[rank.rank][name] for name in columns))
        by_cells.setdefault(tuple(format_quantity(value, "s") for value in seconds), []).append(rank.rank)
    rows = [[_ranges(members), *cells] for cells, members in by_cells.items()]
    more = f"\n... and {len(rows) - _RANK_ROWS:,} more rows" if len(rows) > _RANK_ROWS else ""
    return table(["ranks", "step", *columns], rows[:_RANK_ROWS]) + more if len(rows) > 1 else ""


def _parts(rank: RankTimes) -> dict[str, float]:
    """Return the parts of a rank's step by their titles; a part of communication is what is exposed of an axis."""
    by_axis = {f"{axis or 'other'} comm": seconds for axis, seconds in rank.comm_s.items()}
    further = {title: getattr(rank, f"{title.removesuffix('s')}_s") for title in _COLUMNS}
    return {"compute": rank.compute_s, **by_axis, **further}


def _ranges(ranks: Sequence[int]) -> str:
    """Return ranks as ranges: "0-7, 12"."""
    starts = [ranks[0], *(following for rank, following in pairwise(ranks) if following != rank + 1)]
    ends = [*(rank for rank, following in pairwise(ranks) if following != rank + 1), ranks[-1]]
    texts = [f"{start}" if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    return ", ".join(texts if len(texts) <= 4 else [*texts[:3], "...", texts[-1]])
