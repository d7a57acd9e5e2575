"""The closest public tools on the runs that they publish: their errors as they state them, and those of dsx.

Theirs are quoted, not computed again: dsx was not given their tables of measured kernels, and they were not run.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from error_tables import cell, markdown
from unseen import Unseen

from dsx.runs.predict import PredictedRows
from dsx.runs.table import MeasuredRun

_PREDICTED = re.compile(r"(\w+) predicted ([0-9.]+) ms / ([0-9.]+) GiB")
_BYTES = 2.0**30


@dataclass(frozen=True)
class Quoted:
    """What a tool states of its errors."""

    tool: str
    source_id: str  # of the rows in the run table
    error: float  # mean absolute error of the step time
    said: str  # where, and of what


QUOTED = (
    Quoted("vTrain", "vtrain_single", 0.0837, "MICRO 2024, abstract, from memory of it: one node, kernels profiled"),
    Quoted("Calculon", "korthikanti22", 0.0365, "SC23, from memory of it: mean over Megatron-LM's runs on A100"),
)


def section(runs: Sequence[MeasuredRun], rows: PredictedRows, unseen: Unseen | None) -> str:
    """Return the section on public tools, or nothing if the table has none of their runs."""
    error = rows.predicted_s / rows.measured_s - 1
    without = _by_id(rows, unseen) / rows.measured_s - 1
    memory = rows.predicted_bytes / rows.measured_bytes - 1
    names = np.array(rows.source)
    body: list[list[str]] = []
    for tool, (of_tool, theirs, theirs_memory) in _predictions(runs).items():
        own = of_tool & np.isfinite(error)
        figures = [*_figures(theirs[own] / rows.measured_s[own] - 1), *_figures(error[own]), *_figures(without[own])]
        body.append([f"{tool}, step time: its own table", str(int(own.sum())), *figures])
        known = of_tool & np.isfinite(memory)
        figures = [*_figures(theirs_memory[known] / rows.measured_bytes[known] - 1), *_figures(memory[known])]
        body.append([f"{tool}, memory: its own table", str(int(known.sum())), *figures, "-", "-"])
    for one in QUOTED:
        own = (names == one.source_id) & np.isfinite(error)
        if own.any():
            figures = ["-", cell(one.error), *_figures(error[own]), *_figures(without[own])]
            body.append([f"{one.tool}: {one.said}", str(int(own.sum())), *figures])
    if not body:
        return ""
    header = ["tool", "rows", *(f"{figure}, {of}" for of in ("its own", "dsx", "dsx, source left out") for figure in
              ("median", "mean"))]  # fmt: skip
    return (
        "## The closest public tools\n\nAbsolute errors of the tools on runs that they publish, as they state them, "
        "and of dsx on the rows of these runs in the table. A tool that takes the efficiencies of kernels from "
        "measurements on the machine in question has information that dsx was not given.\n\n" + markdown(header, body)
    )


def _figures(error: np.ndarray) -> list[str]:
    known = np.abs(error[np.isfinite(error)])
    return [cell(float(np.median(known))), cell(float(known.mean()))] if len(known) else ["-", "-"]


def _by_id(rows: PredictedRows, unseen: Unseen | None) -> np.ndarray:
    """Return the [N] seconds of the fits without each row's source; NaN where there are none."""
    known = {}
    if unseen is not None:
        ids = [setup.run.id for setup in unseen.observations.setups]
        known = dict(zip(ids, unseen.without_source_s.tolist(), strict=True))
    return np.array([known.get(name, np.nan) for name in rows.id])


def _predictions(runs: Sequence[MeasuredRun]) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return, by tool whose predictions notes state, which rows, its seconds and its bytes, [N] each."""
    found = [_PREDICTED.search(run.notes or "") for run in runs]
    seconds = np.array([float(one[2]) / 1e3 if one else np.nan for one in found])
    size = np.array([float(one[3]) * _BYTES if one else np.nan for one in found])
    tools = dict.fromkeys(one[1] for one in found if one)
    return {tool: (np.array([bool(one and one[1] == tool) for one in found]), seconds, size) for tool in tools}
