"""The rows of a run table that a fit can use, with predicted times under any fitted fields; and its outliers.

An outlier is a row whose time no cluster explains together with the other rows. With r = log(measured / predicted), m
the median of r, and s = 1.4826 times the median of |r - m| (the standard deviation if r is normal), a row is an outlier
if

    |r - m| > 5 s, but at least log 3 and at most log 10

If a set is off for a whole cluster, it is off by the same factor in all rows, which is m; so three rows are enough to
find one that differs. The published runs to which the packaged set is fitted are within 2.1 times of their median. A
table whose median is off by more than a factor of 100 is refused. Not found: the outliers of a table in which all rows
are wrong by the same smaller factor.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.cost.context import kernel_effect
from dsx.cost.interval import Likeness, PlanFacts, thinness
from dsx.errors import RunTableError
from dsx.runs.predict import (
    Batch,
    batches,
    counted_memory,
    facts_of,
    group_of,
    layout_of,
    likeness_of,
    price,
    with_recompute,
)
from dsx.runs.setups import Setup, Setups, measured_bytes, measured_step_time
from dsx.runs.table import MeasuredRun, UnmodelledReason
from dsx.text import printable

SLOWDOWN = "kernel_slowdown"  # field of an assumption set
TRUSTED = ("A", "B")  # values of the column `trust`; a blank cell is trusted too


def is_trusted(run: MeasuredRun) -> bool:
    """Return whether the table trusts a row enough to fit to it."""
    return run.trust is None or run.trust in TRUSTED


@dataclass(frozen=True, slots=True)
class Observations:
    """N rows with a measured step time that dsx can price; `left_out` counts the other rows by reason."""

    setups: tuple[Setup, ...]  # [N]
    source: tuple[str, ...]  # [N]
    measured_s: np.ndarray  # [N]
    stack: tuple[str, ...]  # [N]
    generation: tuple[str, ...]  # [N] of the device
    facts: PlanFacts  # [N]
    group: tuple[Hashable, ...]  # [N] the same for rows that differ only in configuration
    layout: tuple[Hashable, ...]  # [N] the configuration
    slowdown: np.ndarray  # [N] factor on the time of kernels, beside what the set says
    left_out: dict[str, int]
    assumptions: AssumptionsSpec
    batches: tuple[Batch, ...]

    @property
    def sources(self) -> list[str]:
        """The sources, in the order of their first rows."""
        return list(dict.fromkeys(self.source))

    def of_source(self, name: str) -> np.ndarray:
        """Return which rows belong to a source, [N] bool."""
        return np.array([source == name for source in self.source], dtype=bool)

    def step_times(
        self, values: Mapping[str, float], rows: np.ndarray | None = None, slowdown: np.ndarray | float = 1.0
    ) -> np.ndarray:
        """Return the predicted seconds, [N], under these values of fields; NaN where [N] bools `rows` are false.

        `slowdown` is a further factor on the time of kernels, of all rows or [N].
        """
        seconds = np.full(len(self.setups), np.nan)
        slower = slowdown * self._slowdown(values) * self.slowdown
        for batch in self.batches:
            if rows is None or rows[batch.rows].any():
                seconds[batch.rows] = price(_changed(batch, values, slower[batch.rows])).step_time_s
        return seconds if rows is None else np.where(rows, seconds, np.nan)

    def only(self, rows: np.ndarray, values: Mapping[str, float], slowdown: np.ndarray | float = 1.0) -> "Observations":
        """Return the rows at these positions, under values of fields and with [N] factors on the time of kernels."""
        priced, _ = batches([self.setups[row] for row in rows], self.assumptions)
        picked = {
            name: tuple(getattr(self, name)[row] for row in rows)
            for name in ("setups", "source", "stack", "generation", "group", "layout")
        }
        return replace(
            self,
            **picked,
            measured_s=self.measured_s[rows],
            facts=self.facts.of(rows),
            slowdown=(slowdown * self._slowdown(values) * self.slowdown)[rows],
            batches=tuple(_changed(batch, values) for batch in priced),
        )

    def without_effects(self) -> "Observations":
        """Return the rows without the effects of stacks and device generations that the set has."""
        pairs = zip(self.stack, self.generation, strict=True)
        effect = np.array([kernel_effect(self.assumptions.effects, *pair) for pair in pairs])
        return replace(self, slowdown=self.slowdown / effect)

    def _slowdown(self, values: Mapping[str, float]) -> float:
        """Return the factor by which values change the slowdown that the set states; effects stay."""
        usual = self.assumptions.kernel_slowdown
        return values.get(SLOWDOWN, usual) / usual

    def memory_ratios(self, values: Mapping[str, float]) -> tuple[np.ndarray, list[str]]:
        """Return measured / predicted memory, as each row counts it, of the rows that state it, and their stacks."""
        predicted = np.full(len(self.setups), np.nan)
        for batch in self.batches:
            changed = _changed(batch, values)
            memory = counted_memory(price(changed), changed.assumptions)
            for at, row in enumerate(batch.rows):
                predicted[row] = np.broadcast_to(memory[self.setups[row].counted], len(batch.rows))[at]
        sizes = enumerate(measured_bytes(setup.run) for setup in self.setups)
        measured = {row: size for row, size in sizes if isinstance(size, float)}
        ratio = np.array([size / predicted[row] for row, size in measured.items()])
        return ratio, [self.stack[row] for row in measured]


def sources_by(setups: Sequence[Setup]) -> dict[str, dict[str, set[str]]]:
    """Return the sources of setups by part of their likeness, and by its value."""
    sources: dict[str, dict[str, set[str]]] = {part: {} for part in Likeness._fields}
    for setup in setups:
        for part, value in likeness_of(setup)._asdict().items():
            sources[part].setdefault(value, set()).add(setup.run.source_id)
    return sources


def others_like(setups: Sequence[Setup]) -> np.ndarray:
    """Return, for each of [N] setups, in how many ways the other sources have little like it."""
    by_part, thin = sources_by(setups), np.zeros(len(setups), dtype=np.int64)
    for row, setup in enumerate(setups):
        parts = likeness_of(setup)._asdict().items()
        counts = {part: len(by_part[part][value] - {setup.run.source_id}) for part, value in parts}
        thin[row] = thinness(counts, bool(setup.filled))
    return thin


def _changed(batch: Batch, values: Mapping[str, float], slowdown: np.ndarray | float = 1.0) -> Batch:
    """Return a batch under values of fields, all but the slowdown of kernels, and with a further [N] factor on that."""
    base = batch.assumptions
    same = {name: np.full(len(batch.rows), value) for name, value in values.items() if name != SLOWDOWN}
    return replace(batch, assumptions=replace(base, **same, kernel_slowdown=base.kernel_slowdown * slowdown))


def usual_stack(stacks: Sequence[str]) -> str:
    """Return the stack of most runs; "" if they have none."""
    return Counter(stacks).most_common(1)[0][0]


def observe(runs: Sequence[MeasuredRun], setups: Setups, assumptions: AssumptionsSpec) -> Observations:
    """Return the usable rows of a table, from its runs and their setups."""
    reasons: list[str] = []
    timed: list[Setup] = []
    seconds: list[float] = []
    for run, setup in zip(runs, setups, strict=True):
        time = setup if isinstance(setup, UnmodelledReason) else measured_step_time(setup)
        if isinstance(time, UnmodelledReason):
            reasons.append(time.rule)
        elif time is None:
            reasons.append("no measured step time")
        elif not is_trusted(run):
            reasons.append(f"trust is not {' or '.join(TRUSTED)}")
        elif isinstance(setup, Setup):
            timed.append(setup)
            seconds.append(time)
    timed = with_recompute(timed, assumptions)
    _, unpriced = batches(timed, assumptions)
    reasons += [reason.rule for reason in unpriced.values()]
    kept = [row for row in range(len(timed)) if row not in unpriced]
    usable = [timed[row] for row in kept]
    priced, _ = batches(usable, assumptions)
    return Observations(
        setups=tuple(usable),
        source=tuple(setup.run.source_id for setup in usable),
        measured_s=np.array([seconds[row] for row in kept], dtype=np.float64),
        stack=tuple(setup.stack or "" for setup in usable),
        generation=tuple(setup.cluster.device.family for setup in usable),
        facts=facts_of(usable, others_like(usable)),
        group=tuple(map(group_of, usable)),
        layout=tuple(map(layout_of, usable)),
        slowdown=np.ones(len(usable)),
        left_out=dict(Counter(reasons).most_common()),
        assumptions=assumptions,
        batches=tuple(priced),
    )


_LEAST, _MOST = 3.0, 10.0  # times the median
_IMPOSSIBLE = 100.0  # times what is predicted, in the median of a table
_DEVIATIONS = 5.0
_NORMAL = 1.4826  # standard deviations per median absolute deviation of a normal distribution
_MOST_SHARE = 1 / 3  # of the rows: with more outliers the table is wrong, not the rows
_SHOWN = 5  # in an error


@dataclass(frozen=True, slots=True)
class Outlier:
    """A row that is far from the others."""

    id: str
    measured_s: float
    predicted_s: float
    factor: float  # measured / predicted
    usual: float  # its median over the table

    def __str__(self) -> str:
        """Return the row in words."""
        return (
            f"{printable(self.id)}: measured {self.measured_s:.4g} s, predicted {self.predicted_s:.4g} s: "
            f"{self.factor:.3g} times, the median of the table is {self.usual:.3g} times"
        )


def _log_ratio(measured_s: np.ndarray, predicted_s: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.log(measured_s / predicted_s)


def outliers(ids: Sequence[str], measured_s: np.ndarray, predicted_s: np.ndarray) -> dict[int, Outlier]:
    """Return the outliers among [N] rows by position; a row in which a time is missing (NaN) is not an outlier."""
    ratio = _log_ratio(measured_s, predicted_s)
    timed = np.isfinite(ratio)
    if not timed.any():
        return {}
    median = float(np.median(ratio[timed]))
    distance = np.abs(ratio - median)
    limit = np.clip(_DEVIATIONS * _NORMAL * np.median(distance[timed]), np.log(_LEAST), np.log(_MOST))
    return {
        row: Outlier(
            ids[row], float(measured_s[row]), float(predicted_s[row]), float(np.exp(ratio[row])), float(np.exp(median))
        )
        for row in np.flatnonzero(timed & (distance > limit)).tolist()
    }


def wrong_table(measured_s: np.ndarray, predicted_s: np.ndarray) -> str:
    """Return what is wrong with a table whose [N] times are as far off as those of no cluster; empty for any other."""
    ratio = _log_ratio(measured_s, predicted_s)
    timed = np.isfinite(ratio)
    usual = float(np.exp(np.median(ratio[timed]))) if timed.any() else 1.0
    if 1 / _IMPOSSIBLE <= usual <= _IMPOSSIBLE:
        return ""
    return (
        f"the table looks wrong: the times are {usual:.3g} times what is predicted, in the median; are all of them "
        "seconds of one step?"
    )


def without_outliers(
    observations: Observations, runs: Sequence[MeasuredRun], setups: Setups, assumptions: AssumptionsSpec
) -> tuple[Observations, list[Outlier]]:
    """Return the observations of a table without its outliers, and the outliers.

    `runs` and `setups` are the rows of the table. Raises RunTableError if more than a third of the rows are outliers,
    or if all are as far off as no cluster is.
    """
    ids = [setup.run.id for setup in observations.setups]
    predicted_s = observations.step_times({})
    if wrong := wrong_table(observations.measured_s, predicted_s):
        raise RunTableError(wrong)
    by_row = outliers(ids, observations.measured_s, predicted_s)
    if not by_row:
        return observations, []
    if len(by_row) > _MOST_SHARE * len(ids):
        wrong = f"the table looks wrong: {len(by_row):,} of {len(ids):,} rows are far from the others, so a fit to "
        wrong += "the rest would mean nothing; are all times seconds of one step?"
        more = [f"and {len(by_row) - _SHOWN:,} more"] if len(by_row) > _SHOWN else []
        raise RunTableError("\n".join([wrong, *map(str, [*by_row.values()][:_SHOWN]), *more]))
    lines = {observations.setups[row].run.line for row in by_row}
    kept = [(run, setup) for run, setup in zip(runs, setups, strict=True) if run.line not in lines]
    return observe([run for run, _ in kept], [setup for _, setup in kept], assumptions), [*by_row.values()]
