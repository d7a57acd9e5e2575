"""The rows of a run table that a fit can use, and their predicted times under any values of the fitted fields."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from dsx.cost.assumptions import Assumptions
from dsx.cost.columns import StepCosts
from dsx.cost.interval import PlanFacts
from dsx.predict.batches import batches
from dsx.predict.counted_memory import counted_memory
from dsx.predict.missing_recompute import with_recompute
from dsx.predict.predictor import facts_of
from dsx.predict.setup_costs import pricer
from dsx.predict.validation_rows import group_of, layout_of
from dsx.runs.measured_memory import counted_bytes, measured_bytes
from dsx.runs.reasons import Reason
from dsx.runs.run_table import Run
from dsx.runs.setups import Setup
from dsx.runs.step_time import measured_step_time
from dsx.spec.assumptions import AssumptionsSpec

TRUSTED = ("A", "B")  # values of the column `trust`; a blank cell is trusted too


def is_trusted(run: Run) -> bool:
    """Return whether the table trusts a row enough to fit to it."""
    return run.trust is None or run.trust in TRUSTED


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows with the same structure."""

    rows: np.ndarray
    base: Assumptions
    price: Callable[[Assumptions], StepCosts]

    def costs(self, values: Mapping[str, float]) -> StepCosts:
        """Return the costs under these values of fields, the same for all rows; [R] arrays."""
        same = {name: np.full(len(self.rows), value) for name, value in values.items()}
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, self.price(replace(self.base, **same)))


@dataclass(frozen=True, slots=True)
class Observations:
    """N rows with a measured step time that dsx can price; `left_out` counts the other rows by reason."""

    setups: tuple[Setup, ...]  # [N]
    source: tuple[str, ...]  # [N]
    measured_s: np.ndarray  # [N]
    facts: PlanFacts  # [N]
    group: tuple[Hashable, ...]  # [N] the same for rows that differ only in configuration
    layout: tuple[Hashable, ...]  # [N] the configuration
    left_out: dict[str, int]
    parts: tuple[_Part, ...]

    @property
    def sources(self) -> list[str]:
        """The sources, in the order of their first rows."""
        return list(dict.fromkeys(self.source))

    def of_source(self, name: str) -> np.ndarray:
        """Return which rows belong to a source, [N] bool."""
        return np.array([source == name for source in self.source], dtype=bool)

    def step_times(self, values: Mapping[str, float], wanted: np.ndarray | None = None) -> np.ndarray:
        """Return the predicted seconds, [N], under these values of fields; NaN where [N] bools `wanted` are false."""
        found = np.full(len(self.setups), np.nan)
        for part in self.parts:
            if wanted is None or wanted[part.rows].any():
                found[part.rows] = part.costs(values).step_time_s
        return found if wanted is None else np.where(wanted, found, np.nan)

    def memory_ratios(self, values: Mapping[str, float]) -> tuple[np.ndarray, list[str]]:
        """Return measured / predicted memory of the rows that state it, and their sources; `values` are of fields.

        Predicted are the bytes that the row counts: in tensors alone, all of the allocator, or all in use.
        """
        predicted = np.full(len(self.setups), np.nan)
        for part in self.parts:
            costs = part.costs(values)
            memory = counted_memory(costs, part.base)
            for at, row in enumerate(part.rows):
                predicted[row] = np.broadcast_to(memory[counted_bytes(self.setups[row].run)], len(part.rows))[at]
        measured = [measured_bytes(setup.run) for setup in self.setups]
        known = [row for row, size in enumerate(measured) if isinstance(size, float)]
        ratio = np.array([measured[row] / predicted[row] for row in known])
        return ratio, [self.source[row] for row in known]

    def compile(self, progress: Callable[[int], None] = lambda done: None) -> None:
        """Price every part once, which compiles it; calls `progress` after each."""
        for part in self.parts:
            with jax.enable_x64(True):
                jax.block_until_ready(part.price(part.base).step_time_s)
            progress(1)


def observe(
    runs: Sequence[Run], resolved: Sequence[Setup | Reason], assumptions: AssumptionsSpec, every_trust: bool = False
) -> Observations:
    """Return the usable rows of a table, from its runs and their setups; `every_trust` includes untrusted rows."""
    reasons: list[str] = []
    setups: list[Setup] = []
    seconds: list[float] = []
    for run, setup in zip(runs, resolved, strict=True):
        time = setup if isinstance(setup, Reason) else measured_step_time(setup)
        if isinstance(time, Reason):
            reasons.append(time.rule)
        elif time is None:
            reasons.append("no measured step time")
        elif not (every_trust or is_trusted(run)):
            reasons.append(f"trust is not {' or '.join(TRUSTED)}")
        elif isinstance(setup, Setup):
            setups.append(setup)
            seconds.append(time)
    setups = with_recompute(setups, assumptions)
    _, why = batches(setups, assumptions)
    reasons += [reason.rule for reason in why.values()]
    kept = [row for row in range(len(setups)) if row not in why]
    usable = [setups[row] for row in kept]
    priced, _ = batches(usable, assumptions)
    with jax.enable_x64(True):
        parts = tuple(_Part(b.rows, b.assumptions, pricer(b)) for b in priced)
    return Observations(
        setups=tuple(usable),
        source=tuple(setup.run.source_id for setup in usable),
        measured_s=np.array([seconds[row] for row in kept], dtype=np.float64),
        facts=facts_of(usable),
        group=tuple(map(group_of, usable)),
        layout=tuple(map(layout_of, usable)),
        left_out=dict(Counter(reasons).most_common()),
        parts=parts,
    )
