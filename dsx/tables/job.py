"""The job with which every answer begins as text: the model, the GPUs, the sequences of a step; and a result set."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dsx.config.sweep_file import FASTEST, KeepPareto, KeepTop
from dsx.tables.format import share
from dsx.text import Data, printable
from dsx.units import counted, format_quantity, stated_quantity

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem
    from dsx.results.manifest import Counts, Manifest


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
