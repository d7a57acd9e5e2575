"""The frameworks that have launch files: whether they run a plan, its files, and its settings in their words.

A plan outside the boxes of the framework's file in data/frameworks is refused, and so is what only the framework's
writer knows: a layout of weights, a model. The error names the part, and the nearest that the framework runs.

At the head of a file stands what the assumption set assumes of the software: the fields that its stack states, with the
sources there or, where its framework states them too, in the framework. A field that an option expresses is listed
too: an option switches an overlap on, and the set says how much of it hides.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dsx.config.assumption_set import AssumptionsSpec
from dsx.config.cluster_file import GENERATIONS, GPU_SOFTWARE, DeviceSpec
from dsx.config.documents import is_sourced
from dsx.config.framework_file import BoxSpec
from dsx.config.model_file import ModelSpec
from dsx.config.stack import load_stack
from dsx.errors import InputError, SpecError, did_you_mean
from dsx.launching import deepspeed, torchtitan
from dsx.launching.hosts import host_lines
from dsx.launching.megatron import (
    BRIDGE,
    NAME,
    counted_ends,
    fields_of_recipe,
    flags_of,
    not_of_core,
    refused_by_core,
    write_recipe,
    write_script,
)
from dsx.launching.request import (
    Architecture,
    Framework,
    LaunchSettings,
    Refused,
    Request,
    WrittenLaunch,
    run_of,
    uneven_sequence,
    words_of,
)
from dsx.notation.model import Model
from dsx.plans.choices import BY_NAME
from dsx.plans.frameworks import broken, of_regions, read_framework
from dsx.plans.layer_layout import LAYOUT
from dsx.plans.plan import Plan
from dsx.plans.violations import for_plan, on_platform
from dsx.pricing.problem import Problem
from dsx.text import WIDTH, Data, wrapped


def assumed_lines(assumptions: AssumptionsSpec, device: DeviceSpec) -> list[str]:
    """Return what is assumed of the software on a device, the stack first."""
    if assumptions.stack is None:
        return [f"The assumption set {assumptions.name} names no software."]
    try:
        stack = load_stack(assumptions.stack)
    except InputError:  # a file of its own that is not here
        return [f"The software is the stack {assumptions.stack}."]
    lines = [f"Assumed of the software (stack {stack.name}: {stack.description.rstrip('.')}):"]
    framework = assumptions.of_framework
    of_framework = {} if isinstance(framework, str) else framework.on(device.family).assume
    newest = int(assumptions.attention_kernels)
    runs = [age for age in GENERATIONS[:newest] if age in device.attention]
    for name, value in stack.assume.items():
        if is_sourced(value):  # else it is of measured runs alone
            text = _value(name, getattr(assumptions, name))
            of_stack = "" if text == str(value["value"]) else f" (of the stack: {value['value']})"
            if name == "attention_kernels" and newest and runs[-1:] != [GENERATIONS[newest - 1]]:
                of_stack += f" ({device.name} runs {runs[-1]})" if runs else f" ({device.name} states none)"
            lines.append(f"  - {name} {text}{of_stack}: {of_framework.get(name, value).get('source', '')}")
    return lines


def _value(name: str, value: object) -> str:
    if not isinstance(value, float | int):
        return str(value)
    if name == "attention_kernels" and float(value).is_integer():
        return ("none", *GENERATIONS)[round(value)]
    return f"{value * 1e6:g} us" if name.endswith("_latency") else f"{value:g}"


FRAMEWORKS = {
    "megatron": Framework(
        title=NAME,
        limits="megatron",
        software=GPU_SOFTWARE,
        refused=refused_by_core,
        no_model=not_of_core,
        write=write_script,
        settings=flags_of,
        needs=("MEGATRON_LM=/path/of/Megatron-LM",),
    ),
    "megatron-bridge": Framework(
        title=BRIDGE,
        limits="megatron-bridge",
        software=GPU_SOFTWARE,
        refused=partial(refused_by_core, title=BRIDGE),
        no_model=partial(not_of_core, title=BRIDGE),
        write=write_recipe,
        settings=fields_of_recipe,
    ),
    "torchtitan": Framework(
        title=torchtitan.NAME,
        limits="torchtitan",
        software=GPU_SOFTWARE,
        refused=torchtitan.refused,
        no_model=torchtitan.no_model,
        write=torchtitan.write,
        settings=torchtitan.settings,
        half_formats=("bf16",),  # TrainingConfig.mixed_precision_param: bfloat16 or float32
        needs=torchtitan.NEEDS,
    ),
    "deepspeed": Framework(
        title=deepspeed.NAME,
        limits="deepspeed",
        software=(*GPU_SOFTWARE, "synapseai"),
        refused=deepspeed.refused,
        no_model=lambda _: [],  # whose models are of the user's program
        write=deepspeed.write,
        settings=deepspeed.settings,
        needs=deepspeed.NEEDS,
    ),
}


def launch_files(framework: Framework, request: Request, head: Sequence[str]) -> WrittenLaunch:
    """Return the launch files of a plan, with `head` at the head of each.

    Raises InputError, with each part of the plan that the framework cannot run, and the nearest that it can.
    """
    if refusals := refused(framework, request):
        raise InputError(f"{framework.title} cannot run the plan:\n{refused_text(refusals)}")
    return framework.write(
        request, [*head, *host_lines(request), "", *assumed_lines(request.run.assumptions, request.run.device), ""]
    )


def refused_text(refusals: Sequence[Refused]) -> str:
    """Return what a framework cannot run as lines."""
    return "\n".join(f"  {part}{f'; nearest: {nearest}' if nearest else ''}" for part, nearest in refusals)


def refused_of_job(framework: Framework, shape: Architecture, device: DeviceSpec) -> list[Refused]:
    """Return what a framework cannot run of a model and a device, whatever the plan."""
    if device.software not in framework.software:
        part = f"{device.name}, which is programmed with {device.software}"
        return [Refused(part, f"a device of {' or '.join(framework.software)}")]
    return [*framework.without_format(device), *framework.no_model(shape)]


def refused(framework: Framework, request: Request) -> list[Refused]:
    """Return what a framework cannot run of a plan."""
    run = request.run
    device, plan = run.device, run.plan
    of_job = refused_of_job(framework, request.shape, device)
    if device.software not in framework.software:
        return of_job
    runner, optimizer = read_framework(framework.limits).on(device.family), run.assumptions.optimizer
    limits = of_regions(runner.with_optimizer(optimizer), run.regions)
    if not limits.runs:
        return [Refused(f"assumptions.optimizer={optimizer}", f"assumptions.optimizer={runner.optimizers[0]}")]
    # Of equally near boxes the first has the most usual choices.
    boxes = ((broken(box, plan), box) for box in limits.boxes(run.experts is not None))
    columns, box = min(boxes, key=lambda refusals: len(refusals[0]))
    refusals = [Refused(f"{column}={plan[column]}", _nearest(box, column, plan[column])) for column in columns]
    if limits.cp_parts is not None and (cp := run.number("cp")) > 1:
        factor = f"{limits.cp_parts} * " if limits.cp_parts > 1 else ""
        refusals += uneven_sequence(run, limits.cp_parts * cp, f"{factor}cp={cp}")
    columns = {part.partition("=")[0] for part, _ in refusals}
    further = [part for part in framework.refused(request) if part[0].partition("=")[0] not in columns]
    return [*refusals, *further, *of_job]


def _nearest(box: BoxSpec, column: str, value: object) -> str:
    """Return the value of a column that a box has and that is nearest to another."""
    if column == "strategy":
        return f"strategy {', '.join(box.strategy or ())}"
    if column not in box.fix:
        return ", ".join(f"{column}{bound}" for bound in box.limit.get(column, ()))
    values, usual = box.fix[column], BY_NAME[column].default
    numbers = [choice for choice in values if isinstance(choice, int)]
    if isinstance(value, int) and numbers:
        return f"{column}={min(numbers, key=lambda number: abs(number - value))}"
    return f"{column}={usual if usual in values else values[0]}"


_INDENT = "  "
_BEFORE_BACKSLASH = WIDTH - len(" \\")
_USUAL = next(iter(FRAMEWORKS))  # whose words state the settings of a framework without its own


def launch_of(plan: Plan, problem: Problem, device: DeviceSpec) -> LaunchSettings:
    """Return the settings of a plan of `problem` on GPUs of the type `device`, in the words of its framework."""
    model = problem.models[problem.strategies.index(plan["strategy"])]
    return launch_by(_words(problem), plan, problem.model, model, problem.assumptions_spec, device)


def launch_by(
    words: str | None, plan: Plan, spec: ModelSpec, model: Model, assumptions: AssumptionsSpec, device: DeviceSpec
) -> LaunchSettings:
    """Return the settings of a plan in the `words` of launch files, with the effects that it has of an assumption set.

    `model` is that of `spec` under its strategy. Raises SpecError for words of no launch files.
    """
    effective = for_plan(on_platform(assumptions, device.software), plan.codes)
    framework = of_words(words)
    launch = framework.settings(run_of(plan, model, effective, device), spec)
    return replace(launch, lost=(*launch.lost, *(part for part, _ in framework.without_format(device))))


def of_words(words: str | None, place: str = "flags") -> Framework:
    """Return the launch files with some words, those of the usual ones if they are None.

    Raises SpecError, with the place that names the words, if there are none.
    """
    if words is not None and words not in FRAMEWORKS:
        titles = ", ".join(FRAMEWORKS)
        near = did_you_mean(words, FRAMEWORKS)
        raise SpecError(f"{place}: no launch files have the words {words!r}{near} (known: {titles})")
    return FRAMEWORKS[words or _USUAL]


def launch_data(launch: LaunchSettings) -> Data:
    """Return settings as plain data, by framework."""
    content: Data = {"flags": launch.arguments, "left": list(launch.left), "lost": list(launch.lost)}
    return {launch.framework: content | ({"configuration": launch.configuration} if launch.configuration else {})}


def launch_text(launch: LaunchSettings, title: str) -> str:
    """Return the settings as lines, flags as those for a shell, and the choices that none expresses."""
    lines: list[str] = []
    for flag in launch.flags:
        words = words_of(flag)
        line = shlex.join(words)  # on one line, unless it is too long for one
        fits = len(line) <= _BEFORE_BACKSLASH - len(_INDENT)
        for text in [line] if fits else map(shlex.quote, words):
            if lines and len(f"{lines[-1]} {text}") <= _BEFORE_BACKSLASH:
                lines[-1] += f" {text}"
            else:
                lines.append(f"{_INDENT}{text}")
    tasks = [f"left to your program: {part}" for part in launch.left]
    tasks += [f"cannot be expressed: {part}" for part in launch.lost]
    head = f"{launch.title} of {title}:{'' if launch.flags else f' none, since {launch.none_since}'}"
    text = [(" \\\n" if launch.options else "\n").join(lines)] if lines else []
    return "\n".join([head, *text, *(wrapped(task, hanging="  ") for task in tasks)])


def counted_ends_text(plan: Plan, problem: Problem) -> str:
    """Return how an even cut divides layers that the stages do not divide; empty if they do.

    With its flags where the plan has the words of Megatron-LM.
    """
    limits, usual = problem.limits(), FRAMEWORKS[_USUAL]
    if LAYOUT in plan or not limits.counts_ends or not (ends := counted_ends(plan, limits.num_layers)):
        return ""
    needs = f": {usual.title} needs {' '.join(end.flag for end in ends)}" if of_words(_words(problem)) is usual else ""
    chunks = "pp" if plan["vpp"] == 1 else "pp * vpp"
    return wrapped(
        f"{chunks} divides {limits.num_layers + 2} layers, embedding and head counted as a layer each, and not the "
        f"{limits.num_layers} alone{needs}"
    )


def _words(problem: Problem) -> str | None:
    """Return whose words state the settings of plans of a problem; None for the usual ones."""
    return (problem.framework or read_framework(problem.assumptions_spec.of_framework)).flags
