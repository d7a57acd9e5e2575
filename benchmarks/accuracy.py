"""Write docs/validation.md: published runs and the predictions of dsx for them.

    python benchmarks/accuracy.py [--assumptions NAME] [--runs RUNS.csv] [--write docs/validation.md]
                                    [--freeze data/validation/predictions.csv]

The numbers of the set that state `between` are fitted again without each source and without each stack, which predicts
what nobody has seen. With --write the pictures go to figures/ next to the document, and sections that other scripts
write between markers are kept. --freeze writes the predictions of every row, so that a test can detect any change.
"""

import argparse
import csv
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flagships
import numpy as np
import public_tools
from calibration import BASE
from error_tables import SCORED, by_class, by_source, cell, markdown, means, scored
from parity import GIGABYTE, draw
from unseen import Unseen, predicted_unseen

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions, load_fitted
from dsx.config.schema import Bounds
from dsx.config.search_path import packaged_data
from dsx.config.what_if import varied_field
from dsx.cost.interval import ENOUGH
from dsx.runs.calibration import REPETITIONS, RUNS
from dsx.runs.error_report import noise_floor, not_modelled, report
from dsx.runs.observations import is_trusted, observe
from dsx.runs.predict import PredictedRows, compare, likeness_of, predict
from dsx.runs.row_job import known_clusters
from dsx.runs.setups import Setup, count_rows_by, setups
from dsx.runs.table import MeasuredRun, UnmodelledReason, read_runs
from dsx.units import format_quantity

DIGITS = 6  # of a frozen prediction
FITTED = "default"  # the set that is fitted to the published runs, from the set BASE

_HEAD = """\
# Validation

<!-- Written by benchmarks/accuracy.py (`make validation`); change it there. -->

Published measurements of training runs, from [data/validation/runs.csv](../data/validation/runs.csv), are compared with
the predictions of dsx under the assumption set `{assumptions}`. An error is predicted / measured - 1; medians and means
are of absolute errors. Every source counts once. [how-to/measured-runs.md](how-to/measured-runs.md) describes the
comparison.

{kept:,} rows of trust A and B, {timed:,} of them with a step time that is modelled; {distrusted} rows of less trust are
left out of the figures and of the fit.
"""


def main() -> None:
    """Predict all rows, and write or print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assumptions", default="default", metavar="NAME")
    parser.add_argument("--runs", type=Path, default=packaged_data() / "validation" / "runs.csv", metavar="RUNS.csv")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--freeze", type=Path, metavar="FILE")
    options = parser.parse_args()
    runs = read_runs(options.runs)
    resolved = setups(runs)
    every = compare(runs, resolved, predict, load_assumptions(options.assumptions))
    if options.freeze:
        freeze(every, options.freeze)
    trusted = [is_trusted(run) for run in runs]
    rows = chosen(every, trusted)
    kept, made = (tuple(np.array(values, dtype=object)[trusted]) for values in (runs, resolved))
    # The fitted set has seen every source, so fits without one begin with the set that it was fitted from.
    base, between = load_fitted(BASE if options.assumptions == FITTED else options.assumptions)
    unseen = predicted_unseen(observe(kept, made, base), base, between)
    text = document(rows, kept, made, unseen, options.assumptions, every, between)
    text += f"\n{flagships.section(options.assumptions)}"
    if options.write:
        draw_pictures(rows, made, unseen, options.write.parent / "figures")
        options.write.write_text(text + others_sections(options.write), encoding="utf-8")
    else:
        print(text, end="")


def freeze(rows: PredictedRows, path: Path) -> None:
    """Write id, predicted seconds and bytes of every row, and whether it fits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "predicted_s", "predicted_bytes", "fits"])
        for name, seconds, size, fits in zip(rows.id, rows.predicted_s, rows.predicted_bytes, rows.fits, strict=True):
            writer.writerow([name, f"{seconds:.{DIGITS}g}", f"{size:.{DIGITS}g}", int(fits)])


def chosen(rows: PredictedRows, mask: Sequence[bool]) -> PredictedRows:
    """Return the rows where `mask` is true."""
    places = np.flatnonzero(mask)
    return PredictedRows(
        **{
            field.name: values[places] if isinstance(values, np.ndarray) else tuple(values[place] for place in places)
            for field in dataclasses.fields(PredictedRows)
            for values in [getattr(rows, field.name)]
        }
    )


def with_unseen(rows: PredictedRows, unseen: Unseen) -> PredictedRows:
    """Return the rows with the times and intervals of fits without their own source; NaN where a row was not fitted."""
    place = {setup.run.id: at for at, setup in enumerate(unseen.observations.setups)}

    def column(values: np.ndarray) -> np.ndarray:
        return np.array([values[place[name]] if name in place else np.nan for name in rows.id])

    return dataclasses.replace(
        rows,
        predicted_s=column(unseen.without_source_s),
        low=column(unseen.low_s),
        high=column(unseen.high_s),
    )


def others_sections(path: Path) -> str:
    """Return the sections of a document that other scripts write, with their titles and markers."""
    if not path.exists():
        return ""
    found = re.findall(r"^## [^\n]*\n\n<!-- (?:\w+): .*?<!-- end of \w+ -->$", path.read_text("utf-8"), re.M | re.S)
    return "".join(f"\n{section}\n" for section in found)


def document(
    rows: PredictedRows,
    runs: Sequence[MeasuredRun],
    resolved: Sequence[Setup | UnmodelledReason],
    unseen: Unseen | None,
    assumptions: str,
    every: PredictedRows,
    between: Mapping[str, Bounds],
) -> str:
    """Return the document, without the published plans.

    Args:
        rows: the rows of trust A and B, with their predictions.
        runs: these rows as printed.
        resolved: their setups.
        unseen: predictions by fits without their source, and without their stack.
        assumptions: the name of the set.
        every: all rows of the table.
        between: the bounds of the free numbers.
    """
    figures = report(rows, runs)
    timed = int(np.isfinite(rows.predicted_s / rows.measured_s).sum())
    distrusted = len(every.id) - len(rows.id)
    parts = [
        _HEAD.format(assumptions=assumptions, kept=len(rows.id), timed=timed, distrusted=distrusted),
        _noise(noise_floor(rows, runs)),
    ]
    if unseen is not None:
        parts += [_summary(rows, unseen), _by_source(rows, unseen), _classes(rows, unseen), _intervals(unseen)]
    parts.append(_ranking(figures, None if unseen is None else report(with_unseen(rows, unseen), runs)))
    parts.append(_memory(figures))
    if unseen is not None:
        parts += [_free_numbers(unseen, between), _effects(unseen)]
    parts += [
        _extrapolated(resolved, load_assumptions(assumptions)),
        public_tools.section(runs, rows, unseen),
        _PICTURES,
        _counts("Rows that are refused", "reason, of any trust", not_modelled(every)),
        _counts("Missing values that were filled", "column", count_rows_by(resolved, "filled")),
        _counts("Missing values that were read from the notes", "column", count_rows_by(resolved, "from_notes")),
        _counts(
            "Words of notes that name what dsx prices, and were not read", "word", count_rows_by(resolved, "unread")
        ),
        _counts("Software that no stack names", "remark", count_rows_by(resolved, "remark")),
    ]
    return "\n".join(filter(None, parts))


_PICTURES = """\
## Pictures

Shapes and colours are families of devices; the band is 10 % to either side.

![Step time](figures/validation-step-time.png)

![Memory](figures/validation-memory.png)
"""


def draw_pictures(
    rows: PredictedRows, resolved: Sequence[Setup | UnmodelledReason], unseen: Unseen | None, folder: Path
) -> None:  # fmt: skip
    """Draw step times, dense and with experts, in sample and by fits without their source, and memory."""
    folder.mkdir(parents=True, exist_ok=True)
    alike = [None if isinstance(setup, UnmodelledReason) else likeness_of(setup) for setup in resolved]
    family = [one.generation if one else "" for one in alike]
    predictions = {"in sample": rows.predicted_s}
    predictions |= {} if unseen is None else {"source left out": with_unseen(rows, unseen).predicted_s}
    panels = [
        (
            f"{title}, {how}",
            np.where([one is not None and one.kind == kind for one in alike], rows.measured_s, np.nan),
            p,
        )
        for kind, title in (("dense", "dense models"), ("experts", "models with experts"))
        for how, p in predictions.items()
    ]
    draw(folder / "validation-step-time.png", "step time [s]", panels, family)
    measured = np.where(rows.oom == 1, np.nan, rows.measured_bytes) / GIGABYTE
    draw(
        folder / "validation-memory.png",
        "memory [GB]",
        [("memory of a GPU", measured, rows.predicted_bytes / GIGABYTE)],
        family,
    )


def _noise(figures: Mapping[str, Any]) -> str:
    same, every = figures["same_software"], figures["all_releases"]
    body = [
        [name, *_spread(same["sources"].get(name)), *_spread(every["sources"].get(name))]
        for name in dict.fromkeys((*same["sources"], *every["sources"]))
    ]
    body.append(["all", *_spread(same), *_spread(every)])
    columns = ("configurations", "median spread", "90 % of the spreads")
    return (
        "## Noise floor\n\nConfigurations that one source measured more than once. The spread is the standard "
        "deviation of the logs of their times: of one release, and of all releases of a framework. Nothing that knows "
        "the configuration alone can be expected to err less.\n\n"
        + markdown(["source", *(f"{name}, {of}" for of in ("one release", "all releases") for name in columns)], body)
    )


def _spread(figures: Mapping[str, Any] | None) -> list[str]:
    known = figures or {"configurations": 0, "median": None, "p90": None}
    return [f"{known['configurations']}", cell(known["median"]), cell(known["p90"])]


def _predictions(rows: PredictedRows, unseen: Unseen) -> dict[str, np.ndarray]:
    """Return the errors of the fitted rows by how they are predicted, [N]."""
    place = {name: at for at, name in enumerate(rows.id)}
    own = np.array([place[setup.run.id] for setup in unseen.observations.setups])
    seconds = {
        "in sample": rows.predicted_s[own],
        "source left out": unseen.without_source_s,
        "stack left out": unseen.without_stack_s,
    }
    return {how: predicted / unseen.observations.measured_s - 1 for how, predicted in seconds.items()}


def _summary(rows: PredictedRows, unseen: Unseen) -> str:
    source = unseen.observations.source
    kind = [likeness_of(setup).kind for setup in unseen.observations.setups]
    body = []
    for how, error in _predictions(rows, unseen).items():
        apart = by_class(error, source, kind)
        figures = [means(by_source(error, source)), *(means(apart.get(name, {})) for name in ("dense", "experts"))]
        body.append([how, *(cell(value) for pair in figures for value in pair)])
    names = scored(by_source(_predictions(rows, unseen)["in sample"], source))
    for count in RUNS:
        known = [unseen.few_runs[name][count] for name in names if count in unseen.few_runs.get(name, {})]
        said = f"median over sources {cell(float(np.median(known)))}" if known else "-"
        body.append([f"source left out, adapted to {count} of its runs", said, *["-"] * 5])
    header = ["prediction", *(f"{figure}, {of}" for of in ("all", "dense", "experts") for figure in
              ("mean of medians", "mean of means"))]  # fmt: skip
    return (
        f"## Errors in short\n\nMeans over the {len(names)} sources of {SCORED} timed rows or more. *Source left out* "
        "predicts each source by a fit to all others, *stack left out* each software stack by a fit to all others. "
        f"*Adapted* is `dsx calibrate --specialise`: the median error of the rest of a source, {REPETITIONS} draws.\n\n"
        + markdown(header, body)
    )


def _by_source(rows: PredictedRows, unseen: Unseen) -> str:
    errors = {how: by_source(error, unseen.observations.source) for how, error in _predictions(rows, unseen).items()}
    first = errors["in sample"]
    header = ["source", "rows", *(f"{figure}, {how}" for how in errors for figure in ("median", "mean"))]
    header += ["bias, source left out", "inside interval", "width", *(f"after {count}" for count in RUNS)]

    def table(names: Sequence[str]) -> str:
        return markdown(header, [_source_line(name, errors, unseen) for name in names])

    many, few = [*scored(first)], [name for name in first if first[name].rows < SCORED]
    apart = f"\nSources of fewer than {SCORED} timed rows, which are in no mean:\n\n{table(few)}" if few else ""
    return (
        "## By source\n\nThe 80 % interval of a source is derived from the residuals of the others; its width is high "
        "/ low - 1. The last columns are medians after the set was adapted to so many runs of the source.\n\n"
        f"{table(many)}{apart}"
    )


def _source_line(name: str, errors: Mapping[str, Mapping[str, Any]], unseen: Unseen) -> list[str]:
    known, after = unseen.coverage.get(name), unseen.few_runs.get(name, {})
    return [
        name,
        f"{errors['in sample'][name].rows:,}",
        *(cell(value) for own in errors.values() for value in (own[name].median, own[name].mean)),
        cell(errors["source left out"][name].bias),
        cell(None if known is None else known.inside),
        cell(None if known is None else known.width),
        *(cell(after.get(count)) for count in RUNS),
    ]


def _classes(rows: PredictedRows, unseen: Unseen) -> str:
    errors, observations = _predictions(rows, unseen), unseen.observations
    parts = []
    likeness = [likeness_of(setup) for setup in observations.setups]
    for title, part in (("device generation", "generation"), ("kind of model", "kind")):
        apart = {
            how: by_class(error, observations.source, [getattr(one, part) for one in likeness])
            for how, error in errors.items()
        }
        body = [
            [
                name,
                f"{len(scored(apart['in sample'][name]))}",
                f"{sum(own.rows for own in apart['in sample'][name].values()):,}",
                *(cell(value) for how in apart for value in means(apart[how][name])),
            ]
            for name in apart["in sample"]
        ]
        header = [title, "scored sources", "rows", *(f"{figure}, {how}" for how in apart for figure in
                  ("mean of medians", "mean of means"))]  # fmt: skip
        parts.append(f"## By {title}\n\n{markdown(header, body)}")
    return "\n".join(parts)


def _intervals(unseen: Unseen) -> str:
    counts = {name: unseen.observations.source.count(name) for name in unseen.coverage}
    known = [own for name, own in unseen.coverage.items() if counts[name] >= SCORED]
    if not known:
        return ""
    inside = (unseen.low_s <= unseen.observations.measured_s) & (unseen.observations.measured_s <= unseen.high_s)
    scored_rows = np.array([counts.get(name, 0) >= SCORED for name in unseen.observations.source])
    most = sum(own.inside >= 0.7 for own in known)
    return (
        "## Intervals\n\nThe 80 % interval of each source from the residuals of all others:\n\n"
        f"* {cell(float(np.mean([own.inside for own in known])))} of the rows are inside, every source with the same "
        f"weight; {cell(float(inside[scored_rows].mean()))} of all rows.\n"
        f"* In {most} of {len(known)} sources at least 70 % of the rows are inside.\n"
        f"* The median width, high / low - 1, is {cell(float(np.median([own.width for own in known])))}.\n"
    )


def _ranking(figures: Mapping[str, Any], unseen: Mapping[str, Any] | None) -> str:
    known = {"in sample": figures} | ({} if unseen is None else {"source left out": unseen})
    body = []
    for how, own in known.items():
        regret, pairs, correlation = own["regret"], own["pairs"], own["spearman_median"]
        mean = float(np.mean([*pairs["sources"].values()])) if pairs["sources"] else None
        body.append(
            [
                how,
                f"{pairs['pairs']:,}",
                cell(pairs["right"]),
                cell(mean),
                f"{regret['groups']}",
                *(cell(regret[name]) for name in ("median", "p95", "within_5_percent")),
                "-" if correlation is None else f"{correlation:.3f}",
            ]
        )
    header = ["prediction", "pairs", "ranked right", "mean over sources", "groups", "median regret"]
    header += ["95 % of the regrets", "within 5 %", "median rank correlation"]
    return (
        "## Ranking\n\nA pair is two layouts of one job whose measured times differ by more than 5 %. Regret is by how "
        "much the layout that is predicted fastest takes longer than the best one, in groups of four layouts or "
        "more.\n\n" + markdown(header, body)
    )


def _memory(figures: Mapping[str, Any]) -> str:
    oom = figures["oom"]
    known = [one for one in figures["sources"] if one["memory_mape"] is not None]
    middle = float(np.median([one["memory_mape"] for one in known])) if known else None
    body = [[one["source_id"], cell(one["memory_mape"])] for one in known]
    return (
        "## Memory\n\n"
        f"* Of {oom['fit']:,} runs that fit, {oom['fit_correct']:,} are predicted to fit; of {oom['oom']:,} that ran "
        f"out of memory, {oom['oom_correct']:,} are predicted not to fit.\n"
        f"* Mean absolute error of the memory of a source, median over sources: {cell(middle)}.\n\n"
        + markdown(["source", "memory error"], body)
    )


def _free_numbers(unseen: Unseen, between: Mapping[str, Bounds]) -> str:
    def text(name: str, value: float) -> str:
        return "-" if value != value else format_quantity(value, varied_field(f"assumptions.{name}").unit)

    body = [
        [
            f"`{name}`",
            text(name, value),
            text(name, unseen.fit.standard_errors[name]),
            f"{text(name, between[name].low)} to {text(name, between[name].high)}",
            "at a bound" if name in unseen.fit.at_bound else "",
        ]
        for name, value in unseen.fit.values.items()
    ]
    about = (
        "What a fit finds with the prices of today; the set `default` keeps those of the fit that made it "
        "([default.yaml](../data/assumptions/default.yaml))."
    )
    return f"## Free numbers\n\n{about}\n\n{markdown(['number', 'value', 'standard error', 'bounds', ''], body)}"


def _effects(unseen: Unseen) -> str:
    effects = unseen.fit.effects
    known = effects.deviations
    parts = []
    for part, values in (("stack", effects.stack), ("generation", effects.generation)):
        body = [[f"`{name}`", cell(value)] for name, value in sorted(values.items(), key=lambda one: one[1])]
        parts.append(markdown([part, "log factor on kernels"], body))
    return (
        "## Effects\n\nWhat the fit leaves to software stacks and device generations, shrunk towards zero. Deviations: "
        f"stacks {cell(known.stack)}, device generations {cell(known.generation)}, sources beyond both "
        f"{cell(known.rest)}.\n\n" + "\n".join(parts)
    )


def _extrapolated(resolved: Sequence[Setup | UnmodelledReason], assumptions: AssumptionsSpec) -> str:
    seen = assumptions.trained_on
    if not seen.generation:
        return ""
    devices = sorted({cluster.device.family for cluster in known_clusters()} - seen.generation.keys())
    lines = [f"* Device families of packaged clusters that no run has: {', '.join(devices)}.\n"] if devices else []
    for part in ("stack", "generation", "kind"):
        few = sorted(name for name, count in getattr(seen, part).items() if count < ENOUGH)
        lines += [f"* Fewer than {ENOUGH} sources have: {part} {', '.join(few)}.\n"] if few else []
    return (
        "## What is extrapolated\n\nIntervals are wider where fewer than "
        f"{ENOUGH} sources are like a plan, and `dsx evaluate` says so where none is.\n\n" + "".join(lines)
    )


def _counts(title: str, what: str, counts: Mapping[str, int]) -> str:
    if not counts:
        return f"## {title}\n\nNone.\n"
    return f"## {title}\n\n{markdown([what, 'rows'], [[name, f'{count:,}'] for name, count in counts.items()])}"


if __name__ == "__main__":
    main()
