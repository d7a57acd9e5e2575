"""``dsx partition``: the fastest plan with its optimal cut into stages, and the optimal cut of a table of layers.

The table and its network are files of other tools (`dsx.layer_table`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dsx.config.load import Given
from dsx.errors import InputError, NothingFeasible, UnknownNameError, file_path, one_text
from dsx.launching.request import LaunchSettings
from dsx.launching.writers import launch_data, launch_of, launch_text
from dsx.layer_table.instance import Instance, NetworkLevels, read_instance, read_network
from dsx.layer_table.pipelines import OPTIMIZER_FACTORS, STAGES, problem_of
from dsx.layer_table.solver import TablePlan, smallest, solve
from dsx.plans.choices import BY_NAME
from dsx.plans.frameworks import Limitation
from dsx.plans.plan import Plan, fixed_settings
from dsx.plans.rules import OPTIMAL, OPTIMAL_SCHEDULES, optimal_cut_covers
from dsx.pricing.one_plan import PlanStage, columns_of, stages_of_plan
from dsx.pricing.problem import Problem
from dsx.progress import Watch, remark, working
from dsx.search.fastest import SearchCounts, fastest, problems_of, spaces_of
from dsx.tables.format import only_text, quantity, table
from dsx.tables.plans import placement_text, tight_text
from dsx.tables.terms import bottleneck, stages_data, stages_text
from dsx.text import Data, printable
from dsx.units import counted, format_quantity
from dsx.verbs.alternatives import why_nothing_fits
from dsx.verbs.arguments import Answer, paragraphs, strategy_names, watcher
from dsx.verbs.best import searched_text
from dsx.verbs.job import Job, checked, with_margin
from dsx.verbs.plan import PlanLike, given_plan
from dsx.verbs.searched import (
    LimitLike,
    SearchedStrategies,
    SearchRequest,
    check_fixed,
    given_limits,
    left_out_text,
    searched,
)


@dataclass(frozen=True, eq=False, repr=False)
class Partition(Answer):
    """The fastest plan, with its optimal cut."""

    job: Job  # the job that was priced
    problem: Problem
    searched: SearchRequest
    left_out: Mapping[str, str]  # strategies that a search without named ones left out, and why
    priced: Data  # the `plan`, and its costs by column
    stages: tuple[PlanStage, ...]  # first to last: layers, times, memory, and the link before each
    counts: SearchCounts  # number of candidates, and of those that were cut
    fix: Mapping[str, Sequence[int | str]] = field(default_factory=dict)  # values of the choices that the caller fixed
    limit: Limitation = field(default_factory=dict)  # bounds of the choices that the caller limited

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that were searched."""
        return tuple(name for name in self.searched.problem.strategies if name not in self.left_out)

    @property
    def plan(self) -> Plan:
        """Every choice by its column; `stage_layers` are the layers of the stages."""
        return self.priced["plan"]

    @property
    def step_time_s(self) -> float:
        """Seconds of one step."""
        return self.priced["step_time_s"]

    @property
    def launch(self) -> LaunchSettings:
        """The Megatron-LM flags of the plan."""
        return launch_of(self.plan, self.problem, self.job.cluster.device)

    def plot(self, path: str | Path) -> None:
        """Draw the stages into a file; its suffix is the format.

        Raises InputError for a format that cannot be written, StoreError if the file cannot be.
        """
        from dsx.pictures.breakdown import placement_of, stages
        from dsx.pictures.figure import save

        job, step = self.job, format_quantity(self.step_time_s, "s")
        title = f"{job.model.name} on {job.num_gpus} x {job.cluster.label}: step {step}\n{self.plan.text}"
        tiers = [tier.name for tier in self.problem.cluster.network.tiers]
        save(stages(self.stages, placement_of(self.plan, tiers), title), path)
        remark(f"wrote {path}")

    def _data(self) -> Data:
        return {
            **self.priced,
            "plan": self.plan.data,
            "bottleneck_s": bottleneck(self.stages).load_s,
            **{name: getattr(self.counts, name) for name in ("candidates", "cut")},
            "framework": self.searched.framework.name,
            "strategies": list(self.strategies),
            "left_out": dict(self.left_out),
            "limit": {name: [*map(str, bounds)] for name, bounds in self.limit.items()},
            "stages": stages_data(self.plan, self.stages),
            "launch": launch_data(self.launch),
        }

    def __str__(self) -> str:
        plan, priced = self.plan, self.priced
        step, bubble, memory = (quantity(name, priced[name]) for name in ("step_time_s", "bubble_s", "peak_bytes"))
        slowest = format_quantity(bottleneck(self.stages).load_s, "s")
        several = f"{printable(plan['strategy'])}: " if len(self.strategies) > 1 else ""
        head = [
            *searched_text(self.searched, self.strategies, self.job, self.counts),
            left_out_text(self.left_out),
            only_text(self.fix, self.limit),
            f"step {step}, bottleneck {slowest} of a microbatch, of which a replica has {plan['num_microbatches']}; "
            f"bubble {bubble}, memory {memory}",
            f"{several}{plan.text} (schedule={plan['schedule']} zero_stage={plan['zero_stage']} "
            f"recompute={plan['recompute']})",
            tight_text(priced, "the plan", self.job.cluster.device.hbm_capacity, self.job.assumptions),
        ]
        texts = [placement_text(plan, self.problem), stages_text(plan, self.stages)]
        return paragraphs(["\n".join(filter(None, head)), *texts, launch_text(self.launch, "the plan")])


def partition(
    job: Job,
    fix: PlanLike | None = None,
    *,
    limit: LimitLike | None = None,
    strategy: str | Sequence[str] | None = None,
    framework: Given | None = None,
    memory_margin: float | None = None,
    watch: Watch | None = None,
    **choices: object,
) -> Partition:
    """Cut layers into pipeline stages, exactly.

    The answer is the fastest plan of a job, where each plan has its optimal cut of layers into stages.

        dsx.partition(job, tp=[4, 8], zero_stage=1).stages

    Args:
        job: the model, the cluster, the GPUs and the batch.
        fix: columns that are fixed to these values, as a text or a mapping: "tp=8 zero_stage=1,3", {"tp": [4, 8]}.
        limit: bounds of columns, with the grammar of `limit` in a sweep: "tp<=8 pp>=2", ["tp<=8", "pp>=2"],
            {"tp": "<=8", "pp": [">=2", "<=16"]}.
        strategy: a name or a .layer file, or several; by default all that the framework runs.
        framework: what runs the plans: a name (dsx list frameworks) or a YAML file; "any" for all plans. By default
            that of the assumption set.
        memory_margin: keep only plans that would fit if they needed this share more memory; by default that of the
            assumption set.
        watch: called with the candidates done, their total and the kind of work; by default a bar is shown.
        choices: further fixed columns.

    Raises PlanError for a value that no plan can have, InputError for a limit that is none or contradicts `fix`,
    NothingFeasible if no plan fits.
    """
    watch, job = watcher(watch), with_margin(checked(job), memory_margin).run_by(framework)
    restriction = given_plan(fix, choices, job)
    names = strategy_names(restriction.strategy if strategy is None else strategy)
    request = searched(job.inputs, SearchedStrategies(names), framework, job.sequence_length)
    (base,) = problems_of(OPTIMAL, request.problem)
    fixed = fixed_settings(restriction.settings, job.num_gpus, base.limits())
    schedules = fixed.get("schedule", ())
    if schedules and not optimal_cut_covers([BY_NAME["schedule"].code(name) for name in schedules]).any():
        named = ",".join(map(str, schedules))
        raise InputError(
            f"schedule={named}: optimal cuts are known for {OPTIMAL_SCHEDULES} only; 'best' searches it with even cuts"
        )
    check_fixed(request, fixed, str)
    limits = given_limits(limit, fixed)
    problem = base.searching(fixed)
    with working("enumerating", watch):
        spaces = spaces_of([problem], job.num_gpus, job.global_batch_size, fixed, limits)
    answer = fastest(spaces, 1, watch)
    if not answer.plans:
        raise NothingFeasible(why_nothing_fits(spaces, base, fixed, limits, watch).why)
    (plan,) = answer.plans
    left_out = request.left_out(spaces.counted.strategies)
    cut = stages_of_plan(problem, columns_of(problem, plan["plan"]), plan["plan"].layers)
    return Partition(job, problem, request, left_out, plan, cut, answer.counts, fixed, limits)


RECOMPUTE = ("none", "full", "best")
_OF_STAGE = ("first_device", "load_s", "memory_bytes", "parameter_bytes", "producer_level")


@dataclass(frozen=True, eq=False, repr=False)
class TablePartition(Answer):
    """The plan of a table of layers with the least step time."""

    found: TablePlan
    layers: Instance  # the table
    network: NetworkLevels  # the network, level by level
    num_devices: int  # devices of the network

    def _data(self) -> Data:
        plan, ids = self.found, self.layers.layer_ids
        stages = [
            {"layers": stage.num_layers, "first_layer": ids[stage.first_layer], "devices": plan.devices_per_stage}
            | {name: getattr(stage, name) for name in _OF_STAGE}
            for stage in plan.stages
        ]
        data: Data = {"t_step_s": plan.step_time_s, "bottleneck_s": plan.bottleneck_s, "stages": stages}
        data |= {"replicas": plan.num_replicas, "width": plan.width, "zero_stage": plan.zero_stage}
        return data | {"recompute": plan.recomputed}

    def to_data(self) -> Data:
        """Return the plan in the JSON format that other tools share, which has no version."""
        return self._data()

    def __str__(self) -> str:
        plan = self.found
        head = (
            f"{self.layers.file} on {counted(self.num_devices, 'device')} of {self.network.name}: "
            f"step {format_quantity(plan.step_time_s, 's')}, bottleneck {format_quantity(plan.bottleneck_s, 's')}\n"
            f"{plan}"
        )
        rows: list[list[str]] = []
        for number, stage in enumerate(plan.stages, 1):
            first = self.layers.layer_ids[stage.first_layer]
            numbers = (number, first, stage.num_layers, stage.first_device, plan.devices_per_stage)
            sizes = [format_quantity(size, "bytes") for size in (stage.memory_bytes, stage.parameter_bytes)]
            level = "-" if stage.producer_level is None else f"{stage.producer_level}"
            rows.append([*map(str, numbers), format_quantity(stage.load_s, "s"), *sizes, level])
        header = ["stage", "first\nlayer", "layers", "first\ndevice", "devices", "load", "memory", "parameters"]
        return f"{head}\n\n" + table([*header, "level of link\nto producer"], rows, text=())


def partition_table(
    instance: str | Path,
    network: str,
    num_devices: int,
    *,
    width: int | None = None,
    zero_stages: Sequence[int] | None = None,
    recompute: Literal["none", "full", "best"] = "best",
    optimizer: Literal["none", "adam"] = "adam",
) -> TablePartition:
    """Return the fastest partition of a table of layers into pipeline stages; exact.

    All cuts, numbers of stages and replicas, widths and ZeRO stages are searched, with and without recomputation. Among
    equally fast plans the one with the fewest stages wins, then the one with the most replicas.

    Args:
        instance: a table of layers, a JSON file, in place of a model.
        network: FILE:NAME, the network NAME of a JSON file.
        num_devices: number of devices; one that the network lists.
        width: the only width of the table to use; by default all are.
        zero_stages: the only ZeRO stages to use; by default all.
        recompute: whether layers are recomputed; by default the best of both.
        optimizer: the optimizer, which keeps state in addition to the parameters.

    Raises InputError for files that cannot be used, NothingFeasible if no plan fits.
    """
    for name, value, names in (("recompute", recompute, RECOMPUTE), ("optimizer", optimizer, OPTIMIZER_FACTORS)):
        if one_text(name, value, "none") not in names:
            raise UnknownNameError(name, value, names)
    one_text("network", network, "networks.json:a")
    layers, levels = read_instance(str(file_path("instance", instance))), read_network(network, num_devices)
    problem = problem_of(
        layers if width is None else layers.only(width),
        levels,
        optimizer_factor=OPTIMIZER_FACTORS[optimizer],
        zero_stages=STAGES if zero_stages is None else tuple(zero_stages),
        recompute=(False, True) if recompute == "best" else (recompute == "full",),
    )
    plan = solve(problem)
    if plan is not None:
        return TablePartition(plan, layers, levels, num_devices)
    least = smallest(problem)
    if least is None:
        fewest = min(width.devices_per_stage for width in problem.widths)
        takes = counted(fewest, "device")
        raise NothingFeasible(f"no plan: a stage takes {takes} at least, and there are {num_devices}")
    needed, has = least.memory_bytes, problem.device_bytes
    raise NothingFeasible(
        f"no plan fits: the one that needs least memory needs {format_quantity(needed, 'bytes')} on a device, which "
        f"has {format_quantity(has, 'bytes')}: {format_quantity(needed - has, 'bytes')} short, {needed:.0f} bytes "
        f"against {has:.0f} ({least}); try more devices"
    )
