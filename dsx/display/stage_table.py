"""The stages of a plan with a layer layout of its own, as a table and as plain data."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from dsx.display.table import table
from dsx.pricing.plan_stages import PlanStage
from dsx.space.plan import Plan
from dsx.units import format_quantity

_BOTTLENECK = "<- bottleneck"


def stages_data(plan: Plan, stages: Sequence[PlanStage]) -> list[dict[str, Any]]:
    """Return stages as plain data; `devices` are the GPUs of a stage in all replicas."""
    return [
        {"first_layer": stage.first_layer, "num_layers": stage.num_layers}
        | dataclasses.asdict(stage)
        | {"devices": devices_of(plan)}
        for stage in stages
    ]


def devices_of(plan: Plan) -> int:
    """Return the GPUs of a stage, in all replicas."""
    return plan["num_gpus"] // plan["pp"]


def stages_text(plan: Plan, stages: Sequence[PlanStage]) -> str:
    """Return the stages of a plan as a table, the slowest one marked."""
    slowest = bottleneck(stages)
    several = any(len(stage.chunks) > 1 for stage in stages)
    rows = [
        [
            f"{number}",
            ", ".join(f"{chunk.first_layer}" for chunk in stage.chunks),
            f"{stage.num_layers}",
            *(["+".join(f"{chunk.num_layers}" for chunk in stage.chunks)] if several else []),
            f"{devices_of(plan)}",
            format_quantity(stage.load_s, "s"),
            format_quantity(stage.compute_s, "s"),
            format_quantity(stage.comm_s, "s"),
            format_quantity(stage.recompute_s, "s"),
            f"{stage.in_flight:.4g}",
            format_quantity(stage.peak_bytes, "bytes"),
            stage.link or "-",
            _BOTTLENECK if stage is slowest else "",
        ]
        for number, stage in enumerate(stages, 1)
    ]
    chunks = ["layers of\nchunks"] if several else []
    header = [
        "stage",
        f"first\nlayer{'s' if several else ''}",
        "layers",
        *chunks,
        "GPUs",
        "time of a\nmicrobatch",
        "compute",
        "commu-\nnication",
    ]
    header += ["recom-\nputation", "in\nflight", "memory", "link\nbefore", ""]
    return table(header, rows, text=(len(header) - 1,))


def bottleneck(stages: Sequence[PlanStage]) -> PlanStage:
    """Return the slowest stage, the first if several are."""
    return max(stages, key=lambda stage: stage.load_s)
