"""The plans of the answer, side by side, each with what a person decides by."""

from collections.abc import Sequence
from typing import Any

from dsx.display.memory_text import fitting
from dsx.display.placement import taken_text
from dsx.display.plan_table import SHARES
from dsx.display.quantities import hardware_text, quantity, share, shares, whole_plan_text
from dsx.pricing.problem import Problem
from dsx.reporting.answer import Named
from dsx.reporting.markup import Markup, described, element
from dsx.results.roles import FASTEST, LEANEST, SIMPLEST
from dsx.units import counted, format_quantity

_MEANS = {
    "chosen": "the plan that this report was asked for",
    FASTEST: "the shortest step on these GPUs with this batch",
    SIMPLEST: "the least to set up and to run, of plans that measurements do not distinguish from the fastest",
    LEANEST: "the least memory, of plans that measurements do not distinguish from the fastest",
}


def plan_cards(named: Sequence[Named], problem: Problem | None) -> Markup:
    """Return a card for each plan; with its problem also the probability that it fits."""
    return element("div", *(_card(one, problem) for one in named), class_="cards")


def _card(one: Named, problem: Problem | None) -> Markup:
    priced = one.priced
    plan = priced["plan"]
    means = "; ".join(_MEANS[title] for title in one.titles)
    low, high = priced["step_time_s_low"], priced["step_time_s_high"]
    ends = [quantity(name, end) for name, end in (("step_time_s_low", low), ("step_time_s_high", high))]
    parts = shares([sum(priced[name] for name in names) for names in SHARES.values()], priced["step_time_s"])
    # A share does not break before its sign.
    spent = [(name, part.replace(" ", "\u00a0")) for name, part in zip(SHARES, parts, strict=True)]
    run = [
        (name, column, priced[column])
        for name, column in (("training", "training_days"), ("cost", "cost_usd"), ("energy", "energy_kwh"))
    ]
    hardware = [f"{name} {hardware_text(name, value)}" for name, value in priced["hardware"].items() if "." in name]
    return element(
        "article",
        element("h3", one.title[0].upper() + one.title[1:]),
        element("p", means, class_="small"),
        element("p", f"{plan['strategy']}: {whole_plan_text(plan)}", class_="plan"),
        described(
            [
                ("step", format_quantity(priced["step_time_s"], "s")),
                ("80 % interval", " to ".join(ends) if low == low else ""),
                ("tokens/s/GPU", f"{priced['tokens_per_s_per_gpu']:,.0f}"),
                ("MFU", quantity("mfu", priced["mfu"])),
                ("memory", _memory(priced, problem)),
                ("nodes", taken_text(plan, problem.cluster, problem.assumptions_spec) if problem else ""),
                ("time in", ", ".join(f"{name} {part}" for name, part in spent if part[0] != "0")),
                *((name, quantity(column, value) if value == value else "") for name, column, value in run),
                ("job", f"{counted(plan['num_gpus'], 'GPU')}, {counted(plan['global_batch_size'], 'sequence')} a step"),
                ("cluster", str(priced["hardware"]["cluster"])),
                ("machine", ", ".join(hardware)),
                ("candidate", str(plan["candidate"])),
                ("rejected", ", ".join(priced["reject"])),
            ]
        ),
    )


def _memory(priced: Any, problem: Problem | None) -> str:
    needed = format_quantity(priced["peak_bytes"], "bytes")
    if problem is None:
        return needed
    capacity = problem.cluster.device.hbm_capacity
    known = fitting([priced], capacity, problem.assumptions_spec)
    chance = f", fits with probability {share(known[0], 1)}" if known else ""
    return f"{needed}, {share(priced['peak_bytes'], capacity, 0)} of a GPU{chance}"
