"""The losses of plans as Markdown: by model, by cluster, and the largest cases."""

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from sections import table

from gains.plans import PARTS, Case, Plan

WAYS = {"flat": "network-agnostic, flat", "free": "network-agnostic, free", "even": "even", "recut": "same plan, even"}
_SHOWN = ("tp", "tp2", "cp", "ep", "pp", "dp", "microbatch_size")
_SHOWN_FROM = 0.001
_MENTIONED = 0.02  # of the step: smaller parts are not named as the cause of a loss


def summary(cases: Sequence[Case]) -> str:
    """Return the losses over all cases, by model and by cluster; medians, and in brackets the largest."""
    priced = [case for case in cases if case.aware]
    models = dict.fromkeys(case.model for case in cases)
    clusters = dict.fromkeys(case.cluster for case in cases)
    heads = [f"{title}, %" for title in WAYS.values()]
    by_model = []
    for name in models:
        own = [case for case in priced if case.model == name]
        gpus = next(case.num_gpus for case in cases if case.model == name)
        by_model.append((name, f"{gpus:,}", str(len(own)), *_cells(own)))
    by_cluster = []
    for name in clusters:
        own = [case for case in priced if case.cluster == name]
        by_cluster.append((name, str(len(own)), *_cells(own)))
    return "\n".join(
        [
            table(("cluster", "models", *heads), [*by_cluster, ("**all**", str(len(priced)), *_cells(priced))], 5),
            table(("model", "GPUs", "clusters", *heads), by_model, 6),
            _missing(cases),
        ]
    )


def largest(cases: Sequence[Case], way: str) -> str:
    """Return the case of each cluster with the largest loss of a way: both plans, and the parts that differ."""
    found: dict[str, Case] = {}
    for case in sorted(cases, key=lambda case: -(case.loss(way) or 0.0)):
        if (case.loss(way) or 0.0) > _SHOWN_FROM:
            found.setdefault(case.cluster, case)
    rows = []
    for case in found.values():
        plan, aware = getattr(case, way), case.aware
        assert aware is not None
        where = f"{case.model} on {case.cluster}"
        rows.append((where, _percent(case.loss(way)), _text(plan), _text(aware), _why(plan, aware)))
    head = ("case", "%", WAYS[way], "optimal", "what takes longer (+) and shorter (-), %")
    return table(head, rows)


def _text(plan: Plan) -> str:
    """Return the degrees above 1, and the layers of each stage."""
    degrees = [f"{name}={plan.degrees[name]}" for name in _SHOWN if plan.degrees[name] != 1]
    return f"{' '.join(degrees)}; {_stages(plan.stage_layers)}"


def _stages(stage_layers: Sequence[int]) -> str:
    """Return the layers of stages, with equal neighbours merged: 1, 31 x 2."""
    blocks = [(size, len(list(equal))) for size, equal in groupby(stage_layers)]
    listed = ", ".join(f"{count} x {size}" if count > 1 else f"{size}" for size, count in blocks)
    return f"stages {listed}" if blocks else "even"


def _why(plan: Plan, aware: Plan) -> str:
    """Return the parts of a step that are longer and shorter, in percent of the optimal step."""
    shares = {title: (plan.costs[name] - aware.costs[name]) / aware.step_s for name, title in PARTS.items()}
    mentioned = sorted((share, title) for title, share in shares.items() if abs(share) > _MENTIONED)
    return ", ".join(f"{title} {100 * share:+.0f}" for share, title in reversed(mentioned))


def _cells(cases: Sequence[Case]) -> list[str]:
    return [_cell([loss for case in cases if (loss := case.loss(way)) is not None], len(cases)) for way in WAYS]


def _cell(losses: Sequence[float], count: int) -> str:
    if not losses:
        return "none"
    text = f"{_percent(median(losses))} ({_percent(max(losses))})"
    return text if len(losses) == count else f"{text} of {len(losses)}"


def _percent(share: float | None) -> str:
    number = 100 * max(share or 0.0, 0.0)  # below zero is rounding
    return f"{number:.1f}" if number < 99.95 else f"{number:,.0f}"


def _missing(cases: Sequence[Case]) -> str:
    """Return the cases without any plan that fits."""
    none: dict[str, list[str]] = {}
    for case in cases:
        if case.aware is None:
            none.setdefault(case.cluster, []).append(case.model)
    texts = [f"{cluster}: {', '.join(models)}" for cluster, models in none.items()]
    return f"No plan fits into memory on {'; '.join(texts)}.\n" if texts else "All cases have a plan.\n"
