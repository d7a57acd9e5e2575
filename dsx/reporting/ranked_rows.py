"""The rows of a report, the best first: feasible ones before rejected ones, then by tokens per second and GPU.

Rows of one job have that order by step time. Jobs of several sizes are compared by what a GPU does in them, since more
GPUs always make a shorter step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.results.manifest import Manifest
from dsx.results.pareto_rows import pareto
from dsx.results.plan_rows import as_plans
from dsx.results.plot.selection import settings
from dsx.results.store import load_chosen, load_small
from dsx.space.choices import PLAN_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 20_000  # of the table
MOST_POINTS = 2_000  # of a cloud of points, besides those of a front
_NEAR = 2.0  # a cloud shows plans up to this many times the step time of the best

_COSTS = ("step_time_s", "step_time_s_low", "step_time_s_high", "peak_bytes", "tokens_per_s_per_gpu", "reject")


@dataclass(frozen=True)
class RankedRows:
    """The rows of a set that a report shows. Frames are without `attrs`, which pandas copies with every operation."""

    folder: Path
    manifest: Manifest
    every: "pd.DataFrame"  # all rows: choices, hardware and the costs that pictures need, in the order of the set
    best: "pd.DataFrame"  # the best `MOST_ROWS` of them, with all columns, the best first
    attrs: Mapping[Any, Any]  # of the set (`dsx.results.reading.load`)

    @property
    def settings(self) -> list[str]:
        """The columns of the job and the hardware."""
        return settings(self.every.columns)

    @property
    def varied(self) -> list[str]:
        """Those of them that have several values."""
        return [name for name in self.settings if distinct(self.every, name) > 1]

    @property
    def feasible(self) -> "pd.DataFrame":
        """The feasible ones of all rows."""
        return self._chosen((self.every["reject"] == 0).to_numpy())

    def alike(self, row: Any, columns: Sequence[str]) -> "pd.DataFrame":
        """Return the feasible rows that have the values of `row` in some columns."""
        same = (self.every["reject"] == 0).to_numpy()
        for name in columns:
            same = same & (self.every[name] == row[name]).to_numpy()
        return self._chosen(same)

    def _chosen(self, rows: np.ndarray) -> "pd.DataFrame":
        """Return the rows of a mask, without a copy if it has all."""
        return self.every if rows.all() else self.every.loc[rows]

    def at(self, candidate: int, hardware: Mapping[str, Any]) -> Any:
        """Return the row of a candidate at some hardware, which the set has."""
        same = (self.every["candidate"] == candidate).to_numpy()
        for name, value in hardware.items():
            same = same & (self.every[name] == value).to_numpy()
        return self.every.loc[same].iloc[0]

    def whole(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """Return some of the rows of `every` with all columns, in their order."""
        keys = ["candidate", *self.settings]
        place = {key: at for at, key in enumerate(_keys(rows, keys))}

        def choose(frame: "pd.DataFrame") -> "pd.DataFrame":
            few: Any = frame[frame["candidate"].isin(rows["candidate"])]
            return few.loc[[key in place for key in _keys(few, keys)]]

        found: Any = _without_attrs(load_chosen(self.folder, keys, choose))
        at = [place[key] for key in _keys(found, keys)]
        return found.iloc[np.argsort(at)].reset_index(drop=True)

    def with_attrs(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """Return rows with the `attrs` of the set."""
        found = rows.copy(deep=False)
        found.attrs = dict(self.attrs)
        return found

    def plans(self, rows: "pd.DataFrame") -> list[dict[str, Any]]:
        """Return rows with all columns as plain data."""
        return as_plans(self.with_attrs(rows)) if len(rows) else []


def distinct(rows: "pd.DataFrame", column: str) -> int:
    """Return how many values a column has."""
    values: Any = rows[column]
    return int(values.nunique(dropna=False))


def _keys(rows: "pd.DataFrame", columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return [*zip(*(rows[name].tolist() for name in columns), strict=True)]


def _without_attrs(rows: "pd.DataFrame") -> "pd.DataFrame":
    rows.attrs = {}
    return rows


def rate(rows: "pd.DataFrame") -> Any:
    """Return tokens per second and GPU of rows, [N] float64."""
    return rows["tokens_per_s_per_gpu"].to_numpy(np.float64)


def ranked_rows(folder: Path, manifest: Manifest) -> RankedRows:
    """Read the rows that a report of the set in `folder` shows; raises StoreError if the set cannot be read."""
    light = ["candidate", "cluster", *PLAN_COLUMNS, *(extra.name for extra in manifest.what_if), *_COSTS]
    best = load_chosen(folder, light, lambda frame: ranked(frame, MOST_ROWS)).reset_index(drop=True)
    attrs = dict(best.attrs)
    return RankedRows(folder, manifest, load_small(folder, light), _without_attrs(best), attrs)


def ranked(rows: "pd.DataFrame", most: int) -> "pd.DataFrame":
    """Return at most so many rows in their order, the best first."""
    # lexsort sorts by its last key first; a row without a time is last.
    slowness = np.nan_to_num(-rate(rows), nan=np.inf)
    return rows.iloc[np.lexsort((rows["candidate"].to_numpy(), slowness, rows["reject"].to_numpy() != 0))[:most]]


@dataclass(frozen=True)
class Cloud:
    """Feasible plans of one job by step time and memory."""

    front: "pd.DataFrame"  # with all columns, the fastest first
    others: "pd.DataFrame"  # some of the others, with all columns
    number: int  # of feasible plans of the job within the range


def cloud(rows: RankedRows, row: Any) -> Cloud:
    """Return the plans of the job and hardware of `row`, up to twice its step time, and their Pareto front."""
    job = rows.alike(row, rows.settings)
    near = job.loc[(job["step_time_s"] <= _NEAR * row["step_time_s"]).to_numpy()]
    front = pareto(near, "step_time_s", "peak_bytes")
    front = front.loc[~front.duplicated(["step_time_s", "peak_bytes"]).to_numpy()]
    rest = near.index.difference(front.index).to_numpy()
    # Chosen at random: an even stride would interfere with the order of the enumeration.
    drawn = rest if len(rest) <= MOST_POINTS else np.random.default_rng(0).choice(rest, MOST_POINTS, replace=False)
    return Cloud(rows.whole(front), rows.whole(near.loc[np.sort(drawn)]), len(near))
