"""Launch flags as text to append to a command, and as plain data."""

import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

from dsx.launching.megatron import Launch, counted_ends, megatron_lm, words_of
from dsx.pricing.problem import Problem
from dsx.space.layer_layout import LAYOUT
from dsx.space.plan import Plan
from dsx.spec.cluster import DeviceSpec

_WIDTH = 100  # columns of a line
_INDENT = "  "
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
    for text in (piece for flag in launch.flags for piece in _pieces(words_of(flag))):
        if lines and len(f"{lines[-1]} {text}") <= _BEFORE_BACKSLASH:
            lines[-1] += f" {text}"
        else:
            lines.append(f"{_INDENT}{text}")
    flags = [" \\\n".join(lines)] if lines else []
    return "\n".join([head, *flags, *map(_wrapped, launch.lost)])


def counted_ends_text(plan: Plan, problem: Problem) -> str:
    """Return how an even cut divides layers that the stages do not divide, and its flags; empty if they do."""
    limits = problem.limits()
    if LAYOUT in plan or not (flags := counted_ends(plan, limits.num_layers)):
        return ""
    chunks = "pp" if plan["vpp"] == 1 else "pp * vpp"
    needs = " ".join(option.flag for option in flags)
    return textwrap.fill(
        f"{chunks} divides {limits.num_layers + 2} layers, embedding and head counted as a layer each, and not the "
        f"{limits.num_layers} alone: Megatron-LM needs {needs}",
        _WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _pieces(words: Sequence[str]) -> list[str]:
    """Return a flag as what stays on one line: all of it, or each of its words if all are too long for one."""
    whole = shlex.join(words)
    return [whole] if len(whole) <= _BEFORE_BACKSLASH - len(_INDENT) else [shlex.quote(word) for word in words]


def _wrapped(lost: str) -> str:
    said = f"cannot be expressed: {lost}"
    return textwrap.fill(said, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
