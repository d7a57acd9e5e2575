"""One plan term by term as text: time, memory, stages, effects of software that it lacks, and measured kernels."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.operator_files import DIRECTIONS, OperatorTime, Shape, shape_text
from dsx.config.stack import WITHOUT, Need
from dsx.cost.context import StepCosts
from dsx.cost.measured_kernels import EXACT, EXTRAPOLATED, INTERPOLATED
from dsx.plans.plan import Plan, setting_of
from dsx.plans.violations import for_plan, unmet_needs
from dsx.pricing.measured_share import KernelCoverage
from dsx.pricing.one_plan import PlanStage
from dsx.schedules.schedules import SCHEDULES
from dsx.tables.format import quantity, share, table, wrapped
from dsx.text import Data, DataView
from dsx.units import counted, format_quantity


def lacked_effects(spec: AssumptionsSpec, plan: Plan) -> dict[str, Data]:
    """Return, by field of an assumption set, what a plan lacks for its value, and the value that it has; SI units.

    An overlap of an axis of one rank is left out, and one that the schedule has by itself.
    """
    of_plan, overlap = for_plan(spec, plan.codes), SCHEDULES[plan.codes["schedule"]].overlap
    hidden = (*overlap.axes, *(("pp",) if overlap.sends else ())) if overlap and plan["pp"] > 1 else ()
    return {
        name: {"needs": condition.text, "value": getattr(spec, name), "priced": getattr(of_plan, name)}
        for name, condition in spec.conditions.stated.items()
        if getattr(of_plan, name) != getattr(spec, name)
        and plan.get(axis := name.removesuffix("_overlap"), 2) > 1
        and axis not in hidden
    }


def effects_text(spec: AssumptionsSpec, plan: Plan) -> str:
    """Return the effects that a plan lacks, a line each; empty if it has all."""
    unmet, lines = unmet_needs(spec, plan.codes), list[str]()
    for name, lacked in lacked_effects(spec, plan).items():
        values = (lacked["priced"], lacked["value"])
        priced, value = (f"{1e6 * of:g} us" if name.endswith("_latency") else f"{of:g}" for of in values)
        because = " and ".join(_unmet_text(need, plan) for need in unmet[name])
        instead = f"{name} = {priced} in place of {value}"
        lost = spec.conditions.stated[name].lost
        lines.append(wrapped(f"{lost} because of {because}: {instead}" if lost else f"{instead} because of {because}"))
    return "\n".join(lines)


def _unmet_text(need: Need, plan: Plan) -> str:
    """Return what a plan has in place of a need: "zero_stage=3 (needed: zero_stage <= 1)"."""
    columns = dict.fromkeys(name for bound in need for name in (bound.column, *bound.with_what) if name in plan)
    values = " ".join(f"{setting_of(name)}={plan[name]}" for name in columns)
    if any(bound.relation == WITHOUT for bound in need):  # the value names what it has of a long list
        return values
    bounds = (" ".join([setting_of(bound.column), bound.relation, *map(setting_of, bound.with_what)]) for bound in need)
    return f"{values} (needed: {' or '.join(bounds)})"


_NEARLY_EQUAL = 1e-3  # of the step
_ROUNDING = 1e-9


def costs_text(costs: Mapping[str, float]) -> str:
    """Return a step's time and memory as tables, then its 80 % interval and the remaining columns, such as MFU."""
    parts: list[str] = []
    columns = [*StepCosts.__dataclass_fields__]
    for total, unit in (("step_time_s", "_s"), ("peak_bytes", "_bytes")):
        names = [name for name in columns[: columns.index(total)] if name.endswith(unit)]
        rows = [[name, quantity(name, costs[name]), share(costs[name], costs[total], 1)] for name in (*names, total)]
        parts.append(table(["", "", "share"], rows))
    low, high = costs["step_time_s_low"], costs["step_time_s_high"]
    if low == low:
        ends = (quantity(f"step_time_s_{end}", value) for end, value in (("low", low), ("high", high)))
        parts.append(f"80 % interval of step_time_s: {' to '.join(ends)}")
    if math.isnan(costs["mfu"]):
        lacking = "the plan leaves a part of the work of a step to no rank, so its seconds are not those of a step"
        parts.append(wrapped(f"no MFU and no tokens a second: {lacking}"))
    further = [name for name in columns[columns.index("peak_bytes") + 1 :] if costs[name] == costs[name]]
    shown = [name for name in further if name != "host_bytes" or costs[name]]  # if anything is offloaded
    parts.append(table(["", ""], [[name, quantity(name, costs[name])] for name in shown]))
    return "\n\n".join(filter(None, parts))


def comparison_text(costs: Mapping[str, float], fastest: Mapping[str, float]) -> str:
    """Return the parts of a step beside those of the fastest plan, the largest difference first.

    A part that is the same in both, or nearly so, has no line.
    """
    step, peak = "step_time_s", "peak_bytes"
    parts = [name for name in costs if name.endswith("_s") and not name.startswith((step, "tokens"))]
    parts = [name for name in parts if abs(costs[name] - fastest[name]) > _NEARLY_EQUAL * fastest[step]]
    rows: list[list[str]] = []
    for name in (*sorted(parts, key=lambda name: -abs(costs[name] - fastest[name])), step, peak):
        value, other = costs[name], fastest[name]
        difference = 0.0 if math.isclose(value, other, rel_tol=_ROUNDING) else value - other
        signed = f"{'-' if difference < 0 else '+'}{quantity(name, abs(difference))}"
        differs = signed if math.isfinite(difference) else "-"
        rows.append([name, quantity(name, value), quantity(name, other), differs])
    return table(["", "this plan", "fastest", "difference"], rows)


def operators_text(kernels: Sequence[DataView]) -> str:
    """Return the kernels of one layer for one microbatch as a table."""
    figures = ("matrix FLOP", "vector FLOP", "HBM traffic", "compute", "memory", "communication", "saved")
    rows: list[list[str]] = []
    for kernel in kernels:
        for direction in ("forward", "backward"):
            part = kernel[direction]
            comm = part["tp_comm_s"] + part["cp_comm_s"] + part["ep_comm_s"]
            if kernel["counted"] or comm:
                work = [f"{part[name]:.4g}" for name in ("matrix_flops", "vector_flops")]
                work.append(format_quantity(part["bytes"], "bytes"))
                times = [format_quantity(seconds, "s") for seconds in (part["compute_s"], part["memory_s"], comm)]
                saved = format_quantity(kernel["saved_bytes"], "bytes") if direction == "forward" else ""
                rows.append([kernel["name"], direction, *work, *times, saved])
    return "one layer, one microbatch:\n" + table(["", "", *figures], rows, text=(0, 1))


def stages_data(plan: Plan, stages: Sequence[PlanStage]) -> list[Data]:
    """Return stages as plain data; `devices` are the GPUs of a stage in all replicas."""
    return [
        {"first_layer": stage.first_layer, "num_layers": stage.num_layers}
        | dataclasses.asdict(stage)
        | {"devices": plan["num_gpus"] // plan["pp"]}
        for stage in stages
    ]


def stages_text(plan: Plan, stages: Sequence[PlanStage]) -> str:
    """Return the stages of a plan as a table, the slowest one marked; empty without stages."""
    if not stages:
        return ""
    slowest = bottleneck(stages)
    several = any(len(stage.chunks) > 1 for stage in stages)
    rows = [
        [
            f"{number}",
            ", ".join(f"{chunk.first_layer}" for chunk in stage.chunks),
            f"{stage.num_layers}",
            *(["+".join(f"{chunk.num_layers}" for chunk in stage.chunks)] if several else []),
            f"{plan['num_gpus'] // plan['pp']}",
            *(format_quantity(time, "s") for time in (stage.load_s, stage.compute_s, stage.comm_s, stage.recompute_s)),
            f"{stage.in_flight:.4g}",
            format_quantity(stage.peak_bytes, "bytes"),
            stage.link or "-",
            "<- bottleneck" if stage is slowest else "",
        ]
        for number, stage in enumerate(stages, 1)
    ]
    header = ["stage", "first\nlayers" if several else "first\nlayer", "layers"]
    header += [*(["layers of\nchunks"] if several else []), "GPUs", "time of a\nmicrobatch", "compute"]
    header += ["commu-\nnication", "recom-\nputation", "in\nflight", "memory", "link\nbefore", ""]
    return table(header, rows, text=(len(header) - 1,))


def bottleneck(stages: Sequence[PlanStage]) -> PlanStage:
    """Return the slowest stage, the first if several are."""
    return max(stages, key=lambda stage: stage.load_s)


_SHOWN = 10  # rows that match no kernel, in a text
_HOW = {EXACT: "measured", INTERPOLATED: "interpolated", EXTRAPOLATED: "extrapolated"}


def coverage_data(covered: KernelCoverage) -> Data:
    """Return the measured kernels of a plan as plain data; times in seconds."""
    return {
        "file": covered.file,
        "num_kernels": covered.num_kernels,
        **{f"num_{name}": covered.number(how) for how, name in _HOW.items()},
        **{f"{name}_share": covered.shares[how] for how, name in _HOW.items()},
        "kernels": [
            {"line": kernel.row and kernel.row.line}
            | {name: getattr(kernel, name) for name in ("layer", "kernel", "operator")}
            | {"direction": DIRECTIONS[kernel.direction], **_sizes(kernel.shape), "known": _HOW[kernel.how]}
            | {name: getattr(kernel, name) for name in ("time_s", "roofline_s")}
            for kernel in covered.kernels
        ],
        "idle": idle_data(covered.idle),
    }


def idle_data(idle: Sequence[OperatorTime]) -> list[Data]:
    """Return rows that match no kernel as plain data."""
    return [
        {"line": row.line, "operator": row.operator, "direction": _direction(row) or None}
        | {**_sizes(row.shape), "dtype": row.dtype or None}
        for row in idle
    ]


def coverage_text(covered: KernelCoverage, plan: str = "this plan", with_idle: bool = True) -> str:
    """Return the measured kernels of a plan as a table; `with_idle` adds the rows that match none of its kernels."""
    lines = [f"operator times of {covered.file}, {known_text(covered, plan)}"]
    rows: list[list[str]] = []
    for kernel in covered.kernels:
        words = [f"{kernel.layer} {kernel.kernel}", DIRECTIONS[kernel.direction], kernel.operator]
        times = [format_quantity(seconds, "s") for seconds in (kernel.roofline_s, kernel.time_s)]
        source = "between rows" if kernel.how == INTERPOLATED else "beyond the rows"
        source = f"line {kernel.row.line}" if kernel.row else source
        rows.append([*words, shape_text(kernel.shape), *times, source])
    if rows:
        header = ["", "", "operator", "m x n x k", "roofline", "time", "known from"]
        lines.append(table(header, rows, text=(0, 1, 2, 3, 6)))
    if with_idle:
        lines.append(idle_text(covered.file, covered.idle, plan))
    return "\n".join(filter(None, lines))


def known_text(covered: KernelCoverage, plan: str) -> str:
    """Return how the kernels of a plan are known, in one line."""
    parts = ", ".join(
        f"{covered.number(how)} {name} ({share(covered.shares[how], 1, 1)} of the time of all kernels)"
        for how, name in _HOW.items()
        if how == EXACT or covered.number(how)
    )
    return f"{counted(covered.num_kernels, 'kernel')} of {plan}: {parts}"


def shares_text(covered: Sequence[KernelCoverage]) -> str:
    """Return the share of measured and interpolated times of each plan; empty if it is the same for all of them."""
    shares = [share(of_plan.shares[EXACT] + of_plan.shares[INTERPOLATED], 1, 1) for of_plan in covered]
    listed = ", ".join(f"{text} of plan {number}" for number, text in enumerate(shares, 1))
    rank = f"{listed}; the order of the plans depends partly on rooflines and extrapolation"
    return f"measured or interpolated share of kernel time: {rank}" if len(set(shares)) > 1 else ""


def idle_text(file: str, idle: Sequence[OperatorTime], plan: str) -> str:
    """Return the rows that are of no kernel of a plan; empty if there are none."""
    if not idle:
        return ""
    lines = [f"{counted(len(idle), 'row')} of {file}: no kernel of {plan} is of that operator, direction and type"]
    for row in idle[:_SHOWN]:
        what = " ".join(filter(None, (row.operator, _direction(row), row.dtype, shape_text(row.shape))))
        lines.append(f"  line {row.line}: {what}")
    if len(idle) > _SHOWN:
        lines.append(f"  ... and {len(idle) - _SHOWN} more, which --json prints")
    return "\n".join(lines)


def _direction(row: OperatorTime) -> str:
    return DIRECTIONS[row.directions[0]] if len(row.directions) == 1 else ""


def _sizes(shape: Shape) -> dict[str, int | None]:
    m, n, k, batch = shape
    return {"m": m, "n": n, "k": k or None, "batch": batch or None}


def shapes_data(kernels: Sequence[tuple[str, int | None, Shape]]) -> list[Data]:
    """Return kernels that could be measured as plain data, with the columns of a file of operator times."""
    return [
        {"operator": operator, "direction": None if direction is None else DIRECTIONS[direction]} | _sizes(shape)
        for operator, direction, shape in kernels
    ]


def shapes_text(kernels: Sequence[dict[str, object]]) -> str:
    """Return kernels that could be measured as a table."""
    rows = [[str(value or "") for value in kernel.values()] for kernel in kernels]
    header = ["operator", "direction", "m", "n", "k", "batch"]
    return "the kernels of all layers, as --operator-times takes them:\n" + table(header, rows, text=(0, 1))
