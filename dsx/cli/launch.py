"""Launch flags as the verbs print them: a block to paste behind a command, and plain data."""

import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem
    from dsx.results.launch import Launch
    from dsx.spec.cluster import DeviceSpec

_WIDTH = 100  # columns of a line of flags


def launch_of(plan: dict[str, Any], problem: "Problem", device: "DeviceSpec") -> "Launch":
    """Return the launch flags of a plan of a search in `problem` on copies of `device`."""
    from dsx.results.launch import megatron_lm

    model = problem.models[problem.strategies.index(plan["strategy"])]
    return megatron_lm(plan, model, problem.assumptions_spec, device)


def launch_data(launch: "Launch") -> dict[str, Any]:
    """Return launch flags as plain data, by launcher."""
    return {"megatron_lm": {"flags": launch.arguments, "lost": list(launch.lost)}}


def print_launch(launch: "Launch", title: str) -> None:
    """Print the flags so that they can be pasted into a shell, and what they do not express."""
    print(f"Megatron-LM flags of {title}:{'' if launch.flags else f' none, since {launch.none_since}'}")
    lines: list[str] = []
    for flag in launch.flags:
        text = shlex.join(filter(None, flag))
        if lines and len(f"{lines[-1]} {text}") <= _WIDTH:
            lines[-1] += f" {text}"
        else:
            lines.append(f"  {text}")
    if lines:
        print(" \\\n".join(lines))
    for lost in launch.lost:
        print(f"cannot be expressed: {lost}")
