"""The settings of a plan in the words of its framework, as text and as plain data."""

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsx.errors import SpecError, did_you_mean
from dsx.graph.model import Model
from dsx.launching.files import FRAMEWORKS
from dsx.launching.launch import Launch, words_of
from dsx.launching.megatron import counted_ends
from dsx.launching.request import Framework
from dsx.launching.run import run_of
from dsx.pricing.problem import Problem
from dsx.space.conditions import for_plan, on_platform
from dsx.space.frameworks import read_framework
from dsx.space.layer_layout import LAYOUT
from dsx.space.plan import Plan
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import DeviceSpec
from dsx.spec.model import ModelSpec

_WIDTH = 100  # columns of a line
_INDENT = "  "
_BEFORE_BACKSLASH = _WIDTH - len(" \\")
_USUAL = next(iter(FRAMEWORKS))  # whose words state the settings of a framework without its own


def launch_of(plan: Plan, problem: Problem, device: DeviceSpec) -> Launch:
    """Return the settings of a plan of `problem` on GPUs of the type `device`, in the words of its framework."""
    model = problem.models[problem.strategies.index(plan["strategy"])]
    return launch_by(_words(problem), plan, problem.model, model, problem.assumptions_spec, device)


def launch_by(
    words: str | None,
    plan: Plan,
    spec: ModelSpec,
    model: Model,
    assumptions: AssumptionsSpec,
    device: DeviceSpec,
) -> Launch:
    """Return the settings of a plan in the `words` of launch files, with the effects that it has of an assumption set.

    `model` is that of `spec` under its strategy. Raises SpecError for words of no launch files.
    """
    own = for_plan(on_platform(assumptions, device.software), plan.codes)
    framework = of_words(words)
    launch = framework.settings(run_of(plan, model, own, device), spec)
    return replace(launch, lost=(*launch.lost, *(part for part, _ in framework.without_format(device))))


def of_words(words: str | None, place: str = "flags") -> Framework:
    """Return the launch files with some words, those of the usual ones if they are None.

    Raises SpecError, with the place that names the words, if there are none.
    """
    if words is not None and words not in FRAMEWORKS:
        known = ", ".join(FRAMEWORKS)
        raise SpecError(
            f"{place}: no launch files have the words {words!r}{did_you_mean(words, FRAMEWORKS)} (known: {known})"
        )
    return FRAMEWORKS[words or _USUAL]


def launch_data(launch: Launch) -> dict[str, Any]:
    """Return settings as plain data, by framework."""
    found: dict[str, Any] = {"flags": launch.arguments, "left": list(launch.left), "lost": list(launch.lost)}
    return {launch.framework: found | ({"configuration": launch.configuration} if launch.configuration else {})}


def launch_text(launch: Launch, title: str) -> str:
    """Return the settings as lines, flags as those for a shell, and the choices that none expresses."""
    head = f"{launch.title} of {title}:{'' if launch.flags else f' none, since {launch.none_since}'}"
    lines: list[str] = []
    for text in (piece for flag in launch.flags for piece in _pieces(words_of(flag))):
        if lines and len(f"{lines[-1]} {text}") <= _BEFORE_BACKSLASH:
            lines[-1] += f" {text}"
        else:
            lines.append(f"{_INDENT}{text}")
    flags = [(" \\\n" if launch.options else "\n").join(lines)] if lines else []
    left = [_wrapped(f"left to your program: {part}") for part in launch.left]
    return "\n".join([head, *flags, *left, *(_wrapped(f"cannot be expressed: {lost}") for lost in launch.lost)])


def counted_ends_text(plan: Plan, problem: Problem) -> str:
    """Return how an even cut divides layers that the stages do not divide; empty if they do.

    With its flags where the plan has the words of Megatron-LM.
    """
    limits = problem.limits()
    if LAYOUT in plan or not limits.counts_ends or not (flags := counted_ends(plan, limits.num_layers)):
        return ""
    chunks = "pp" if plan["vpp"] == 1 else "pp * vpp"
    usual = FRAMEWORKS[_USUAL]
    needs = (
        f": {usual.title} needs {' '.join(option.flag for option in flags)}"
        if of_words(_words(problem)) is usual
        else ""
    )
    return textwrap.fill(
        f"{chunks} divides {limits.num_layers + 2} layers, embedding and head counted as a layer each, and not the "
        f"{limits.num_layers} alone{needs}",
        _WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _words(problem: Problem) -> str | None:
    """Return whose words state the settings of plans of a problem; None for the usual ones."""
    return (problem.framework or read_framework(problem.assumptions_spec.of_framework)).flags


def _pieces(words: Sequence[str]) -> list[str]:
    """Return a flag as what stays on one line: all of it, or each of its words if all are too long for one."""
    whole = shlex.join(words)
    return [whole] if len(whole) <= _BEFORE_BACKSLASH - len(_INDENT) else [shlex.quote(word) for word in words]


def _wrapped(said: str) -> str:
    return textwrap.fill(said, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
