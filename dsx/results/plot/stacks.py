"""Stacks: the parts of the step time and of the memory, with their colours and hatches.

The parts can be distinguished in grey too. If all parts are drawn, neighbours differ in lightness. Parts that are zero
are left out, so any two parts may become neighbours: any two differ in lightness, or one of them is hatched.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """The style of a part of a stack: its label, its colour, and the colour of its hatch, None without one."""

    label: str
    colour: str
    hatch: str | None = None


@dataclass(frozen=True)
class Stack:
    """The parts of a total by column, the lowest first; `share` labels an axis of shares of the total."""

    total: str
    share: str | None  # None if the parts are never drawn as shares
    parts: dict[str, Part]


# Communication is hatched.
_TIME = {
    "compute_s": Part("compute", "#142a5c"),
    "memory_s": Part("memory access", "#4f8cc9"),
    "tp_comm_s": Part("TP communication", "#a63a17", "#c8785c"),
    "cp_comm_s": Part("CP communication", "#ee9c45", "#f8cc98"),
    "ep_comm_s": Part("EP communication", "#551a4b", "#8a5a80"),
    "pp_comm_s": Part("PP communication", "#e6c4dc", "#cf9cbd"),
    "dp_comm_s": Part("DP communication", "#4f996a", "#86bd9b"),
    "bubble_s": Part("pipeline bubble", "#e2e2e2"),
    "recompute_s": Part("recompute", "#d4b060"),
    "optimizer_s": Part("optimizer", "#555555"),
}

_MEMORY = {
    "weight_bytes": Part("weights", "#142a5c"),
    "gradient_bytes": Part("gradients", "#4f8cc9"),
    "optimizer_bytes": Part("optimizer state", "#555555"),
    "activation_bytes": Part("activations", "#f5b15c"),
    "overhead_bytes": Part("overhead", "#e6e6e6"),
}

STACKS = {
    "time": Stack("step_time_s", "share of the step [%]", _TIME),
    "memory": Stack("peak_bytes", None, _MEMORY),
}
