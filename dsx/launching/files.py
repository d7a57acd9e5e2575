"""The frameworks that have launch files, whether they run a plan, and the files.

A plan outside the boxes of the framework's file in data/frameworks is refused, and so is what only the framework's
writer knows: a layout of weights, a model. The error names the part, and the nearest that the framework runs.
"""

from collections.abc import Sequence

from dsx.errors import InputError
from dsx.launching import deepspeed, torchtitan
from dsx.launching.architecture import Architecture
from dsx.launching.assumed import assumed_lines
from dsx.launching.hosts import host_lines
from dsx.launching.megatron import flags_of
from dsx.launching.megatron_script import (
    BRIDGE,
    fields_of_recipe,
    not_of_bridge,
    not_of_core,
    refused_by_bridge,
    refused_by_core,
    write_recipe,
    write_script,
)
from dsx.launching.request import Framework, Refused, Request, Written, uneven_sequence
from dsx.space.boxes import broken
from dsx.space.choices import BY_NAME
from dsx.space.frameworks import of_regions, read_framework
from dsx.spec.cluster import GPU_SOFTWARE, DeviceSpec
from dsx.spec.framework import BoxSpec

FRAMEWORKS = {
    "megatron": Framework(
        "Megatron-LM",
        "megatron",
        GPU_SOFTWARE,
        refused_by_core,
        not_of_core,
        write_script,
        flags_of,
        needs=("MEGATRON_LM=/path/of/Megatron-LM",),
    ),
    "megatron-bridge": Framework(
        BRIDGE, "megatron-bridge", GPU_SOFTWARE, refused_by_bridge, not_of_bridge, write_recipe, fields_of_recipe
    ),
    "torchtitan": Framework(
        torchtitan.NAME,
        "torchtitan",
        GPU_SOFTWARE,
        torchtitan.refused,
        torchtitan.no_model,
        torchtitan.write,
        torchtitan.settings,
        ("bf16",),  # TrainingConfig.mixed_precision_param: bfloat16 or float32
        torchtitan.NEEDS,
    ),
    "deepspeed": Framework(
        deepspeed.NAME,
        "deepspeed",
        (*GPU_SOFTWARE, "synapseai"),
        deepspeed.refused,
        lambda _: [],  # whose models are of the user's program
        deepspeed.write,
        deepspeed.settings,
        needs=deepspeed.NEEDS,
    ),
}


def launch_files(framework: Framework, request: Request, head: Sequence[str]) -> Written:
    """Return the launch files of a plan, with `head` at the head of each.

    Raises InputError, with each part of the plan that the framework cannot run, and the nearest that it can.
    """
    if found := refused(framework, request):
        raise InputError(f"{framework.title} cannot run the plan:\n{refused_text(found)}")
    return framework.write(
        request, [*head, *host_lines(request), "", *assumed_lines(request.run.assumptions, request.run.device), ""]
    )


def refused_text(found: Sequence[Refused]) -> str:
    """Return what a framework cannot run as lines."""
    return "\n".join(f"  {part}{f'; nearest: {nearest}' if nearest else ''}" for part, nearest in found)


def refused_of_job(framework: Framework, shape: Architecture, device: DeviceSpec) -> list[Refused]:
    """Return what a framework cannot run of a model and a device, whatever the plan."""
    if device.software not in framework.software:
        part = f"{device.name}, which is programmed with {device.software}"
        return [Refused(part, f"a device of {' or '.join(framework.software)}")]
    return [*framework.without_format(device), *framework.no_model(shape)]


def refused(framework: Framework, request: Request) -> list[Refused]:
    """Return what a framework cannot run of a plan."""
    device = request.run.device
    of_job = refused_of_job(framework, request.shape, device)
    if device.software not in framework.software:
        return of_job
    known, optimizer = read_framework(framework.limits).on(device.family), request.run.assumptions.optimizer
    limits = of_regions(known.with_optimizer(optimizer), request.run.regions)
    if not limits.runs:
        return [Refused(f"assumptions.optimizer={optimizer}", f"assumptions.optimizer={known.optimizers[0]}")]
    boxes = limits.boxes(request.run.experts is not None)
    plan = request.run.plan
    # Of equally near boxes the first has the most usual choices.
    columns, box = min(((broken(box, plan), box) for box in boxes), key=lambda found: len(found[0]))  # pyright: ignore[reportArgumentType]
    found = [Refused(f"{column}={plan[column]}", _nearest(box, column, plan[column])) for column in columns]
    if limits.cp_parts is not None and (cp := request.run.number("cp")) > 1:
        each = f"{limits.cp_parts} * " if limits.cp_parts > 1 else ""
        found += uneven_sequence(request.run, limits.cp_parts * cp, f"{each}cp={cp}")
    columns = {column for column, _ in ((part.part.partition("=")[0], part) for part in found)}
    others = [part for part in framework.refused(request) if part.part.partition("=")[0] not in columns]
    return [*found, *others, *of_job]


def _nearest(box: BoxSpec, column: str, value: object) -> str:
    """Return the value of a column that a box has and that is nearest to another."""
    if column == "strategy":
        return f"strategy {', '.join(box.strategy or ())}"
    if column in box.fix:
        values = box.fix[column]
        numbers = [one for one in values if isinstance(one, int)]
        if isinstance(value, int) and numbers:
            return f"{column}={min(numbers, key=lambda number: abs(number - value))}"
        first = BY_NAME[column].default if BY_NAME[column].default in values else values[0]
        return f"{column}={first}"
    return ", ".join(f"{column}{bound}" for bound in box.limit.get(column, ()))
