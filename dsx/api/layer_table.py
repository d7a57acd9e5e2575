"""The optimal cut of a table of layers into pipeline stages, on a network file of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dsx.api.answer import Answer
from dsx.argument_types import file_path, one_text
from dsx.display.table import table
from dsx.errors import NothingFeasible, UnknownNameError
from dsx.layer_table.from_instance import problem_of
from dsx.layer_table.instance import Instance, read_instance
from dsx.layer_table.network_levels import NetworkLevels, read_network
from dsx.layer_table.partition_problem import PartitionProblem
from dsx.layer_table.segments import OPTIMIZER_FACTORS, STAGES
from dsx.layer_table.solver import Partition, smallest, solve
from dsx.units import counted, format_quantity

RECOMPUTE = ("none", "full", "best")


@dataclass(frozen=True, eq=False, repr=False)
class TablePartition(Answer):
    """The plan of a table of layers with the least step time."""

    found: Partition
    layers: Instance  # the table
    network: NetworkLevels  # the network, level by level
    num_devices: int  # devices of the network

    def _data(self) -> dict[str, Any]:
        return _data(self.found, self.layers)

    def to_data(self) -> dict[str, Any]:
        """Return the plan in the JSON format that other tools share, which has no version."""
        return self._data()

    def __str__(self) -> str:
        return _text(self.found, self.layers, self.network, self.num_devices)


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
        instance: a file (JSON).
        network: FILE:NAME, a network in a file (JSON) by its name.
        num_devices: number of devices; one that the network lists.
        width: the only width of the table to use; by default all.
        zero_stages: the only ZeRO stages to use; by default all.
        recompute: whether layers are recomputed.
        optimizer: the optimizer, which keeps state in addition to the parameters.

    Raises InputError for files that cannot be used, NothingFeasible if no plan fits.
    """
    for name, given, known in (("recompute", recompute, RECOMPUTE), ("optimizer", optimizer, OPTIMIZER_FACTORS)):
        if one_text(name, given, "none") not in known:
            raise UnknownNameError(name, given, known)
    one_text("network", network, "networks.json:a")
    layers, levels = read_instance(str(file_path("instance", instance))), read_network(network, num_devices)
    problem = problem_of(
        layers if width is None else layers.only(width),
        levels,
        optimizer_factor=OPTIMIZER_FACTORS[optimizer],
        zero_stages=STAGES if zero_stages is None else tuple(zero_stages),
        recompute=(False, True) if recompute == "best" else (recompute == "full",),
    )
    found = solve(problem)
    if found is None:
        raise NothingFeasible(_why_infeasible(problem, num_devices))
    return TablePartition(found, layers, levels, num_devices)


def _data(found: Partition, layers: Instance) -> dict[str, Any]:
    return {
        "t_step_s": found.step_time_s,
        "bottleneck_s": found.bottleneck_s,
        "stages": [
            {
                "layers": stage.num_layers,
                "first_layer": layers.layer_ids[stage.first_layer],
                "devices": found.devices_per_stage,
                "first_device": stage.first_device,
                "load_s": stage.load_s,
                "memory_bytes": stage.memory_bytes,
                "parameter_bytes": stage.parameter_bytes,
                "producer_level": stage.producer_level,
            }
            for stage in found.stages
        ],
        "replicas": found.num_replicas,
        "width": found.width,
        "zero_stage": found.zero_stage,
        "recompute": _recompute_text(found.recompute),
    }


def _text(found: Partition, layers: Instance, levels: NetworkLevels, devices: int) -> str:
    head = (
        f"{layers.file} on {counted(devices, 'device')} of {levels.name}: "
        f"step {format_quantity(found.step_time_s, 's')}, bottleneck {format_quantity(found.bottleneck_s, 's')}\n"
        f"{counted(len(found.stages), 'stage')} x {counted(found.num_replicas, 'replica')}, width={found.width} "
        f"zero_stage={found.zero_stage} recompute={_recompute_text(found.recompute)}"
    )
    rows = [
        [
            f"{number}",
            f"{layers.layer_ids[stage.first_layer]}",
            f"{stage.num_layers}",
            f"{stage.first_device}",
            f"{found.devices_per_stage}",
            format_quantity(stage.load_s, "s"),
            format_quantity(stage.memory_bytes, "bytes"),
            format_quantity(stage.parameter_bytes, "bytes"),
            "-" if stage.producer_level is None else f"{stage.producer_level}",
        ]
        for number, stage in enumerate(found.stages, 1)
    ]
    header = ["stage", "first\nlayer", "layers", "first\ndevice", "devices", "load", "memory", "parameters"]
    return f"{head}\n\n" + table([*header, "level of link\nto producer"], rows, text=())


def _why_infeasible(problem: PartitionProblem, devices: int) -> str:
    """Return why no plan fits: too few devices, or how many bytes of memory are missing."""
    least = smallest(problem)
    if least is None:
        fewest = min(width.devices_per_stage for width in problem.widths)
        return f"no plan: a stage takes {counted(fewest, 'device')} at least, and there are {devices}"
    short = least.memory_bytes - problem.device_bytes
    return (
        f"no plan fits: the one that needs least memory needs {format_quantity(least.memory_bytes, 'bytes')} on a "
        f"device, which has {format_quantity(problem.device_bytes, 'bytes')}: {format_quantity(short, 'bytes')} short, "
        f"{least.memory_bytes:.0f} bytes against {problem.device_bytes:.0f} "
        f"({counted(least.num_stages, 'stage')} x {counted(least.num_replicas, 'replica')}, width={least.width} "
        f"zero_stage={least.zero_stage} recompute={_recompute_text(least.recompute)}); try more devices"
    )


def _recompute_text(recompute: bool) -> str:
    return "full" if recompute else "none"
