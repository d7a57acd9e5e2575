"""A job: a model, the GPUs of a cluster, and the batch of a step."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING

from dsx.api.arguments import Fields, assignments, count, margin_setting, strategy_name
from dsx.api.inputs import Inputs, load_inputs, split_overrides
from dsx.api.unusual_values import unusual_job
from dsx.display.job_text import step_text
from dsx.errors import InputError, UnknownNameError
from dsx.graph.library import check_strategy
from dsx.printable import printable
from dsx.remarks import warn
from dsx.space.frameworks import read_framework
from dsx.space.limits import PARTITIONS
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import ClusterSpec
from dsx.spec.load import Given
from dsx.spec.model import ModelSpec

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem

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
        job = Job(
            self.model if isinstance(model, EllipsisType) else model,
            self.cluster if isinstance(cluster, EllipsisType) else cluster,
            self.num_gpus if isinstance(num_gpus, EllipsisType) else num_gpus,
            self.global_batch_size if isinstance(global_batch_size, EllipsisType) else global_batch_size,
            self.sequence_length if isinstance(sequence_length, EllipsisType) else sequence_length,
            self.assumptions if isinstance(assumptions, EllipsisType) else assumptions,
            set=set,
            operator_times=None if isinstance(operator_times, EllipsisType) else operator_times,
        )
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
        named = {name: getattr(self, name).name for name in ("model", "cluster")}
        sizes = {name: getattr(self, name) for name in ("num_gpus", "global_batch_size", "sequence_length")}
        stated = {**named, **sizes, "assumptions": self.assumptions.name}
        return f"Job({', '.join(f'{name}={value!r}' for name, value in stated.items())})"

    def __str__(self) -> str:
        name = f"{printable(self.model.name)} on {self.num_gpus} x {printable(self.cluster.label)}"
        return f"{name}: {step_text(self.global_batch_size, self.sequence_length)}"


def say_unusual(job: Job, problem: "Problem") -> None:
    """Warn of sizes of a job far beyond those of measured runs."""
    from dsx.graph.model import parameters

    sizes = (job.num_gpus, job.global_batch_size, job.sequence_length)
    for said in unusual_job(parameters(problem.models[0]), *sizes):
        warn(said)


def with_margin(job: Job, margin: float | None) -> Job:
    """Return the job with another memory margin of its searches, if one is given; InputError if it is no share."""
    setting = margin_setting(margin)
    return job.replace(set=setting) if setting else job


def checked(job: Job) -> Job:
    """Return the job; raise InputError if it is not a Job."""
    if not isinstance(job, Job):
        raise InputError(
            f"{job!r:.60} is not a job: make one with dsx.Job(model, cluster, num_gpus=..., global_batch_size=...)"
        )
    return job
