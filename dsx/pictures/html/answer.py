"""The answer of a report: its question, its plans, how far measurements back them, and a plan term by term.

The plans are those of each role (`dsx.results.ranked_by`), side by side, each with what a person decides by; all are of
one job on one machine, the best plan's. The first is taken apart: what its step time and its memory are made of, where
it runs, its stages and its kernels. Beside them stands the best plan of each setting of the sweep.

HTML is made of elements with escaped text. Names of models, strategies and files may hold anything, so plain text never
becomes markup: only what these functions return does.
"""

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from dsx.cost.context import StepCosts
from dsx.cost.interval import sources_like
from dsx.errors import InputError
from dsx.files import install_text
from dsx.pictures.breakdown import STACKS
from dsx.pictures.html.ranked_rows import RankedRows, ranked
from dsx.pictures.shown_rows import fastest
from dsx.plans.choices import BY_NAME, CODES
from dsx.plans.experts import Truth
from dsx.plans.features import READ, is_uneven, of_choices, of_keys, total_cost
from dsx.plans.layer_layout import LAYOUT, listed
from dsx.pricing.one_plan import PricedPlan, operator_costs
from dsx.pricing.problem import Problem
from dsx.records import columns
from dsx.results import ranked_by
from dsx.results.manifest import Manifest
from dsx.results.ranked_by import COST, DAYS, FASTEST, LEANEST, SIMPLEST, Priced
from dsx.tables.format import (
    hardware_text,
    kept_text,
    only_text,
    quantity,
    share,
    shares,
    steps_text,
    what_if_values,
    whole_plan_text,
)
from dsx.tables.plans import SHARES, extrapolated_text, fitting, placement_text, taken_text
from dsx.tables.terms import stages_text
from dsx.text import DataFrame, printable
from dsx.units import counted, format_quantity

if TYPE_CHECKING:
    import pandas as pd


def check_plotly() -> None:
    """Raise InputError if plotly is not installed; a report checks it before it reads anything."""
    if find_spec("plotly") is None:
        raise InputError(f"a report needs plotly, which is not installed: {install_text('[report]')}")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable[str]  # text, or several; plain text is escaped


def markup(*children: Child) -> Markup:
    """Return children one after the other, plain text escaped and control characters written out."""
    return Markup("".join(_part(child) for child in children))


def _part(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(printable(child, keep="\n"))
    return "".join(map(_part, child))


def element(tag: str, *children: Child, **attributes: str | bool | None) -> Markup:
    """Return an element; `class_` is the attribute class, `aria_label` aria-label, and None or False no attribute."""
    written = [
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    ]
    return Markup(f"<{tag}{''.join(written)}>{markup(*children)}</{tag}>")


def section(identity: str, title: str, *children: Child) -> Markup:
    """Return a section of the page with its heading, which names it for readers of screens."""
    heading = element("h2", title, id=f"{identity}-title")
    return element("section", heading, *children, id=identity, aria_labelledby=f"{identity}-title")


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], caption: str, numbers: bool = True, prose: bool = True
) -> Markup:
    """Return a table whose first column heads its rows; `numbers` align right, a last column of `prose` left."""
    last = len(header) - 1
    side = [None, *("number" if numbers else None for _ in range(last - 1)), "prose" if prose else "number"]
    head = [element("th", title, scope="col", class_=side[at]) for at, title in enumerate(header)]
    body: list[Markup] = []
    for row in rows:
        cells = [element("td", cell, class_=side[at]) for at, cell in enumerate(row[1:], 1)]
        body.append(element("tr", element("th", row[0], scope="row"), cells))
    parts = element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)
    return element("div", element("table", *parts), class_="scroll", tabindex="0", role="region", aria_label=caption)


def described(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return terms with what they stand for as a list of descriptions; a pair without text has no entry."""
    return element("dl", [element("div", element("dt", term), element("dd", text)) for term, text in pairs if text])


def folded(summary: str, *children: Child) -> Markup:
    """Return what a reader opens by its summary."""
    return element("details", element("summary", summary), *children)


def data_block(identity: str, data: object) -> Markup:
    """Return plain data as JSON that scripts of the page read; nothing in it can end the block."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(f'<script type="application/json" id="{html.escape(identity)}">{safe}</script>')


_BLOCK = 1 << 17  # rows whose costs are found at once, which takes many columns of wide numbers
_MEANS = {
    "chosen": "the plan that this report was asked for",
    FASTEST: "the shortest step on these GPUs with this batch",
    SIMPLEST: "the least to set up and to run, of plans that measurements do not distinguish from the fastest",
    LEANEST: "the least memory, of plans that measurements do not distinguish from the fastest",
}
_MOST_SETTINGS = 60
_MOST_KERNELS = 12
_COMM = ("tp_comm_s", "cp_comm_s", "ep_comm_s")


def question_text(manifest: Manifest) -> str:
    """Return "Which plan trains MODEL (70.6 billion parameters) fastest on 512 GPUs of CLUSTER, with ...?"."""
    sweep, count = manifest.sweep, manifest.spec["resolved"]["model"].get("parameters")
    billions = f"{count / 1e12:.3g} trillion" if count and count >= 1e12 else f"{(count or 0) / 1e9:.3g} billion"
    size = f" ({billions} parameters)" if count else ""
    gpus = " to ".join(f"{number:,}" for number in dict.fromkeys((sweep.num_gpus[0], sweep.num_gpus[-1])))
    clusters = " or ".join(cluster.label for cluster in sweep.resolved.clusters)
    step = steps_text(sweep.global_batch_size, sweep.tokens)
    single = len(sweep.num_gpus) == 1 and len(sweep.global_batch_size) == 1
    how = "fastest" if single else "with the most tokens a second and GPU"
    return printable(
        f"Which plan trains {sweep.resolved.model.name}{size} {how} on {gpus} GPUs of {clusters}, with {step}?"
    )


def searched_pairs(manifest: Manifest) -> list[tuple[str, str]]:
    """Return what the sweep searched, by name: strategies, restrictions, what-ifs, and the rows that it kept."""
    sweep, spec = manifest.sweep, manifest.spec
    framework = spec["resolved"].get("framework")
    limits = {
        name: [bounds] if isinstance(bounds, str) else [*map(str, bounds)]
        for name, bounds in (spec.get("limit") or {}).items()
    }
    return [
        ("strategies", ", ".join(manifest.names["strategy"])),
        ("framework", str(framework.get("name", "")) if isinstance(framework, dict) else str(framework or "")),
        ("restricted to", only_text(sweep.fix, limits)),
        *(
            (name, ", ".join(hardware_text(name, value) for value in values))
            for name, values in what_if_values(manifest).items()
        ),
        ("stages", "the optimal cut of each plan" if sweep.partition == "optimal" else "even"),
        ("rows kept", kept_text(manifest)),
        ("training", counted(round(sweep.train_tokens), "token") if sweep.train_tokens else ""),
    ]


@dataclass(frozen=True)
class Named:
    """A plan with what it is the best at; one plan may be several."""

    titles: tuple[str, ...]
    row: "pd.Series"  # of the set, with all columns
    priced: Priced  # the same as plain data, as `as_plans` gives it

    @property
    def title(self) -> str:
        """What the plan is the best at, in words."""
        return ", ".join(self.titles)


def answer(rows: RankedRows, resolution: float | None, candidate: "pd.Series | None" = None) -> list[Named]:
    """Return the fastest plan, the simplest and the leanest; empty if no row is feasible.

    `resolution` is the relative difference of step time that measurements cannot rank; without one only equally fast
    plans count as about as fast. `candidate` is a row of `rows.every` to explain in place of the fastest plan; the
    others are then of its job.
    """
    feasible = rows.feasible
    if candidate is None and feasible.empty:
        return []
    first = ranked(feasible, 1).iloc[0] if candidate is None else candidate
    plans: dict[str, pd.Series] = {} if candidate is None else {"chosen": candidate}
    job = rows.alike(first, rows.settings)
    if len(job):
        wants = ranked_by.wanted_by_role(float(job["step_time_s"].to_numpy().min()), resolution)
        best = [_best(job.loc[(job["step_time_s"] <= want.most_s).to_numpy()], want.simple) for want in wants]
        plans |= ranked_by.by_role(best, [int(_costs_of(row.to_frame().T)[0]) for row in best])
    titles: dict[object, list[str]] = {}
    for title, row in plans.items():
        titles.setdefault(row.name, []).append(title)
    loaded = rows.whole(rows.every.loc[[*titles]])
    return [
        Named(tuple(names), loaded.iloc[at], priced)
        for at, (names, priced) in enumerate(zip(titles.values(), rows.plans(loaded), strict=True))
    ]


def _costs_of(rows: DataFrame) -> np.ndarray:
    """Return what the features of each row cost, [N] int64."""
    codes = {name: (rows[name].map(BY_NAME[name].code) if name in CODES else rows[name]) for name in READ}
    choices = {name: column.to_numpy(np.int64) for name, column in codes.items()}
    uneven: Truth = False
    if LAYOUT in rows:
        uneven = rows[LAYOUT].map(cache(lambda layout: is_uneven(listed(layout)))).to_numpy(bool)
    return total_cost(of_keys(choices), of_choices(choices, uneven))


def _best(near: DataFrame, simple: bool) -> "pd.Series":
    """Return the row of least memory, or with `simple`, of those of least cost; of equal ones the fastest."""
    times, sizes = near["step_time_s"].to_numpy(), near["peak_bytes"].to_numpy()
    # lexsort sorts by its last key first.
    blocks = [near.iloc[at : at + _BLOCK] for at in range(0, len(near), _BLOCK)]
    keys = (times, sizes, *([np.concatenate([_costs_of(block) for block in blocks])] if simple else []))
    return near.iloc[np.lexsort(keys)[0]]


def plan_card(named: Named, problem: Problem | None) -> Markup:
    """Return the card of a plan; with its problem also the probability that it fits."""
    priced, plan = named.priced, named.priced["plan"]
    low, high = (quantity(name, priced[name]) for name in ("step_time_s_low", "step_time_s_high"))
    parts = shares([sum(priced[name] for name in names) for names in SHARES.values()], priced["step_time_s"])
    # A share does not break before its sign.
    spent = [(name, part.replace(" ", "\u00a0")) for name, part in zip(SHARES, parts, strict=True)]
    run = {"training": "training_days", "cost": "cost_usd", "energy": "energy_kwh"}
    hardware = [f"{name} {hardware_text(name, value)}" for name, value in priced["hardware"].items() if "." in name]
    memory, nodes = format_quantity(priced["peak_bytes"], "bytes"), ""
    if problem is not None:
        capacity = problem.cluster.device.hbm_capacity
        chances = fitting([priced], capacity, problem.assumptions_spec)
        chance = f", fits with probability {share(chances[0], 1)}" if chances else ""
        memory += f", {share(priced['peak_bytes'], capacity, 0)} of a GPU{chance}"
        nodes = taken_text(plan, problem.cluster, problem.assumptions_spec)
    return element(
        "article",
        element("h3", named.title[0].upper() + named.title[1:]),
        element("p", "; ".join(_MEANS[title] for title in named.titles), class_="small"),
        element("p", f"{plan['strategy']}: {whole_plan_text(plan)}", class_="plan"),
        described(
            [
                ("step", format_quantity(priced["step_time_s"], "s")),
                ("80 % interval", "" if math.isnan(priced["step_time_s_low"]) else f"{low} to {high}"),
                ("tokens/s/GPU", f"{priced['tokens_per_s_per_gpu']:,.0f}"),
                ("MFU", quantity("mfu", priced["mfu"])),
                ("memory", memory),
                ("nodes", nodes),
                ("time in", ", ".join(f"{name} {part}" for name, part in spent if part[0] != "0")),
                *(
                    (name, "" if math.isnan(priced[column]) else quantity(column, priced[column]))
                    for name, column in run.items()
                ),
                ("job", f"{counted(plan['num_gpus'], 'GPU')}, {counted(plan['global_batch_size'], 'sequence')} a step"),
                ("cluster", str(priced["hardware"]["cluster"])),
                ("machine", ", ".join(hardware)),
                ("candidate", str(plan["candidate"])),
                ("rejected", ", ".join(priced["reject"])),
            ]
        ),
    )


def setting_table(rows: RankedRows) -> Markup:
    """Return the best plan of each setting of the sweep that varies, with days and costs where they are known."""
    if not rows.varied:
        return markup()
    best = fastest(rows.feasible, rows.varied)
    plans = rows.plans(rows.whole(best.iloc[:_MOST_SETTINGS]))
    run: dict[str, str] = {}
    if any(math.isfinite(priced[DAYS]) for priced in plans):
        paid = ranked_by.price_column(plans)
        run = {"training": DAYS, "cost" if paid == COST else "GPU hours": paid}
    lines: list[list[str]] = []
    for priced in plans:
        of_job = ", ".join(_setting(name, priced) for name in rows.varied)
        speed = [format_quantity(priced["step_time_s"], "s"), f"{priced['tokens_per_s_per_gpu']:,.0f}"]
        costs = [quantity("mfu", priced["mfu"]), format_quantity(priced["peak_bytes"], "bytes")]
        costs += [quantity(column, priced[column]) for column in run.values()]
        lines.append([of_job, *speed, *costs, priced["plan"]["strategy"], whole_plan_text(priced["plan"])])
    header = [", ".join(rows.varied), "step", "tokens/s/GPU", "MFU", "memory", *run, "strategy", "plan"]
    more = f" The first {_MOST_SETTINGS} of {len(best):,} settings are shown." if len(best) > _MOST_SETTINGS else ""
    return markup(table(header, lines, "The best plan of each setting"), element("p", more) if more else "")


def _setting(name: str, priced: Priced) -> str:
    value = priced["hardware"][name] if name in priced["hardware"] else priced["plan"][name]
    return hardware_text(name, value) if "." in name else f"{value:,}" if isinstance(value, int) else str(value)


def evidence(problem: Problem, first: Named, remarks: Sequence[str]) -> Markup:
    """Return what is known of the errors of the first plan's numbers, one sentence an item, then `remarks`."""
    assumptions, like, priced = problem.assumptions_spec, problem.likeness, first.priced
    source = "its numbers follow from data sheets and stated efficiencies alone"
    unfitted = f"Assumption set {assumptions.name} has not been fitted to measurements: {source}."
    fitted = f"Assumption set {assumptions.name}: {assumptions.source}."
    sentences = [fitted if assumptions.calibrated else unfitted]
    if assumptions.calibrated and assumptions.resolution is not None:
        least = f"{100 * assumptions.resolution:.2g} %"
        sentences.append(f"Measurements cannot rank two plans of one job whose step times differ by less than {least}.")
    if math.isnan(priced["step_time_s_low"]):
        sentences.append("The assumption set states no errors, so step times have no interval.")
    else:
        ends = " to ".join(quantity(name, priced[name]) for name in ("step_time_s_low", "step_time_s_high"))
        sentences.append(f"In 80 % of measured runs like it, the step of the {first.title} plan would take {ends}.")
    trained_on = assumptions.trained_on
    is_fitted = any(trained_on.model_dump().values())
    if is_fitted and (text := extrapolated_text(like, trained_on)):
        sentences.append(f"{text[0].upper()}{text[1:]}.")
    elif is_fitted:
        words = {
            "stack": f"the software stack {like.stack}",
            "generation": f"devices of the family {like.generation}",
            "kind": "models with experts" if like.kind == "experts" else "dense models",
        }
        counts = sources_like(like, trained_on)
        backed = ", ".join(f"{words[part]} ({counted(count, 'source')})" for part, count in counts.items())
        sentences.append(f"Not extrapolated: the measurements have {backed}.")
    capacity = problem.cluster.device.hbm_capacity
    chances = fitting([priced], capacity, assumptions)
    used = f"The {first.title} plan needs {share(priced['peak_bytes'], capacity, 1)} of the memory of a GPU"
    sentences.append(f"{used}, and fits with a probability of {share(chances[0], 1)}." if chances else f"{used}.")
    return element("ul", *(element("li", sentence) for sentence in (*sentences, *remarks)))


def terms(named: Sequence[Named]) -> Markup:
    """Return the parts of the step and of the memory of the first plan, beside those of the others."""
    first, further = named[0].priced, named[1:]
    about = columns(StepCosts)
    tables: list[Markup] = []
    for of, title in (("time", "Time of a step"), ("memory", "Memory of the fullest GPU")):
        parts, total = STACKS[of].parts, STACKS[of].total
        rows = [
            [
                parts[name].label if name in parts else "total",
                quantity(name, first[name]),
                share(first[name], first[total], 1),
                *(quantity(name, plan.priced[name]) for plan in further),
                about[name][1],
            ]
            for name in (*parts, total)
            if name == total or any(plan.priced[name] for plan in named)
        ]
        header = ["", named[0].title, "share", *(plan.title for plan in further), "what it is"]
        tables.append(table(header, rows, title))
    return markup(tables)


def choices(plan: Mapping[str, object]) -> Markup:
    """Return every choice of a plan with its meaning; those at their defaults are folded."""
    rows = [
        [name, str(plan[name]), choice.description]
        for name, choice in BY_NAME.items()
        if name in plan and (choice.level == "job" or plan[name] != choice.default)
    ]
    default = [f"{name}={plan[name]}" for name in BY_NAME if name in plan and plan[name] == BY_NAME[name].default]
    defaults = element("p", f"At their defaults: {' '.join(default)}.", class_="small") if default else ""
    return markup(table(["choice", "value", "what it is"], rows, "Choices of the plan", numbers=False), defaults)


def priced_details(problem: Problem, priced: PricedPlan) -> Markup:
    """Return where a plan is placed, its stages if they are uneven, and its most expensive kernels."""
    texts = {
        "Placement": placement_text(priced.plan, problem),
        "Stages": stages_text(priced.plan, priced.stages) if priced.stages else "",
    }
    shown = [folded(title, element("pre", text, tabindex="0")) for title, text in texts.items() if text]
    passes: list[tuple[float, list[str]]] = []
    for kernel in operator_costs(problem, priced.plan):
        for direction in ("forward", "backward"):
            part = kernel[direction]
            comm = sum(part[name] for name in _COMM)
            spent = part["compute_s"] + part["memory_s"] + comm
            seconds = [format_quantity(value, "s") for value in (part["compute_s"], part["memory_s"], comm)]
            work = [f"{part['matrix_flops'] + part['vector_flops']:.3g}", format_quantity(part["bytes"], "bytes")]
            passes.append((spent, [f"{kernel['name']}, {direction}", *work, *seconds]))
    passes.sort(key=lambda work: -work[0])
    layer_s = sum(spent for spent, _ in passes)
    rows = [[*row, share(spent, layer_s, 1)] for spent, row in passes[:_MOST_KERNELS]]
    header = ["kernel", "FLOP", "HBM traffic", "compute", "memory, exposed", "communication", "share of the layer"]
    caption = f"Kernels of one layer for one microbatch: {len(rows)} of {len(passes)}, the longest first"
    return markup(shown, folded("Kernels of a layer", table(header, rows, caption, prose=False)))
