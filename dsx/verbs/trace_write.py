"""``dsx trace write``: the trace of a plan, of a row or of one layer, a Chakra file for each rank.

The trace of one layer is a forward and a backward of one microbatch, on the ranks of the axes that divide it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Literal

from dsx.config.cluster_file import cluster_from_spec, load_cluster
from dsx.config.load import Given
from dsx.config.model_file import ELEMENT_BYTES
from dsx.cost.context import assumptions_from_spec
from dsx.errors import InputError, PlanError, did_you_mean, file_path
from dsx.notation.syntax import AXES
from dsx.notation.work import derive, layers_hash
from dsx.plans.choices import BY_NAME, PLAN_COLUMNS
from dsx.plans.layer_layout import LAYOUT, Chain
from dsx.plans.placement import ORDERS, axes_in, expert_share, rank_order_shares, replicas_spanned, units
from dsx.plans.plan import Plan, own_cut
from dsx.plans.ranks import rank_grid
from dsx.plans.rules import GIVEN, placed
from dsx.plans.violations import for_plan, violations
from dsx.pricing.measured_share import measured_ratios
from dsx.pricing.one_plan import price_plan
from dsx.pricing.problem import Problem
from dsx.progress import Watch, progress, warn
from dsx.text import Data, DataView
from dsx.traces.layer_nodes import kernel_text
from dsx.traces.step_replay import Slow, slow_ranks
from dsx.traces.traced_plan import TracedPlan
from dsx.traces.write import ALL, STAGES, Machine, TraceFiles, TraceWriter, chosen_ranks
from dsx.units import counted, format_quantity
from dsx.verbs.arguments import Answer, watcher
from dsx.verbs.evaluate import broken_rules
from dsx.verbs.job import DEFAULT_ASSUMPTIONS, Job
from dsx.verbs.layer import stated_layer
from dsx.verbs.plan import PlanLike, Row, plan_request
from dsx.verbs.show import Hardware, row_of

# A machine of one fast domain without end, for a trace that needs no times: ranks have the numbers of a launcher.
ONE_DOMAIN: DataView = {
    "name": "one-domain",
    "device": {
        "name": "any",
        "matrix_flops": "1 PFLOP/s",
        "sustained_share": 1,
        "num_sms": 1,
        "generation": "any",
        "attention": {"flash-1": {"forward": 1, "backward": 1}},
        "vector_flops": "1 PFLOP/s",
        "hbm_bandwidth": "1 TB/s",
        "hbm_capacity": "900 GB",
    },
    "network": {
        "nvs": {"bandwidth": "1 TB/s", "latency": "1 us", "size": 1 << 24},
        "net": {"bandwidth": "300 GB/s", "latency": "2 us"},
    },
    "node": {"gpus": 1, "gpus_per_host_link": 1, "host_memory": "1 TB", "host_memory_bandwidth": "1 TB/s"},
}

Ranks = str | Sequence[int]
_RANKS = (ALL, STAGES)


@dataclass(frozen=True, eq=False, repr=False)
class WrittenTrace(Answer):
    """A trace that was written."""

    folder: Path  # of the files
    plan: Plan | None  # None for a single layer
    written: TraceFiles  # ranks, nodes, bytes and groups
    reject: Mapping[str, str]  # the rules that the plan breaks, by name: the cause

    def _data(self) -> Data:
        written = self.written
        plan = None if self.plan is None else self.plan.data
        data = {"folder": str(self.folder), "plan": plan, "ranks": list(written.ranks)}
        data |= {name: getattr(written, name) for name in ("num_nodes", "num_bytes", "num_groups")}
        return data | {"kept_files": written.kept, "reject": list(self.reject)}

    def __str__(self) -> str:
        written = self.written
        nodes = written.num_nodes // max(len(written.ranks), 1)
        kept = f"; {counted(written.kept, 'file')} kept" if written.kept else ""
        return (
            f"{self.folder}: {counted(len(written.ranks), 'rank')}, {nodes:,} nodes each on average, "
            f"{counted(written.num_groups, 'process group')}; "
            f"{format_quantity(written.num_bytes, 'bytes')} written{kept}"
        )


def write(
    job: Job,
    plan: PlanLike | None = None,
    *,
    out: str | Path,
    ranks: Ranks = "all",
    strategy: str | None = None,
    partition: Literal["even", "optimal"] | None = None,
    durations: bool = True,
    tensors: bool = True,
    forward_only: bool = False,
    portable: bool = True,
    slow: Slow | None = None,
    framework: Given | None = None,
    watch: Watch | None = None,
    **choices: object,
) -> WrittenTrace:
    """Write the execution trace of a plan: a Chakra file a rank.

    It is written even if the plan breaks rules.

        dsx.trace.write(job, tp=8, pp=4, dp=16, out="traces/plan", ranks="stages")

    Args:
        job: the model, the cluster, the GPUs and the batch.
        plan: as of `dsx.evaluate`, with `strategy`, `partition` and `choices`.
        out: the folder, which is made if it does not exist.
        ranks: "all", "stages" (one rank of each stage), or a list of ranks.
        durations: whether nodes have the times that they are priced with.
        tensors: whether nodes have the tensors that they read and write.
        forward_only: a forward without a backward and an update, as a prefill runs it.
        portable: write panels of a multiply as one gather or scatter, which simulators run, not as the broadcasts that
            are priced.
        slow: ranks whose nodes take longer, as of `replay`: "0-7=1.3"; only durations say so, so these are needed.
        framework: what runs the plan, as of `dsx.evaluate`.
        watch: told of progress, with the files written, their number, and a word.

    Raises PlanError for an invalid plan or a dimension of which a rank has nothing, StoreError for a folder with
    another trace, InputError for a rank outside of the job.
    """
    request = plan_request(job, plan, choices, strategy, partition, framework)
    problem = request.problem
    options = _TraceOptions(file_path("out", out), ranks, tensors, forward_only, portable, watch, slow)
    if durations:
        priced = request.priced()
        return _write(problem, priced.plan, broken_rules(priced), options, durations)
    if request.cut == "optimal" and partition is not None:
        raise InputError("partition optimal: the optimal cut needs times, so a cluster (--cluster) and durations")
    traced, limits = request.plan, problem.limits()
    if problem.cluster.name == ONE_DOMAIN["name"]:
        limits = replace(limits, nvs_size=int(placed(traced)))  # no machine: a domain is what the plan fills
    if traced.layers:
        limits = replace(limits, partition=GIVEN)
    breaches = violations(traced, problem.kinds[0], problem.model.dimensions, limits)
    if slow:
        raise InputError("slow: a slow rank differs in its durations alone, and the trace has none: name a cluster")
    broken = {violation.reason.name: violation.detail for violation in breaches}
    return _write(problem, traced, broken, options, durations)


def write_row(
    folder: str | Path,
    candidate: int | str | Row,
    hardware: Hardware = (),
    *,
    out: str | Path,
    ranks: Ranks = "all",
    durations: bool = True,
    tensors: bool = True,
    forward_only: bool = False,
    portable: bool = True,
    slow: Slow | None = None,
    watch: Watch | None = None,
) -> WrittenTrace:
    """Write the execution trace of a row of a result set; arguments as of `dsx.why_row` and `write`.

    Raises InputError if there is no such row, StoreError if the set cannot be read, and what `write` raises.
    """
    row = row_of(file_path("folder", folder), candidate, hardware)
    priced = price_plan(row.problem, row.plan)
    options = _TraceOptions(file_path("out", out), ranks, tensors, forward_only, portable, watch, slow)
    return _write(row.problem, priced.plan, broken_rules(priced), options, durations)


@dataclass(frozen=True, slots=True)
class _TraceOptions:
    out: Path
    ranks: Ranks
    tensors: bool
    forward_only: bool
    portable: bool
    watch: Watch | None
    slow: Slow | None = None

    def written(self, plan: TracedPlan, machine: Machine | None, about: Data) -> TraceFiles:
        """Write the ranks that the caller chose; `about` goes into the manifest."""
        chosen, ranks = self.ranks, None
        try:
            if isinstance(chosen, str):
                ranks = chosen if chosen in _RANKS else [int(rank) for rank in chosen.split(",")]
            elif isinstance(chosen, Sequence) and chosen:
                ranks = [index(rank) for rank in chosen]
        except (TypeError, ValueError):
            pass
        if ranks is None:
            nearest = did_you_mean(chosen, _RANKS) if isinstance(chosen, str) else ""
            raise InputError(f"ranks: {chosen!r} is given{nearest}; all, stages, or numbers as in 0,5,9 are wanted")
        numbers = chosen_ranks(plan, ranks)
        with progress(len(numbers), "files", watcher(self.watch)) as advance:
            return TraceWriter(plan, self.tensors, machine).write(self.out, numbers, about, advance)


def _write(
    problem: Problem, plan: Plan, broken: Mapping[str, str], options: _TraceOptions, durations: bool
) -> WrittenTrace:
    traced = traced_plan(problem, plan, options.forward_only, options.portable)
    check_sizes(traced)
    slow = slow_ranks(options.slow, range(traced.grid.world))
    about = {
        "model": problem.model.name,
        "strategy": problem.strategies[0],
        "assumptions": problem.assumptions_spec.name,
        "framework": problem.assumptions_spec.framework,
        "stack": problem.assumptions_spec.stack,
        "plan": plan.text,
        "columns": {name: value for name, value in plan.data.items() if name in BY_NAME or name == LAYOUT},
        "forward_only": traced.forward_only,
        "portable": options.portable,
        "cluster": problem.cluster.name if durations else None,
        "slow": [f"{rank}={factor:g}" for rank, factor in slow.items()],
        "layers": problem.fingerprint()[problem.strategies[0]][:16],
        "dimensions": dict(problem.model.dimensions),
    }
    machine = None
    if durations:
        measured = {
            kernel_text(traced.kinds[traced.number(layer)], kernel, direction): ratio
            for layer, kernel, direction, ratio in measured_ratios(problem, plan)
        }
        machine = Machine(problem.cluster, problem.at_point(0)[1], measured, slow)
    return WrittenTrace(options.out, plan, options.written(traced, machine, about), broken)


def traced_plan(problem: Problem, plan: Plan, forward_only: bool = False, portable: bool = True) -> TracedPlan:
    """Return what a plan is traced from."""
    (model,) = problem.models
    codes = plan.codes
    layers = tuple(layer for layer, count in model.layers for _ in range(count))
    chain, network = problem.limits().chain, problem.cluster.network
    return TracedPlan(
        layers=layers,
        chain=chain,
        dimensions=problem.model.dimensions,
        sequence_length=problem.sequence_length,
        columns=codes,
        grid=rank_grid(codes, problem.nvs_size, problem.expert_axes[0], units(network)),
        assumptions=for_plan(problem.assumptions_spec, codes),
        stage_layers=own_cut(plan, chain) or None,
        forward_only=forward_only or not any(layer.graph.backward for layer in layers),
        portable=portable,
    )


def check_sizes(plan: TracedPlan) -> None:
    """Warn of dimensions that ranks do not divide evenly; raise PlanError for one of which a rank has nothing."""
    floored: dict[str, None] = {}
    for letter, size, ranks, axes in plan.divided():
        if size < ranks:
            raise PlanError(f"dimension {letter} = {size} divided by {axes} = {ranks}: a rank has nothing of it")
        if size % ranks:
            floored[f"{letter} = {size} over {axes} = {ranks}"] = None
    if floored:
        warn(f"sizes are floored, since ranks do not divide them: {'; '.join(floored)}")


def write_layer(
    name: str | Path,
    *settings: str,
    out: str | Path,
    strategy: str | None = None,
    sizes: Mapping[str, int] | Sequence[str] | None = None,
    model: Given | None = None,
    assumptions: Given = DEFAULT_ASSUMPTIONS,
    cluster: Given | None = None,
    ranks: Ranks = "all",
    tensors: bool = True,
    forward_only: bool = False,
    portable: bool = True,
    watch: Watch | None = None,
) -> WrittenTrace:
    """Write the execution trace of one layer; the layer as for `dsx.layer`, the rest as for `write`.

        dsx.trace.write_layer("mlp.layer", sizes={"b": 1, "s": 4096, "e": 4096, "f": 16384, "tp": 4}, out="traces/mlp")

    The ranks are those of the axes that have a size. With a `cluster`, nodes have durations. Raises InputError for a
    dimension without a size, and what `dsx.layer` and `write` raise.
    """
    request = stated_layer(name, settings, strategy, sizes, model, assumptions)
    layer = derive(request.layer, request.assumptions.fused_backward_reads, request.assumptions.uncounted)
    values = {**request.defaults, **request.sizes}
    missing = sorted(letter for letter in layer.letters - {"activation_bytes"} if letter not in values)
    if missing:
        sizes_text = ", ".join(f"{letter}=..." for letter in missing)
        raise InputError(f"layer {layer.name!r} needs sizes: {sizes_text} (--set)")
    machine, priced = None, None
    if cluster is not None:
        described = load_cluster(cluster)
        machine = cluster_from_spec(described)
        priced = Machine(machine, assumptions_from_spec(request.assumptions, described.device.family))
    domain = machine.network.nvs.size if machine else 1 << 24
    columns = _columns(values, domain, layer.expert_axes)
    element = {name: values[name] for name in ELEMENT_BYTES}
    plan = TracedPlan(
        layers=(layer,),
        chain=Chain(0, 1, 0),
        dimensions={name: value for name, value in values.items() if name not in (*AXES, "b", "s", "panels", *element)},
        sequence_length=values.get("s", 1),
        columns=columns,
        grid=rank_grid(columns, domain, layer.expert_axes, units(machine.network) if machine else ()),
        assumptions=request.assumptions.model_copy(update=element),
        forward_only=forward_only,
        portable=portable,
        alone=True,
    )
    check_sizes(plan)
    about = {
        "layer": layer.name,
        "layers": layers_hash([layer])[:16],
        "strategy": layer.strategy,
        "assumptions": request.assumptions.name,
        "sizes": values,
        "cluster": machine.name if machine else None,
        "forward_only": forward_only,
        "portable": portable,
    }
    options = _TraceOptions(file_path("out", out), ranks, tensors, forward_only, portable, watch)
    return WrittenTrace(options.out, None, options.written(plan, priced, about), {})


def _columns(values: Mapping[str, int], domain: int, expert_axes: Sequence[str]) -> Data:
    """Return the columns of a plan of a layer, which pp and dp do not divide: degrees in rank order, and defaults."""
    choices = [BY_NAME[name] for name in PLAN_COLUMNS if name in BY_NAME and name != "strategy"]
    columns: Data = {choice.name: choice.code(choice.default) for choice in choices}
    columns |= {axis: values.get(axis, 1) for axis in AXES} | {"pp": 1, "dp": 1}
    columns |= {"microbatch_size": values.get("b", 1), "panels": values.get("panels", 1)}
    columns["dp"] = int(replicas_spanned(columns, expert_axes))  # as many as an ep group needs
    axes = axes_in(ORDERS[columns["order"]])
    num_gpus = math.prod(columns[axis] for axis in axes)
    shares = rank_order_shares({axis: columns[axis] for axis in axes}, domain, num_gpus)
    columns |= {f"{axis}_nvs": int(share) for axis, share in shares.items()}
    columns |= {"num_microbatches": 1, "zero_stage": 0, "num_gpus": num_gpus}
    return columns | {"ep_nvs": int(expert_share(columns, expert_axes, domain))}
