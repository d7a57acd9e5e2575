"""Text of answers: quantities with units, lines, tables, and the job with which every answer begins."""

import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dsx.config.model_file import ALL_WEIGHTS, ModelSpec
from dsx.config.sweep_file import FASTEST, KeepPareto, KeepTop
from dsx.config.what_if import varied_field
from dsx.plans.layer_layout import LAYOUT
from dsx.plans.plan import Plan
from dsx.text import WIDTH as WIDTH
from dsx.text import Data, printable
from dsx.text import wrapped as wrapped
from dsx.units import counted, format_quantity, stated_quantity

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem
    from dsx.results.manifest import Counts, Manifest


def table(header: Sequence[str], rows: Sequence[Sequence[str]], text: Collection[int] = (0,)) -> str:
    """Return aligned columns, one line per row: columns at the positions `text` align left, the others right.

    A title may have several lines. The header is left out if all titles are empty.
    """
    titles = [title.split("\n") for title in header]
    height = max(map(len, titles), default=0) if any(header) else 0
    above = zip(*([""] * (height - len(lines)) + lines for lines in titles), strict=True) if height else ()
    cells = [*above, *([printable(cell) for cell in row] for row in rows)]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in text else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def share(part: float, total: float, digits: int = 0) -> str:
    """Return `part` as a percentage of `total`; a dash if there is none."""
    is_known = math.isfinite(part) and math.isfinite(total) and total > 0
    return f"{100 * part / total:.{digits}f} %" if is_known else "-"


def shares(parts: Sequence[float], total: float) -> list[str]:
    """Return parts as whole percentages of their sum `total`; dashes if there are none.

    They add up to 100 %: the parts with the largest remainders are rounded up, the others down.
    """
    if not (math.isfinite(total) and total > 0 and all(map(math.isfinite, parts))):
        return ["-"] * len(parts)
    exact = [100 * part / total for part in parts]
    percent = [math.floor(value) for value in exact]
    missing = round(sum(exact)) - sum(percent)
    by_loss = sorted(range(len(parts)), key=lambda at: percent[at] - exact[at])
    for at in by_loss[:missing]:
        percent[at] += 1
    return [f"{value} %" for value in percent]


def cut_text(layers: Sequence[int], between: str = " ") -> str:
    """Return the layers of the stages, equal neighbours as one entry: "20 21*6 20"; "even" for none."""
    groups = [(size, len(list(group))) for size, group in itertools.groupby(layers)]
    return between.join(f"{size}" if count == 1 else f"{size}*{count}" for size, count in groups) or "even"


def whole_plan_text(plan: Plan) -> str:
    """Return a plan as settings of the command line, with the layers of its stages where it has a cut of its own."""
    layers = plan.layers if plan["pp"] > 1 else ()
    return f"{plan.text} {LAYOUT}={cut_text(layers, ',')}" if layers else plan.text


def quantity(name: str, value: float) -> str:
    """Return the value of a result column with its unit."""
    # These import JAX, which the other functions do not need.
    from dsx.cost.context import StepCosts
    from dsx.cost.interval import StepInterval
    from dsx.records import columns

    unit = (columns(StepCosts) | columns(StepInterval))[name][0]
    if name == "mfu":
        return f"{100 * value:.1f} %"
    return "-" if not math.isfinite(value) else format_quantity(value, unit)


def hardware_title(name: str) -> str:
    """Return the title of a hardware column, a path over two lines: "network.nvs." above "bandwidth"."""
    section, dot, field = name.rpartition(".")
    return f"{section}.\n{field}" if dot else name


def hardware_text(name: str, value: str | float) -> str:
    """Return a cluster's name, or a what-if value with its unit."""
    return value if isinstance(value, str) else format_quantity(value, varied_field(name).unit)


def step_text(global_batch_size: int, sequence_length: int) -> str:
    """Return "1,024 sequences of 8,192 tokens, 8,388,608 tokens a step"."""
    tokens = counted(global_batch_size * sequence_length, "token")
    return f"{counted(global_batch_size, 'sequence')} of {counted(sequence_length, 'token')}, {tokens} a step"


def steps_text(global_batch_sizes: Sequence[int], sequence_length: int) -> str:
    """Return the sequences and tokens of a step as a range, for batches of several sizes."""
    if len(global_batch_sizes) == 1:
        return step_text(global_batch_sizes[0], sequence_length)
    least, most = min(global_batch_sizes), max(global_batch_sizes)
    tokens = f"{least * sequence_length:,} to {most * sequence_length:,} tokens a step"
    return f"{least:,} to {most:,} sequences of {counted(sequence_length, 'token')}, {tokens}"


def trained_text(model: ModelSpec) -> str:
    """Return "trains head.* alone"; empty for a model all of whose weights are trained."""
    if ALL_WEIGHTS in model.trained:
        return ""
    return f"trains {', '.join(map(printable, model.trained))} alone" if model.trained else "trains nothing: a forward"


def only_text(fix: Mapping[str, Sequence[object]], limit: Mapping[str, Sequence[object]]) -> str:
    """Return "only tp=4,8; limit pp>=2 pp<=16": what a search is restricted to; empty if it is to nothing."""
    fixed = " ".join(f"{name}={','.join(map(str, values))}" for name, values in fix.items())
    limits = " ".join(f"{name}{bound}" for name, bounds in limit.items() for bound in bounds)
    return "; ".join([*([f"only {fixed}"] if fixed else []), *([f"limit {limits}"] if limits else [])])


def job_text(problem: "Problem", num_gpus: int) -> str:
    """Return "MODEL on 512 x CLUSTER", with what a GPU is where that is not plain."""
    return f"{printable(problem.model.name)} on {num_gpus} x {printable(problem.cluster.label)}"


def parameters_text(problem: "Problem") -> str:
    """Return "405.9 billion parameters"; in full below a million."""
    number = _parameters(problem)
    words = {1e12: "trillion", 1e9: "billion", 1e6: "million"}
    text = next((f"{number / size:.4g} {word}" for size, word in words.items() if number >= size), f"{number:,}")
    return f"{text} parameters"


def job_data(problem: "Problem", num_gpus: int, global_batch_size: int) -> Data:
    """Return the job as plain data."""
    length = problem.sequence_length
    job = {"model": problem.model.name, "parameters": _parameters(problem), "cluster": problem.cluster.name}
    sizes = {"num_gpus": num_gpus, "global_batch_size": global_batch_size, "sequence_length": length}
    return job | sizes | {"tokens_per_step": global_batch_size * length}


def _parameters(problem: "Problem") -> int:
    from dsx.notation.model import parameters

    return parameters(problem.models[0])


# Keys of a spec that are not compared: names, whose content is compared instead, and settings that change no row.
_NOT_COMPARED = ("cluster", "strategy", "plot", "part_size")
_BY_NAME = ("clusters", "layers")  # compared only if both sweeps have the entry
_WHOLE = (("keep",),)  # paths of mappings that are one value
_WORDS = ("description", "source")  # keys that affect nothing


def hardware_of(manifest: "Manifest") -> list[str]:
    """Return the hardware columns that the sweep varies."""
    several = ["cluster"] if len(manifest.names["cluster"]) > 1 else []
    return [*several, *(extra.name for extra in manifest.what_if)]


def title_of(manifest: "Manifest") -> str:
    """Return the model, the clusters and the number of what-if points on one line."""
    what_if = f", {counted(len(manifest.sweep.what_if.points), 'what-if point')}" if manifest.what_if else ""
    clusters = ", ".join(cluster.label for cluster in manifest.sweep.resolved.clusters)
    return printable(f"{manifest.sweep.resolved.model.name} on {clusters}{what_if}")


def what_if_values(manifest: "Manifest") -> dict[str, list[float | int]]:
    """Return the values of each what-if column, in the order of the sweep."""
    # The spec of a manifest has its keys in alphabetical order.
    what_if = manifest.sweep.what_if
    values = dict(zip(what_if.fields, zip(*what_if.points, strict=True), strict=True))
    return {extra.name: list(dict.fromkeys(values[extra.name])) for extra in manifest.what_if}


def kept_text(manifest: "Manifest") -> str:
    """Return which rows the sweep kept, in words: "all", "the 10 fastest at each of 12 hardware points"."""
    points = len(manifest.names["cluster"]) * len(manifest.sweep.what_if.points)
    where = f" at each of {points:,} hardware points" if points > 1 else ""
    match manifest.sweep.keep:
        case KeepTop(top=top, per=per, objective=objective):
            least = f"the {'one' if top == 1 else f'{top:,}'} of least {objective}"
            fastest = "the fastest" if top == 1 else f"the {top:,} fastest"
            choices = ", ".join(name for name in per if name not in hardware_of(manifest))
            return f"{fastest if objective == FASTEST else least}{f' for each {choices}' if choices else ''}{where}"
        case KeepPareto(pareto=objectives):
            return f"the Pareto front of {', '.join(objectives)}{where}"
        case word:
            return word


def keeps_front(manifest: "Manifest", objectives: Sequence[str] | None = None) -> bool:
    """Return whether the sweep kept each plan that no other plan beats in all of some objectives, by default of any."""
    match manifest.sweep.keep:
        case KeepPareto(pareto=kept):
            return objectives is not None and {*objectives} <= {*kept}
        case keep:
            return not isinstance(keep, KeepTop)


def rows_text(manifest: "Manifest") -> str:
    """Return how many rows the set has, and in how many files."""
    return f"{counted(manifest.num_rows, 'row')} in {counted(len(manifest.parts), 'file')}"


def differing(a: "Manifest", b: "Manifest") -> dict[str, tuple[object, object]]:
    """Return the fields in which two sweeps differ, by path: (value of a, value of b), None for a missing field.

    Clusters and layer definitions that only one sweep has are listed by name alone.
    """
    pairs: dict[str, tuple[object, object]] = {
        column: (list(a.names[column]), list(b.names[column])) for column in ("cluster", "strategy")
    }
    values: list[dict[tuple[str, ...], object]] = []
    for spec in (a.spec, b.spec):  # with the content of files in place of their names
        content = {key: value for key, value in spec.items() if key != "resolved"} | spec["resolved"]
        values.append(dict(_stated({key: value for key, value in content.items() if key not in _NOT_COMPARED})))
    for path in dict.fromkeys((*values[0], *values[1])):
        if path[0] not in _BY_NAME or (path in values[0] and path in values[1]):
            pairs[".".join(path)] = (values[0].get(path), values[1].get(path))
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


def _stated(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every value that affects the costs or the kept rows, with its path."""
    if (path and path[-1] in _WORDS) or value in (None, {}, []):
        return
    if isinstance(value, list) and all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in value):
        value = {item["name"]: item for item in value}
    if isinstance(value, dict) and path not in _WHOLE:
        for key, inner in value.items():
            yield from _stated(inner, (*path, key))
    else:
        yield path, value


def stated_text(value: object) -> str:
    """Return a value of a spec as text: quantities with a fitting prefix, other values unchanged."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(stated_text, value))
    if not isinstance(value, str):
        return json.dumps(value).replace('"', "")
    return value if (parsed := stated_quantity(value)) is None else format_quantity(*parsed)


def counts_text(counts: "Counts") -> str:
    """Return how many candidates there are, how many of them bounds left out, and how many of the others fit."""
    left_out = counts.skipped + counts.bounded
    looked_at = counts.candidates - left_out
    parts = [counted(counts.candidates, "candidate")]
    if left_out:
        parts.append(f"bounds leave out {counts.skipped:,} in blocks and {counts.bounded:,} one by one")
    parts.append(f"{looked_at:,} priced" if left_out else "")
    parts.append(f"{counts.cut:,} with their best cut" if counts.cut else "")
    parts.append(f"{counts.feasible:,} of them feasible ({share(counts.feasible, looked_at, 1)})")
    return ", ".join(filter(None, parts))
