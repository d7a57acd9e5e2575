"""A job: a model on so many GPUs of a cluster, and what one step takes in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsx.api.inputs import Inputs, load_inputs, split_overrides
from dsx.display.job import step_text
from dsx.errors import InputError, SpecError
from dsx.pricing.problem import Problem
from dsx.printable import printable
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import ClusterSpec
from dsx.spec.load import Given
from dsx.spec.model import ModelSpec
from dsx.units import parse_count

DEFAULT_ASSUMPTIONS = "default"


@dataclass(frozen=True, slots=True, init=False)
class Job:
    """What is asked of every plan: the model, the machine, the GPUs, the batch.

        job = dsx.Job(model="llama-3-70b", cluster="h100-nvs8", num_gpus=512, global_batch_size=1024)
        more = job.replace(set={"cluster.device.hbm_capacity": "141 GB"})

    Args:
        model: a name, a path, the content of a model file as a dict, or a `ModelSpec`; likewise the next one and
            `assumptions`. A dict may say what it `extends`.
        cluster: the machine; how many of its GPUs are used is `num_gpus`.
        num_gpus: GPUs of the job.
        global_batch_size: sequences of one step, over all replicas.
        sequence_length: tokens of a sequence; what the model says, where it is not given.
        assumptions: the assumption set.
        set: fields of these that are changed, as in {"model.dimensions.e": 8192}, quantities with their units; or
            texts such as "model.dimensions.e=8192".
        operator_times: a CSV file of measured times of kernels, in place of the roofline.

    Raises UnknownNameError, SpecError or InputError for what cannot be used.
    """

    inputs: Inputs
    num_gpus: int
    global_batch_size: int  # sequences
    sequence_length: int  # tokens

    def __init__(
        self,
        model: Given,
        cluster: Given,
        num_gpus: int,
        global_batch_size: int,
        sequence_length: int | None = None,
        assumptions: Given = DEFAULT_ASSUMPTIONS,
        *,
        set: Mapping[str, Any] | Sequence[str] | None = None,
        operator_times: str | Path | None = None,
    ) -> None:
        stated = [f"{path}={_text(value)}" for path, value in set.items()] if isinstance(set, Mapping) else set
        overrides = split_overrides(stated)
        inputs = load_inputs(model, cluster, assumptions, overrides, operator_times=operator_times)
        self._fill(inputs, num_gpus, global_batch_size, sequence_length)

    def _fill(self, inputs: Inputs, num_gpus: int, global_batch_size: int, sequence_length: int | None) -> None:
        length = inputs.model.default_sequence_length if sequence_length is None else sequence_length
        sizes = {"num_gpus": num_gpus, "global_batch_size": global_batch_size, "sequence_length": length}
        object.__setattr__(self, "inputs", inputs)
        for name, value in sizes.items():
            object.__setattr__(self, name, _count(name, value))

    @classmethod
    def of(cls, inputs: Inputs, num_gpus: int, global_batch_size: int, sequence_length: int | None = None) -> "Job":
        """Return the job of files that are loaded already."""
        job = object.__new__(cls)
        job._fill(inputs, num_gpus, global_batch_size, sequence_length)
        return job

    @property
    def model(self) -> ModelSpec:
        """The model."""
        return self.inputs.model

    @property
    def cluster(self) -> ClusterSpec:
        """The machine."""
        return self.inputs.cluster

    @property
    def assumptions(self) -> AssumptionsSpec:
        """The assumption set."""
        return self.inputs.assumptions

    def replace(self, **changes: Any) -> "Job":
        """Return the job with other values of some arguments; what is not given stays.

        A sequence length stays too, whatever the model.
        """
        kept: dict[str, Any] = {name: getattr(self, name) for name in ("model", "cluster", "assumptions")}
        kept |= {name: getattr(self, name) for name in ("num_gpus", "global_batch_size", "sequence_length")}
        job, inputs = Job(**(kept | changes)), self.inputs
        near = job.inputs.near if "model" in changes else inputs.near
        times = job.inputs.operator_times if "operator_times" in changes else inputs.operator_times
        if times is inputs.operator_times is not None and job.cluster != self.cluster:
            raise InputError("operator times are measured on one machine: give those of the changed one, or None")
        changed = replace(job.inputs, near=near, operator_times=times)
        return Job.of(changed, job.num_gpus, job.global_batch_size, job.sequence_length)

    def problem(self, strategy: str | None = None, partition: str = "even") -> Problem:
        """Return the problem of a strategy, that of the assumption set by default."""
        return self.inputs.problem([strategy] if strategy else [], self.sequence_length, partition=partition)

    def __str__(self) -> str:
        name = f"{printable(self.model.name)} on {self.num_gpus} x {printable(self.cluster.name)}"
        return f"{name}: {step_text(self.global_batch_size, self.sequence_length)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _count(name: str, value: Any) -> int:
    try:
        return parse_count(value)
    except SpecError as error:
        raise InputError(f"{name}: {error}") from None
