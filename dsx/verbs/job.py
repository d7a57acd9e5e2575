"""A job: a model, the GPUs of a cluster, and the batch of a step.

Its files are found by name, changed by overrides, and validated; layer definitions may be in the folder of the file
that names them: the sweep file, else the model file. Warnings name what is unusual about it: numbers of a cluster far
beyond those of the packaged clusters, sizes far beyond those of measured runs (data/measured/runs.yaml), what an
assumption set supposes of a device beyond its cluster file, and GPUs that do not fill domains or divide the batch.

Not modelled: how far off the numbers of one maker's devices are on those of another.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from shlex import quote
from types import EllipsisType
from typing import TYPE_CHECKING, TypeVar

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions, measured_runs
from dsx.config.cluster_file import GPU_SOFTWARE, ClusterSpec, DeviceSpec, load_cluster
from dsx.config.framework_file import FrameworkSpec
from dsx.config.load import Assignment, Given, split, value_text
from dsx.config.model_file import ModelSpec, load_model
from dsx.config.operator_files import OperatorTimes, read_operator_times
from dsx.config.schema import Spec
from dsx.config.search_path import is_path, packaged_data
from dsx.config.sweep_file import SweepSpec
from dsx.config.what_if import is_field, varied_field
from dsx.errors import InputError, SpecError, UnknownNameError, did_you_mean
from dsx.notation.library import check_strategy
from dsx.notation.model import layer_check
from dsx.plans.choices import SEARCHED_COLUMNS
from dsx.plans.frameworks import read_framework
from dsx.plans.placement import divisors
from dsx.plans.rules import PARTITIONS, nearest_of
from dsx.progress import warn
from dsx.tables.format import step_text
from dsx.text import Data, printable
from dsx.units import counted, exact_quantity, format_quantity
from dsx.verbs.arguments import Fields, assignments, count, margin_setting, strategy_name

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem


_OF_MACHINES = 3.0  # times the most, or below the least, of all machines: bits for bytes are 8
_OF_RUNS = 10.0  # the same of runs: more may be asked than was tried


def unusual_cluster(cluster: ClusterSpec) -> list[str]:
    """Return what to say once of numbers of a cluster that are far beyond those of all packaged clusters."""
    remarks: list[str] = []
    for path, value in _numbers(cluster):
        least, most = _of_machines().get(path, (value, value))
        if not least / _OF_MACHINES <= value <= most * _OF_MACHINES:
            unit = varied_field(path).unit
            shown, low, high = (format_quantity(number, unit) for number in (value, least, most))
            in_bits = f" ({format_quantity(8 * value, unit)[:-3]}b/s in bits)" if unit == "bytes/s" else ""
            remarks.append(f"cluster.{path} is {shown}{in_bits}: packaged clusters have {low} to {high}")
    return remarks


def unusual_job(parameters: int, num_gpus: int, global_batch_size: int, sequence_length: int) -> list[str]:
    """Return what to say once of sizes of a job that are far beyond those of all measured runs."""
    sizes = {"num_gpus": num_gpus, "global_batch_size": global_batch_size, "sequence_length": sequence_length}
    remarks: list[str] = []
    for name, value in (sizes | {"parameters_per_gpu": parameters / num_gpus}).items():
        least, most = measured_runs().sizes[name].least, measured_runs().sizes[name].most
        if not least / _OF_RUNS <= value <= most * _OF_RUNS:
            remarks.append(f"{name} is {value:,.0f}: measured runs have {least:,.0f} to {most:,.0f}")
    return remarks


@cache
def _of_machines() -> dict[str, tuple[float, float]]:
    """Return the least and the most of each number of the packaged clusters."""
    ranges: dict[str, tuple[float, float]] = {}
    for file in sorted((packaged_data() / "clusters").glob("*.yaml")):
        for path, value in _numbers(load_cluster(str(file))):
            least, most = ranges.get(path, (value, value))
            ranges[path] = min(least, value), max(most, value)
    return ranges


def _numbers(spec: Spec, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the real numbers of a cluster with their paths, zeros left out."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Spec):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, float) and value and is_field(f"{prefix}{name}"):
            yield f"{prefix}{name}", value


_SHOWN = 3  # remarks on software of run tables


def warn_of_unknown(remarks: Mapping[str, int]) -> None:
    """Warn of software that no stack names; `remarks` has the number of rows of each."""
    for remark, number in [*remarks.items()][:_SHOWN]:
        warn(f"{remark} ({counted(number, 'row')})")
    if further := [*remarks.values()][_SHOWN:]:
        warn(f"and {len(further)} more names of software are not known ({counted(sum(further), 'row')})")


def device_remarks(device: DeviceSpec, assumptions: AssumptionsSpec) -> list[str]:
    """Return what to say once where a problem of this device is priced with this set, a sentence each."""
    precision, name = assumptions.linear_dtype, device.name
    remarks = {
        f"states no sustained_share: {assumptions.sustained_share:g} of its peak is assumed": (
            assumptions.matrix_ceiling == "sustained" and device.sustained_share is None
        ),
        f"states no {precision}_flops: multiplies in {precision} take as long as in {device.half_format}": (
            precision != "bf16" and getattr(device, f"{precision}_flops") is None
        ),
        f"states no attention: {assumptions.attention_efficiency:g} of what other multiplies reach is assumed of fused "
        "kernels": assumptions.attention_kernels and not device.attention,
        "states no num_sms: every wave of tiles is taken as full": (
            assumptions.wave_quantisation and device.software in GPU_SOFTWARE and device.num_sms is None
        ),
        "states no generation: it counts as one of which nothing was measured": (
            assumptions.trained_on.generation and device.generation is None
        ),
        f"is programmed with {device.software}, and the numbers of assumption set {assumptions.name!r} are from "
        f"devices of {', '.join(assumptions.platforms or ())}": (
            assumptions.platforms and device.software not in assumptions.platforms
        ),
    }
    return [f"device {name} {remark}" for remark, holds in remarks.items() if holds]


def cluster_remarks(cluster: ClusterSpec, assumptions: AssumptionsSpec) -> list[str]:
    """Return what to say once where a problem of this cluster is priced with this set, a sentence each."""
    node, domain, name = cluster.node, cluster.network.nvs.size, cluster.name
    remarks = device_remarks(cluster.device, assumptions)
    if not ("gpus" in node.assumed or node.gpus % domain == 0 or domain % node.gpus == 0):
        remarks.append(
            f"cluster {name} has node.gpus={node.gpus} and network.nvs.size={domain}: fast domains cut nodes, since "
            f"neither divides the other; nearest: node.gpus={nearest_of(divisors(domain), node.gpus)}"
        )
    if node.gpus_per_host_link > node.gpus:
        remarks.append(
            f"cluster {name} has node.gpus_per_host_link={node.gpus_per_host_link} and node.gpus={node.gpus}: all "
            f"GPUs of a node are taken to share one link; nearest: node.gpus_per_host_link={node.gpus}"
        )
    if node.assumed and assumptions.fixed.get("offload") != "none":
        values = {
            "gpus": node.gpus,
            "gpus_per_host_link": node.gpus_per_host_link,
            "host_memory": exact_quantity(node.host_memory, "bytes"),
            "host_memory_bandwidth": exact_quantity(node.host_memory_bandwidth, "bytes/s"),
        }
        assumed = ", ".join(f"{field}={value}" for field, value in values.items() if field in node.assumed)
        remarks.append(f"cluster {name} states no node.{node.assumed[0]}: for offload to the host {assumed} is assumed")
    return remarks


def unfilled_domain(num_gpus: int, domain: int) -> list[str]:
    """Return what to say once of a job whose GPUs do not fill fast domains of `domain` GPUs; nothing if they do."""
    in_last = num_gpus % domain
    if num_gpus < domain or not in_last:
        return []
    down, up = num_gpus - in_last, num_gpus - in_last + domain
    return [
        f"{num_gpus:,} GPUs do not fill fast domains of {domain}: one after the other, the last has {in_last}; "
        f"{down:,} or {up:,} GPUs would fill them, if the batch suits that number"
    ]


def replicas_left_out(num_gpus: int, global_batch_size: int) -> list[str]:
    """Return what to say once of a job whose batch no number of replicas divides that its GPUs could have.

    dp divides both. So what they do not share, powers of two apart, has to be tensor, context or pipeline parallel.
    """
    odd = _odd(num_gpus)
    if global_batch_size % odd == 0:
        return []
    # A batch like the stated one, and the most GPUs of which it leaves nothing out.
    step = num_gpus if global_batch_size >= num_gpus else odd
    while step * 8 <= global_batch_size < num_gpus:
        step *= 2
    batch = -(-global_batch_size // step) * step
    fewer = next(number for number in range(num_gpus, 0, -1) if global_batch_size % _odd(number) == 0)
    return [
        f"{num_gpus:,} GPUs and a batch of {global_batch_size:,}: dp divides both, so it can be at most "
        f"{math.gcd(num_gpus, global_batch_size):,}; a batch of {batch:,} would allow "
        f"{math.gcd(num_gpus, batch):,}, and {fewer:,} GPUs {math.gcd(fewer, global_batch_size):,}"
    ]


def _odd(number: int) -> int:
    """Return a number without its factors of two."""
    return number // (number & -number)


S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Inputs:
    """The validated files of a problem; the folder of the file `near` may have layer definitions."""

    model: ModelSpec
    cluster: ClusterSpec
    assumptions: AssumptionsSpec
    near: Path | None = None
    operator_times: OperatorTimes | None = None

    def to_data(self) -> Data:
        """Return the files as plain data; `operator_times` only if there are any."""
        data = {name: getattr(self, name).model_dump(mode="json") for name in ("model", "cluster", "assumptions")}
        return data | ({"operator_times": self.operator_times.to_data()} if self.operator_times else {})

    def run_by(self, framework: FrameworkSpec) -> "Inputs":
        """Return the files for plans of a framework, which are priced as it runs them."""
        return replace(self, assumptions=self.assumptions.run_by(framework, self.cluster.device.family))

    @classmethod
    def from_data(cls, data: Data, near: Path | None) -> "Inputs":
        """Return the inputs that `to_data` wrote."""
        return cls(
            ModelSpec.model_validate(data["model"]),
            ClusterSpec.model_validate(data["cluster"]),
            AssumptionsSpec.model_validate(data["assumptions"]),
            near,
            OperatorTimes.from_data(data["operator_times"]) if "operator_times" in data else None,
        )

    def problem(
        self,
        strategies: Sequence[str],
        sequence_length: int | None,
        train_tokens: float | None = None,
        partition: str = "even",
    ) -> "Problem":
        """Return the problem of these files; by default under the default strategy of the assumption set."""
        from dsx.pricing.problem import ProblemOptions, make_problem  # imports JAX, which a job alone does not need

        chosen = [*strategies] or [self.assumptions.default_strategy]
        options = ProblemOptions(sequence_length, train_tokens, self.near, self.operator_times, partition)
        return make_problem(self.model, self.cluster, self.assumptions, chosen, options)


# Fields of a sweep that are options of the verbs that read no sweep.
_OPTIONS = ("model", "cluster", "assumptions", "num_gpus", "global_batch_size", "sequence_length", "strategy")
_OPTIONS += ("operator_times",)


def split_overrides(assignments: Sequence[str | Assignment] | None) -> dict[str, list[Assignment]]:
    """Return ``--set`` assignments by target, for a verb that reads no sweep; SpecError if one is for a sweep."""
    overrides = split(assignments or ())
    for path, value in overrides["sweep"]:
        text = value_text(value)
        raise SpecError(f"--set sweep.{path}={text}: no sweep is read here; {_advice(path, text)}")
    return overrides


def _advice(path: str, value: str) -> str:
    """Return what to give in place of a field of a sweep."""
    section, _, column = path.partition(".")
    if path in _OPTIONS:
        return f"give an option, such as --{path.replace('_', '-')} {quote(value)}"
    if section == "fix" and column and not value.startswith("["):
        name = f"nvs.{column.removesuffix('_nvs')}" if column.endswith("_nvs") else column
        fixed = f"--set assumptions.fixed.{column}" if column in SEARCHED_COLUMNS else f"--fix {name}"
        return f"a plan takes {name}={value}; a search takes {fixed}={value}"
    if section == "limit" and column and not value.startswith("["):
        return f"a search takes --limit {quote(f'{column}{value}')}"
    if section not in SweepSpec.model_fields:
        return f"and a sweep has no field {section!r}{did_you_mean(section, SweepSpec.model_fields)}"
    return f"write a sweep file of this search, and run dsx sweep FILE --set {quote(f'sweep.{path}={value}')}"


def file_of(model: Given) -> Path | None:
    """Return the file of a model given by its path; its folder may have layer definitions. None for any other model."""
    return Path(model) if isinstance(model, str | Path) and is_path(str(model), ".yaml") else None


def of_its_framework(assumptions: AssumptionsSpec, generation: str | None, near: Path | None = None) -> AssumptionsSpec:
    """Return an assumption set for plans of its framework, on devices of a generation."""
    named = assumptions.of_framework
    framework = read_framework(named, near) if isinstance(named, str) else named
    changes = framework is not named or framework.on_generation
    return assumptions.run_by(framework, generation) if changes else assumptions


def load_inputs(
    model: Given,
    cluster: Given,
    assumptions: Given,
    overrides: Mapping[str, Sequence[Assignment]],
    near: Path | None = None,
    operator_times: str | Path | None = None,
) -> Inputs:
    """Load the files of a problem; warn of a set that is not calibrated, or not for the device.

    The assumption set is that for plans of its framework. `near` is the file that names the files.

    Raises SpecError if `overrides` change the machine and there are operator times, which hold for one machine.
    """
    of_machine = [pair for pair in overrides["cluster"] if pair[0].split(".")[0] not in ClusterSpec.of_operation]
    if operator_times is not None and of_machine:
        path, value = of_machine[0]
        raise SpecError(
            f"--set cluster.{path}={value_text(value)}: operator times are measured on one machine, and "
            f"{operator_times} has none of the changed one; leave out one of them"
        )
    layers_near = near or file_of(model)

    def loaded(spec: Given, target: str, kind: type[S], load: Callable[..., S], *check: object) -> S:
        # A validated spec without overrides is used as it is.
        changes = overrides[target]
        return spec if isinstance(spec, kind) and not changes else load(spec, changes, near, *check)

    assumed = of_its_framework(loaded(assumptions, "assumptions", AssumptionsSpec, load_assumptions), None, near)
    read = loaded(model, "model", ModelSpec, load_model, layer_check(layers_near, assumed))
    machine = loaded(cluster, "cluster", ClusterSpec, load_cluster)
    assumed = of_its_framework(assumed, machine.device.family, near)
    times = None if operator_times is None else read_operator_times(str(operator_times), near)
    if not assumed.calibrated:
        warn(f"assumption set {assumed.name!r} is not calibrated yet: take its times as relative, not absolute")
    is_own = overrides["cluster"] or not isinstance(cluster, str) or is_path(cluster, ".yaml")
    for remark in (*cluster_remarks(machine, assumed), *(unusual_cluster(machine) if is_own else ())):
        warn(remark)
    return Inputs(read, machine, assumed, layers_near, times)


DEFAULT_ASSUMPTIONS = "default"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Job:
    """What every plan is priced for: the model, the cluster, the GPUs, the batch.

        job = dsx.Job(model="llama-3-70b", cluster="h100-nvs8", num_gpus=512, global_batch_size=1024)
        more = job.replace(set={"cluster.device.hbm_capacity": "141 GB"})

    Args:
        model: a name, a path, the content of a model file as a dict, or the `model` of another job; `cluster` and
            `assumptions` likewise. A dict may have `extends`.
        cluster: the cluster.
        num_gpus: GPUs of the job.
        global_batch_size: sequences of one step, over all replicas.
        sequence_length: tokens of a sequence; by default that of the model.
        assumptions: the assumption set.
        set: overridden fields of model, cluster and assumptions, as in {"model.dimensions.e": 8192}, quantities with
            their units; or a list such as ["model.dimensions.e=8192"].
        operator_times: a CSV file of measured times of kernels, in place of the roofline.

    Raises UnknownNameError for an unknown name, SpecError for an invalid file, InputError for an invalid size.
    """

    inputs: Inputs
    num_gpus: int  # GPUs of the job
    global_batch_size: int  # sequences of a step
    sequence_length: int  # tokens of a sequence

    def __init__(
        self,
        model: Given,
        cluster: Given,
        num_gpus: int,
        global_batch_size: int,
        sequence_length: int | None = None,
        assumptions: Given = DEFAULT_ASSUMPTIONS,
        *,
        set: Fields | None = None,
        operator_times: str | Path | None = None,
    ) -> None:
        overrides = split_overrides(assignments("set", set))
        inputs = load_inputs(model, cluster, assumptions, overrides, operator_times=operator_times)
        self._fill(inputs, num_gpus, global_batch_size, sequence_length)

    def _fill(self, inputs: Inputs, num_gpus: int, global_batch_size: int, sequence_length: int | None) -> None:
        length = inputs.model.default_sequence_length if sequence_length is None else sequence_length
        sizes = {"num_gpus": num_gpus, "global_batch_size": global_batch_size, "sequence_length": length}
        object.__setattr__(self, "inputs", inputs)
        for name, value in sizes.items():
            object.__setattr__(self, name, count(name, value))

    @classmethod
    def of(cls, inputs: Inputs, num_gpus: int, global_batch_size: int, sequence_length: int | None = None) -> "Job":
        """Return the job of loaded files."""
        job = object.__new__(cls)
        job._fill(inputs, num_gpus, global_batch_size, sequence_length)
        return job

    @property
    def model(self) -> ModelSpec:
        """The model, with its overrides."""
        return self.inputs.model

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster, with its overrides."""
        return self.inputs.cluster

    @property
    def assumptions(self) -> AssumptionsSpec:
        """The assumption set, with its overrides."""
        return self.inputs.assumptions

    def replace(
        self,
        *,
        model: Given | EllipsisType = ...,
        cluster: Given | EllipsisType = ...,
        num_gpus: int | EllipsisType = ...,
        global_batch_size: int | EllipsisType = ...,
        sequence_length: int | EllipsisType | None = ...,
        assumptions: Given | EllipsisType = ...,
        set: Fields | None = None,
        operator_times: str | Path | EllipsisType | None = ...,
    ) -> "Job":
        """Return the job with other values of some arguments; the others stay.

            longer = job.replace(sequence_length=32768, global_batch_size=256)
            faster = job.replace(set={"cluster.network.net.bandwidth": "100 GB/s"})

        The sequence length stays even if the model changes; None takes that of the model. Operator times stay too, but
        another machine needs its own, or None.
        """
        changes = {
            "model": model,
            "cluster": cluster,
            "num_gpus": num_gpus,
            "global_batch_size": global_batch_size,
            "sequence_length": sequence_length,
            "assumptions": assumptions,
        }
        arguments: Data = {
            name: getattr(self, name) if isinstance(value, EllipsisType) else value for name, value in changes.items()
        }
        times = None if isinstance(operator_times, EllipsisType) else operator_times
        job = Job(**arguments, set=set, operator_times=times)
        inputs = job.inputs if not isinstance(model, EllipsisType) else replace(job.inputs, near=self.inputs.near)
        if isinstance(operator_times, EllipsisType) and self.inputs.operator_times is not None:
            if job.cluster != self.cluster:
                raise InputError("operator times are measured on one machine: give those of the changed one, or None")
            inputs = replace(inputs, operator_times=self.inputs.operator_times)
        return Job.of(inputs, job.num_gpus, job.global_batch_size, job.sequence_length)

    def run_by(self, framework: Given | None) -> "Job":
        """Return the job with its plans priced as a framework runs them; None: as they are.

        The stack of the assumption set is then that of the framework, unless `set` names one. Raises what `dsx.best`
        raises for a framework.
        """
        if framework is None:
            return self
        inputs = self.inputs.run_by(read_framework(framework, self.inputs.near))
        return Job.of(inputs, self.num_gpus, self.global_batch_size, self.sequence_length)

    def problem(self, strategy: str | None = None, partition: str = "even") -> "Problem":
        """Return the problem of a plan under a strategy; by default under that of the assumption set."""
        if partition not in PARTITIONS:
            raise UnknownNameError("partition", str(partition), PARTITIONS)
        name = strategy_name(strategy)
        if name:
            check_strategy(name, self.inputs.near, "--strategy")
        problem = self.inputs.problem([name] if name else [], self.sequence_length, partition=partition)
        say_unusual(self, problem)
        return problem

    def __repr__(self) -> str:
        names = ("num_gpus", "global_batch_size", "sequence_length")
        fields = {"model": self.model.name, "cluster": self.cluster.name}
        fields |= {name: getattr(self, name) for name in names} | {"assumptions": self.assumptions.name}
        return f"Job({', '.join(f'{name}={value!r}' for name, value in fields.items())})"

    def __str__(self) -> str:
        name = f"{printable(self.model.name)} on {self.num_gpus} x {printable(self.cluster.label)}"
        return f"{name}: {step_text(self.global_batch_size, self.sequence_length)}"


def say_unusual(job: Job, problem: "Problem") -> None:
    """Warn of sizes of a job far beyond those of measured runs."""
    from dsx.notation.model import parameters

    number = parameters(problem.models[0])
    for remark in unusual_job(number, job.num_gpus, job.global_batch_size, job.sequence_length):
        warn(remark)


def with_margin(job: Job, margin: float | None) -> Job:
    """Return the job with another memory margin of its searches, if one is given; InputError if it is no share."""
    setting = margin_setting(margin)
    return job.replace(set=setting) if setting else job


def checked(job: Job) -> Job:
    """Return the job; raise InputError if it is not a Job."""
    if not isinstance(job, Job):
        call = "dsx.Job(model, cluster, num_gpus=..., global_batch_size=...)"
        raise InputError(f"{job!r:.60} is not a job: make one with {call}")
    return job
