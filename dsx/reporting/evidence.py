"""How far measurements back the numbers: known errors, what is extrapolated, and how surely plans fit."""

from collections.abc import Sequence

from dsx.cost.interval import sources_like
from dsx.display.extrapolation import extrapolated_text
from dsx.display.memory_text import fitting
from dsx.display.quantities import quantity, share
from dsx.pricing.problem import Problem
from dsx.reporting.answer import Named
from dsx.reporting.markup import Markup, element, markup
from dsx.units import counted


def evidence(problem: Problem, named: Sequence[Named], remarks: Sequence[str]) -> Markup:
    """Return what is known of the errors of the first plan's numbers, one sentence an item.

    `remarks` are those on the device (`dsx.api.device_remarks`).
    """
    sentences = [*_errors(problem), *_interval(named[0]), *_extrapolated(problem), *_memory(problem, named[0])]
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


def _memory(problem: Problem, first: Named) -> list[str]:
    capacity, assumptions = problem.cluster.device.hbm_capacity, problem.assumptions_spec
    used = f"The {first.title} plan needs {share(first.priced['peak_bytes'], capacity, 1)} of the memory of a GPU"
    known = fitting([first.priced], capacity, assumptions)
    return [f"{used}, and fits with a probability of {share(known[0], 1)}." if known else f"{used}."]


def unpriced(reason: str) -> Markup:
    """Return what to say where the plan cannot be priced again."""
    return markup(element("p", f"The terms below the totals are left out: {reason}", class_="remark"))
