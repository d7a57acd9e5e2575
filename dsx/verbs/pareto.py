"""``dsx pareto``: the Pareto front of a result set."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsx.cost.context import StepCosts
from dsx.cost.interval import StepInterval
from dsx.errors import InputError, file_path
from dsx.progress import remark
from dsx.results.frames import as_plans, column_list, column_of, load_chosen, read_manifest
from dsx.results.frames import pareto as front_of
from dsx.tables.format import hardware_text, quantity, table, whole_plan_text, wrapped
from dsx.text import Data
from dsx.units import format_quantity
from dsx.verbs.arguments import PricedPlans, paragraphs
from dsx.verbs.plot import draw_picture, warn_of_rows_left_out
from dsx.verbs.searched import run_by_none

OBJECTIVES = ("step_time_s", "peak_bytes")


@dataclass(frozen=True, eq=False, repr=False)
class Front(PricedPlans):
    """The plans of a result set that no other plan beats in every objective."""

    objectives: Sequence[str]  # columns; one with a leading minus is maximised
    priced: Sequence[Data]
    infeasible: str = ""  # why the front has no plan; empty if it has one

    def _data(self) -> Data:
        return {"objectives": list(self.objectives), "plans": self._plans_data()}

    def __str__(self) -> str:
        plans, columns = self.priced, [column_of(objective) for objective in self.objectives]
        if not plans:
            return ""
        costs = (*StepCosts.__dataclass_fields__, *StepInterval.__dataclass_fields__)
        settings = [name for name in ("num_gpus", "global_batch_size", "strategy") if name not in columns]
        first = plans[0]["hardware"]
        hardware = [name for name in first if any(plan["hardware"][name] != first[name] for plan in plans)]
        rows: list[list[str]] = []
        for plan in plans:
            values = {name: plan[name] if name in plan else plan["plan"][name] for name in columns}
            numbers = [quantity(name, n) if name in costs else format_quantity(n, "") for name, n in values.items()]
            machine = [hardware_text(name, plan["hardware"][name]) for name in hardware]
            choices = [*(str(plan["plan"][name]) for name in settings), whole_plan_text(plan["plan"])]
            rows.append([*numbers, *machine, *choices])
        header = [*columns, *hardware, *settings, "plan"]
        text = [header.index(name) for name in ("cluster", "strategy", "plan") if name in header]
        return paragraphs([table(header, rows, text=text), wrapped(run_by_none(self.plans))])


def front(folder: str | Path, objectives: str | Sequence[str] = OBJECTIVES, plot: str | Path | None = None) -> Front:
    """Find the plans that no other plan beats in every objective.

    The plans are those of a result set; `pareto` takes a DataFrame.

    Args:
        folder: the folder of the result set.
        objectives: columns to minimise; one with a leading minus is maximised.
        plot: also draw the first two objectives into this file.

    Raises StoreError if the set cannot be read, UnknownNameError for an unknown column.
    """
    folder, chosen = file_path("folder", folder), column_list("objectives", objectives)
    picture = None if plot is None else file_path("plot", plot)
    if plot is not None and len(chosen) == 1:
        single = f"{chosen[0]} is one: add another, as in --objective mfu"
        raise InputError(f"--plot {plot} draws two objectives, and {single}")
    names = [column_of(objective) for objective in chosen]
    plans = as_plans(load_chosen(folder, ["reject", *names], lambda frame: front_of(frame, *chosen)))
    if picture is not None:
        x, y, *more = chosen
        draw_picture(folder, {"kind": "front", "x": [x], "y": y}, picture)
        if more:
            remark(f"{plot} is the front of {x} and {y} alone")
    else:
        warn_of_rows_left_out(folder, chosen)
    why = ""
    if not plans:
        rows = read_manifest(folder).num_rows
        why = f"no front: none of the {rows} rows of {folder} is feasible and has a number in {' and '.join(names)}"
    return Front(chosen, plans, why)
