"""Launch flags as text to append to a command, and as plain data."""

import shlex
import textwrap
from typing import Any

from dsx.launching.megatron import Launch, megatron_lm, words_of
from dsx.pricing.problem import Problem
from dsx.space.plan import Plan
from dsx.spec.cluster import DeviceSpec

_WIDTH = 100  # columns of a line
_BEFORE_BACKSLASH = _WIDTH - len(" \\")


def launch_of(plan: Plan, problem: Problem, device: DeviceSpec) -> Launch:
    """Return the launch flags of a plan of `problem` on GPUs of the type `device`."""
    model = problem.models[problem.strategies.index(plan["strategy"])]
    return megatron_lm(plan, model, problem.assumptions_spec, device)


def launch_data(launch: Launch) -> dict[str, Any]:
    """Return launch flags as plain data, by launcher."""
    return {"megatron_lm": {"flags": launch.arguments, "lost": list(launch.lost)}}


def launch_text(launch: Launch, title: str) -> str:
    """Return the flags as lines for a shell, and the choices that no flag expresses."""
    head = f"Megatron-LM flags of {title}:{'' if launch.flags else f' none, since {launch.none_since}'}"
    lines: list[str] = []
    for flag in launch.flags:
        text = shlex.join(words_of(flag))
        if lines and len(f"{lines[-1]} {text}") <= _BEFORE_BACKSLASH:
            lines[-1] += f" {text}"
        else:
            lines.append(f"  {text}")
    flags = [" \\\n".join(lines)] if lines else []
    return "\n".join([head, *flags, *map(_wrapped, launch.lost)])


def _wrapped(lost: str) -> str:
    said = f"cannot be expressed: {lost}"
    return textwrap.fill(said, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
