"""The data of the claims: sweep files that `dsx sweep` prices and draws, and single plans.

Every sweep is priced in a new folder, so that no set of an older dsx is used, and in float64, so that the printed
digits are the same on every machine.
"""

import subprocess
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pandas as pd
import yaml

import dsx
from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import load_model
from dsx.plans.plan import Setting
from dsx.pricing.one_plan import PricedPlan, price_plan, stated_plan
from dsx.pricing.problem import make_problem

ROOT = Path(__file__).resolve().parents[2]
ASSUMPTIONS = "paper-2410.00273"


class Runs:
    """Result sets by the names of their sweep files, each priced at its first use."""

    def __init__(self, folder: Path, pictures: Path) -> None:
        self._folder, self._pictures = folder, pictures
        self._frames: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._frames:
            self._frames[name] = self._priced(name)
        return self._frames[name]

    def _priced(self, name: str) -> pd.DataFrame:
        file, folder, picture = ROOT / "sweeps" / f"{name}.yaml", self._folder / name, self._pictures / f"{name}.png"
        command = [str(Path(sys.executable).with_name("dsx")), "sweep", str(file), "-o", str(folder)]
        command += ["--set", "sweep.precision=float64"]
        drawn = "plot" in yaml.safe_load(file.read_text(encoding="utf-8"))
        print(f"pricing {file.name}", file=sys.stderr)
        done = subprocess.run(command + ["--plot", str(picture)] * drawn, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        return dsx.load(folder)

    @cached_property
    def _assumptions(self):
        return load_assumptions(ASSUMPTIONS)

    def evaluate(
        self, model: str, cluster: str, strategy: str, settings: Sequence[str], num_gpus: int, global_batch_size: int
    ) -> PricedPlan:
        """Price one plan, even one that a search would not try."""
        problem = make_problem(load_model(model), load_cluster(cluster), self._assumptions, [strategy])
        plan = stated_plan(problem, [*map(Setting.of, settings)], num_gpus, global_batch_size)
        return price_plan(problem, plan)


def where(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows in which the columns have these values."""
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows


def fitting(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that fit."""
    return rows[rows["reject"] == 0]


def fastest(rows: pd.DataFrame, **values: object) -> pd.Series:
    """Return the fastest of the rows in which the columns have these values, whether it fits or not."""
    found = where(rows, **values)
    return found.iloc[found["step_time_s"].argmin()]


def fastest_by(rows: pd.DataFrame, column: str) -> dict[int, pd.Series]:
    """Return the fastest row for each value of a column, in ascending order, whether it fits or not."""
    return {int(value): fastest(rows, **{column: value}) for value in sorted(rows[column].unique())}


def plan(row: pd.Series, *columns: str) -> tuple[int, ...]:
    """Return some of a row's choices."""
    return tuple(int(row[column]) for column in columns)
