"""A job: a model on so many GPUs of a cluster, and what one step takes in."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING

from dsx.api.arguments import Fields, assignments, count
from dsx.api.inputs import Inputs, load_inputs, split_overrides
from dsx.display.job import step_text
from dsx.errors import InputError, UnknownNameError
from dsx.printable import printable
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
    """What is asked of every plan: the model, the machine, the GPUs, the batch.

        job = dsx.Job(model="llama-3-70b", cluster="h100-nvs8", num_gpus=512, global_batch_size=1024)
        more = job.replace(set={"cluster.device.hbm_capacity": "141 GB"})

    Args:
        model: a name, a path, the content of a model file as a dict, or the `model` of another job; the next one and
            `assumptions` likewise. A dict may say what it `extends`.
        cluster: the machine.
        num_gpus: how many of its GPUs are used.
        global_batch_size: sequences of one step, over all replicas.
        sequence_length: tokens of a sequence; what the model says, where it is not given.
        assumptions: the assumption set.
        set: fields of model, cluster and assumptions that are changed, as in {"model.dimensions.e": 8192}, quantities
            with their units; or texts such as "model.dimensions.e=8192".
        operator_times: a CSV file of measured times of kernels, in place of the roofline.

    Raises UnknownNameError, SpecError or InputError for what cannot be used.
    """

    inputs: Inputs
    num_gpus: int  # GPUs that are used
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
        overrides = split_overrides(assignments(set))
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
        """Return the job of files that are loaded already."""
        job = object.__new__(cls)
        job._fill(inputs, num_gpus, global_batch_size, sequence_length)
        return job

    @property
    def model(self) -> ModelSpec:
        """The model, with what is changed of it."""
        return self.inputs.model

    @property
    def cluster(self) -> ClusterSpec:
        """The machine, with what is changed of it."""
        return self.inputs.cluster

    @property
    def assumptions(self) -> AssumptionsSpec:
        """The assumption set, with what is changed of it."""
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
        """Return the job with other values of some arguments; what is left out stays.

            longer = job.replace(sequence_length=32768, global_batch_size=256)
            faster = job.replace(set={"cluster.network.net.bandwidth": "100 GB/s"})

        A sequence length stays too, whatever the model; None is that of the model. Operator times stay, but not on
        another machine: for it others are given, or None.
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

    def problem(self, strategy: str | None = None, partition: str = "even") -> "Problem":
        """Return the problem of a strategy, that of the assumption set by default: what searches are made in."""
        if partition not in PARTITIONS:
            raise UnknownNameError("partition", str(partition), PARTITIONS)
        return self.inputs.problem([strategy] if strategy else [], self.sequence_length, partition=partition)

    def __repr__(self) -> str:
        named = {name: getattr(self, name).name for name in ("model", "cluster")}
        sizes = {name: getattr(self, name) for name in ("num_gpus", "global_batch_size", "sequence_length")}
        stated = {**named, **sizes, "assumptions": self.assumptions.name}
        return f"Job({', '.join(f'{name}={value!r}' for name, value in stated.items())})"

    def __str__(self) -> str:
        name = f"{printable(self.model.name)} on {self.num_gpus} x {printable(self.cluster.name)}"
        return f"{name}: {step_text(self.global_batch_size, self.sequence_length)}"


def checked(job: Job) -> Job:
    """Return what should be a job; raises InputError if it is none."""
    if not isinstance(job, Job):
        raise InputError(
            f"{job!r:.60} is no job: make one with dsx.Job(model, cluster, num_gpus=..., global_batch_size=...)"
        )
    return job
