"""The rows of a run table that a fit can use, and their predicted times under any values of the fitted fields."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsx.config.assumption_set import AssumptionsSpec
from dsx.cost.context import kernel_effect
from dsx.cost.interval import Likeness, PlanFacts, thinness
from dsx.runs.batches import Batch, batches, counted_memory, price
from dsx.runs.predict import facts_of, group_of, layout_of, likeness_of, with_recompute
from dsx.runs.setups import Setup, Setups, measured_bytes, measured_step_time
from dsx.runs.table import MeasuredRun, UnmodelledReason

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
