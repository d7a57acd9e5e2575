"""The trace of one layer: a forward and a backward of one microbatch, on the ranks of the axes that divide it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsx.api.arguments import watcher
from dsx.api.job import DEFAULT_ASSUMPTIONS
from dsx.api.layer_description import stated_layer
from dsx.api.trace_write import Ranks, WrittenTrace, check_sizes, parsed_ranks
from dsx.argument_types import file_path
from dsx.cost.assumptions import assumptions_from_spec
from dsx.errors import InputError
from dsx.graph.derived import derive
from dsx.graph.notation import AXES
from dsx.hardware.cluster import cluster_from_spec
from dsx.pricing.problem import layers_hash
from dsx.progress import Watch, progress
from dsx.space.choices import BY_NAME, PLAN_COLUMNS
from dsx.space.domain_fill import rank_order_shares
from dsx.space.layer_layout import Chain
from dsx.space.ranks import rank_grid
from dsx.space.tiers import ORDERS, axes_in, expert_share, replicas_spanned, units
from dsx.spec.assumed_names import ELEMENT_BYTES
from dsx.spec.cluster import load_cluster
from dsx.spec.load import Given
from dsx.traces.durations import Machine
from dsx.traces.traced_plan import TracedPlan
from dsx.traces.write import chosen_ranks, write_trace

_JOB = ("pp", "dp")  # axes that divide no layer


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
    stated = stated_layer(name, settings, strategy, sizes, model, assumptions)
    layer = derive(stated.layer, stated.assumptions.fused_backward_reads, stated.assumptions.uncounted)
    values = {**stated.defaults, **stated.sizes}
    missing = sorted(letter for letter in layer.letters - {"activation_bytes"} if letter not in values)
    if missing:
        raise InputError(f"layer {layer.name!r} needs sizes: {', '.join(f'{one}=...' for one in missing)} (--set)")
    described = None if cluster is None else load_cluster(cluster)
    machine = None if described is None else cluster_from_spec(described)
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
        assumptions=stated.assumptions.model_copy(update=element),
        forward_only=forward_only,
        portable=portable,
        alone=True,
    )
    check_sizes(plan)
    wanted = parsed_ranks(ranks)
    about = {
        "layer": layer.name,
        "layers": layers_hash([layer])[:16],
        "strategy": layer.strategy,
        "assumptions": stated.assumptions.name,
        "sizes": values,
        "cluster": machine.name if machine else None,
        "forward_only": forward_only,
        "portable": portable,
    }
    priced = None
    if described and machine:
        priced = Machine(machine, assumptions_from_spec(stated.assumptions, described.device.family))
    with progress(len(chosen_ranks(plan, wanted)), "files", watcher(watch)) as advance:
        written = write_trace(plan, Path(file_path("out", out)), wanted, about, tensors, advance, priced)
    return WrittenTrace(Path(out), None, written, {})


def _columns(values: Mapping[str, int], domain: int, expert_axes: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a plan of one layer: its degrees, in rank order, and defaults."""
    columns: dict[str, Any] = {
        name: BY_NAME[name].code(BY_NAME[name].default)
        for name in PLAN_COLUMNS
        if name in BY_NAME and name != "strategy"
    }
    columns |= {axis: values.get(axis, 1) for axis in AXES} | dict.fromkeys(_JOB, 1)
    columns |= {"microbatch_size": values.get("b", 1), "panels": values.get("panels", 1)}
    columns["dp"] = int(replicas_spanned(columns, expert_axes))  # as many as an ep group needs
    axes = axes_in(ORDERS[columns["order"]])
    num_gpus = math.prod(columns[axis] for axis in axes)
    shares = rank_order_shares({axis: columns[axis] for axis in axes}, domain, num_gpus)
    columns |= {f"{axis}_nvs": int(share) for axis, share in shares.items()}
    columns |= {"num_microbatches": 1, "zero_stage": 0, "num_gpus": num_gpus}
    return columns | {"ep_nvs": int(expert_share(columns, expert_axes, domain))}
