"""The answer of a report: its question, its plans, how far measurements back them, and a plan term by term.

The question that a result set answers, in a sentence, and what was searched for the answer.

The answer of a result set: its plans by role (`dsx.results.compare`).

All three are of one job on one machine, that of the best plan.

The plans of the answer, side by side, each with what a person decides by.

How far measurements back the numbers: known errors, what is extrapolated, and how surely plans fit.

A plan term by term: what its step time and its memory are made of, where it runs, its stages and its kernels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.cost.context import StepCosts
from dsx.cost.interval import sources_like
from dsx.pictures.breakdown import STACKS
from dsx.pictures.html.markup import Markup, described, element, folded, markup, table
from dsx.pictures.html.tables import RankedRows, ranked
from dsx.plans.choices import BY_NAME, CODES
from dsx.plans.features import READ, of_choices, of_keys, total_cost, uneven_of
from dsx.plans.layer_layout import LAYOUT
from dsx.pricing.one_plan import PricedPlan, operator_costs
from dsx.pricing.problem import Problem
from dsx.records import columns
from dsx.results.manifest import Manifest
from dsx.results.ranked_by import FASTEST, LEANEST, SIMPLEST, by_role, wanted_by_role
from dsx.tables.format import hardware_text, quantity, share, shares, whole_plan_text
from dsx.tables.job import kept_text, only_text, steps_text, title_of, what_if_values
from dsx.tables.plans import SHARES, extrapolated_text, fitting, placement_text, taken_text
from dsx.tables.terms import stages_text
from dsx.text import printable
from dsx.units import counted, format_quantity

if TYPE_CHECKING:
    import pandas as pd


def question_text(manifest: Manifest) -> str:
    """Return "Which plan trains MODEL (70.6 billion parameters) fastest on 512 GPUs of CLUSTER, with ...?"."""
    sweep, resolved = manifest.sweep, manifest.spec["resolved"]
    parameters = resolved["model"].get("parameters")
    size = f" ({_billions(parameters)} parameters)" if parameters else ""
    gpus = _range([f"{number:,}" for number in sweep.num_gpus])
    clusters = " or ".join(cluster.label for cluster in sweep.resolved.clusters)
    step = steps_text(sweep.global_batch_size, sweep.tokens)
    single = len(sweep.num_gpus) == 1 and len(sweep.global_batch_size) == 1
    how = "fastest" if single else "with the most tokens a second and GPU"
    return printable(
        f"Which plan trains {sweep.resolved.model.name}{size} {how} on {gpus} GPUs of {clusters}, with {step}?"
    )


def heading_text(manifest: Manifest) -> str:
    """Return the title of the page."""
    return title_of(manifest)


def searched_pairs(manifest: Manifest) -> list[tuple[str, str]]:
    """Return what the sweep searched, by name: strategies, restrictions, what-ifs, and the rows that it kept."""
    sweep, spec = manifest.sweep, manifest.spec
    framework = spec["resolved"].get("framework")
    varied = [
        (name, ", ".join(hardware_text(name, value) for value in values))
        for name, values in what_if_values(manifest).items()
    ]
    return [
        ("strategies", ", ".join(manifest.names["strategy"])),
        ("framework", str(framework.get("name", "")) if isinstance(framework, dict) else str(framework or "")),
        ("restricted to", only_text(sweep.fix, _limits(spec.get("limit") or {}))),
        *varied,
        ("stages", "the optimal cut of each plan" if sweep.partition == "optimal" else "even"),
        ("rows kept", kept_text(manifest)),
        ("training", f"{counted(round(sweep.train_tokens), 'token')}" if sweep.train_tokens else ""),
    ]


def _limits(limit: dict[str, Any]) -> dict[str, Sequence[str]]:
    return {name: [bounds] if isinstance(bounds, str) else [*map(str, bounds)] for name, bounds in limit.items()}


def _range(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _billions(count: float) -> str:
    return f"{count / 1e12:.3g} trillion" if count >= 1e12 else f"{count / 1e9:.3g} billion"


_BLOCK = 1 << 17  # rows whose costs are found at once, which takes many columns of wide numbers


@dataclass(frozen=True)
class Named:
    """A plan with what it is the best at; one plan may be several."""

    titles: tuple[str, ...]
    row: Any  # of the set, a Series with all columns
    priced: Mapping[str, Any]  # the same as plain data, as `as_plans` gives it

    @property
    def title(self) -> str:
        """What the plan is the best at, in words."""
        return ", ".join(self.titles)


def answer(rows: RankedRows, resolution: float | None, candidate: Any = None) -> list[Named]:
    """Return the fastest plan, the simplest and the leanest; empty if no row is feasible.

    `resolution` is the relative difference of step time that measurements cannot rank; without one only equally fast
    plans count as about as fast. `candidate` is a row of `rows.every` to explain in place of the fastest plan; the
    others are then of its job.
    """
    feasible = rows.feasible
    if candidate is None and feasible.empty:
        return []
    first = ranked(feasible, 1).iloc[0] if candidate is None else candidate
    found: dict[str, Any] = {} if candidate is None else {"chosen": candidate}
    job = rows.alike(first, rows.settings)
    if len(job):
        wants = wanted_by_role(float(job["step_time_s"].to_numpy().min()), resolution)
        best = [_best(job.loc[(job["step_time_s"] <= want.most_s).to_numpy()], want.simple) for want in wants]
        found |= by_role(best, [int(costs_of(row.to_frame().T)[0]) for row in best])
    titles: dict[Any, list[str]] = {}
    for title, row in found.items():
        titles.setdefault(row.name, []).append(title)
    whole = rows.whole(rows.every.loc[[*titles]])
    plans = rows.plans(whole)
    return [
        Named(tuple(of), whole.iloc[at], priced)
        for at, (of, priced) in enumerate(zip(titles.values(), plans, strict=True))
    ]


def costs_of(rows: "pd.DataFrame") -> Any:
    """Return what the features of each row cost, [N] int64."""
    codes = {name: (rows[name].map(BY_NAME[name].code) if name in CODES else rows[name]) for name in READ}
    columns = {name: column.to_numpy(np.int64) for name, column in codes.items()}
    uneven = uneven_of(rows[LAYOUT].tolist()) if LAYOUT in rows else False
    return total_cost(of_keys(columns), of_choices(columns, uneven))


def _best(near: "pd.DataFrame", simple: bool) -> Any:
    """Return the row of least memory, or with `simple`, of those of least cost; of equal ones the fastest."""
    times, sizes = near["step_time_s"].to_numpy(), near["peak_bytes"].to_numpy()
    # lexsort sorts by its last key first.
    blocks = [near.iloc[at : at + _BLOCK] for at in range(0, len(near), _BLOCK)]
    keys = (times, sizes, *([np.concatenate([costs_of(block) for block in blocks])] if simple else []))
    return near.iloc[np.lexsort(keys)[0]]


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
                ("memory", _memory_of_card(priced, problem)),
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


def _memory_of_card(priced: Any, problem: Problem | None) -> str:
    needed = format_quantity(priced["peak_bytes"], "bytes")
    if problem is None:
        return needed
    capacity = problem.cluster.device.hbm_capacity
    known = fitting([priced], capacity, problem.assumptions_spec)
    chance = f", fits with probability {share(known[0], 1)}" if known else ""
    return f"{needed}, {share(priced['peak_bytes'], capacity, 0)} of a GPU{chance}"


def evidence(problem: Problem, named: Sequence[Named], remarks: Sequence[str]) -> Markup:
    """Return what is known of the errors of the first plan's numbers, one sentence an item.

    `remarks` are those on the device (`dsx.verbs.job`).
    """
    sentences = [*_errors(problem), *_interval(named[0]), *_extrapolated(problem), *_memory_evidence(problem, named[0])]
    return element("ul", *(element("li", sentence) for sentence in (*sentences, *remarks)))


def _errors(problem: Problem) -> list[str]:
    assumptions = problem.assumptions_spec
    if not assumptions.calibrated:
        return [
            f"Assumption set {assumptions.name} has not been fitted to measurements: its numbers follow from data "
            "sheets and stated efficiencies alone."
        ]
    said = [f"Assumption set {assumptions.name}: {assumptions.source}."]
    if assumptions.resolution is not None:
        said.append(
            f"Measurements cannot rank two plans of one job whose step times differ by less than "
            f"{100 * assumptions.resolution:.2g} %."
        )
    return said


def _interval(first: Named) -> list[str]:
    low, high = first.priced["step_time_s_low"], first.priced["step_time_s_high"]
    if low != low:
        return ["The assumption set states no errors, so step times have no interval."]
    ends = f"{quantity('step_time_s_low', low)} to {quantity('step_time_s_high', high)}"
    return [f"In 80 % of measured runs like it, the step of the {first.title} plan would take {ends}."]


def _extrapolated(problem: Problem) -> list[str]:
    trained_on = problem.assumptions_spec.trained_on
    if not any(trained_on.model_dump().values()):
        return []
    if said := extrapolated_text(problem.likeness, trained_on):
        return [f"{said[0].upper()}{said[1:]}."]
    counts = sources_like(problem.likeness, trained_on)
    words = {
        "stack": f"the software stack {problem.likeness.stack}",
        "generation": f"devices of the family {problem.likeness.generation}",
        "kind": "models with experts" if problem.likeness.kind == "experts" else "dense models",
    }
    backed = ", ".join(f"{words[part]} ({counted(count, 'source')})" for part, count in counts.items())
    return [f"Not extrapolated: the measurements have {backed}."]


def _memory_evidence(problem: Problem, first: Named) -> list[str]:
    capacity, assumptions = problem.cluster.device.hbm_capacity, problem.assumptions_spec
    used = f"The {first.title} plan needs {share(first.priced['peak_bytes'], capacity, 1)} of the memory of a GPU"
    known = fitting([first.priced], capacity, assumptions)
    return [f"{used}, and fits with a probability of {share(known[0], 1)}." if known else f"{used}."]


def unpriced(reason: str) -> Markup:
    """Return what to say where the plan cannot be priced again."""
    return markup(element("p", f"The terms below the totals are left out: {reason}", class_="remark"))


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


def priced_details(problem: Problem, priced: PricedPlan) -> Markup:
    """Return where a plan is placed, its stages if they are uneven, and its most expensive kernels."""
    texts = {
        "Placement": placement_text(priced.plan, problem),
        "Stages": stages_text(priced.plan, priced.stages) if priced.stages else "",
    }
    shown = [folded(title, element("pre", text, tabindex="0")) for title, text in texts.items() if text]
    return markup(shown, _kernels(problem, priced))


def _kernels(problem: Problem, priced: PricedPlan) -> Markup:
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
