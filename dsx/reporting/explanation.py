"""A plan term by term: what its step time and its memory are made of, where it runs, its stages and its kernels."""

from collections.abc import Mapping, Sequence
from typing import Any

from dsx.cost.columns import StepCosts
from dsx.display.placement import placement_text
from dsx.display.quantities import quantity, share
from dsx.display.stage_table import stages_text
from dsx.pricing.evaluate import Evaluation, operator_costs
from dsx.pricing.problem import Problem
from dsx.records import columns
from dsx.reporting.answer import Named
from dsx.reporting.markup import Markup, element, folded, markup, table
from dsx.results.plot.stacks import STACKS
from dsx.space.choices import BY_NAME
from dsx.units import format_quantity

_TITLES = {"time": "Time of a step", "memory": "Memory of the fullest GPU"}
_MOST_KERNELS = 12
_COMM = ("tp_comm_s", "cp_comm_s", "ep_comm_s")


def terms(named: Sequence[Named]) -> Markup:
    """Return the parts of the step and of the memory of the first plan, beside those of the others."""
    return markup(_terms(title, *_stack(of), named) for of, title in _TITLES.items())


def _stack(of: str) -> tuple[str, Mapping[str, str]]:
    return STACKS[of].total, {name: part.label for name, part in STACKS[of].parts.items()}


def _terms(title: str, total: str, parts: Mapping[str, str], named: Sequence[Named]) -> Markup:
    first = named[0].priced
    known = columns(StepCosts)
    rows = [
        [
            parts.get(name, "total"),
            quantity(name, first[name]),
            share(first[name], first[total], 1),
            *(quantity(name, other.priced[name]) for other in named[1:]),
            known[name][1],
        ]
        for name in (*parts, total)
        if name == total or any(one.priced[name] for one in named)
    ]
    others = [other.title for other in named[1:]]
    return table(["", named[0].title, "share", *others, "what it is"], rows, title)


def choices(plan: Mapping[str, Any]) -> Markup:
    """Return every choice of a plan with its meaning; those at their defaults are folded."""
    rows = [
        [name, str(plan[name]), choice.description]
        for name, choice in BY_NAME.items()
        if name in plan and (choice.level == "job" or plan[name] != choice.default)
    ]
    default = [f"{name}={plan[name]}" for name in BY_NAME if name in plan and plan[name] == BY_NAME[name].default]
    said = [element("p", f"At their defaults: {' '.join(default)}.", class_="small")] if default else []
    return markup(table(["choice", "value", "what it is"], rows, "Choices of the plan", numbers=False), said)


def priced_details(problem: Problem, priced: Evaluation) -> Markup:
    """Return where a plan is placed, its stages if they are uneven, and its most expensive kernels."""
    texts = {
        "Placement": placement_text(priced.plan, problem),
        "Stages": stages_text(priced.plan, priced.stages) if priced.stages else "",
    }
    shown = [folded(title, element("pre", text, tabindex="0")) for title, text in texts.items() if text]
    return markup(shown, _kernels(problem, priced))


def _kernels(problem: Problem, priced: Evaluation) -> Markup:
    passes: list[tuple[float, list[str]]] = []
    for kernel in operator_costs(problem, priced.plan):
        for direction in ("forward", "backward"):
            part = kernel[direction]
            comm = sum(part[name] for name in _COMM)
            spent = part["compute_s"] + part["memory_s"] + comm
            seconds = [format_quantity(value, "s") for value in (part["compute_s"], part["memory_s"], comm)]
            work = [f"{part['matrix_flops'] + part['vector_flops']:.3g}", format_quantity(part["bytes"], "bytes")]
            passes.append((spent, [f"{kernel['name']}, {direction}", *work, *seconds]))
    passes.sort(key=lambda one: -one[0])
    whole = sum(spent for spent, _ in passes)
    rows = [[*row, share(spent, whole, 1)] for spent, row in passes[:_MOST_KERNELS]]
    header = ["kernel", "FLOP", "HBM traffic", "compute", "memory, exposed", "communication", "share of the layer"]
    caption = f"Kernels of one layer for one microbatch: {len(rows)} of {len(passes)}, the longest first"
    return folded("Kernels of a layer", table(header, rows, caption, prose=False))
