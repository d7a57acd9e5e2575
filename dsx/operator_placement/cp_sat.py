"""One run of CP-SAT: a time limit, a stop from outside, and Ctrl-C.

The solver runs in a thread of its own, so that Ctrl-C reaches Python at once and what was found so far is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_WORKERS = 8  # different searches; each alone is much weaker, even where cores are fewer
_POLL_S = 0.02


@dataclass(frozen=True)
class Answer:
    """What a run found."""

    solver: "cp_model.CpSolver"  # with the values of variables if `found`
    found: bool
    infeasible: bool
    stopped: bool  # by `stop` or Ctrl-C

    @property
    def bound(self) -> int:
        """The least value that an integer objective may have."""
        # Of an integer objective the bound is a whole number, in a float.
        return round(self.solver.best_objective_bound)


def run(
    model: "cp_model.CpModel",
    seconds: float,
    gap: float = 0.0,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Answer:
    """Return the best of some seconds; stops early once within `gap`, if `stop` says so, and at Ctrl-C."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(seconds, 0.0)
    solver.parameters.num_search_workers = _WORKERS
    solver.parameters.relative_gap_limit = gap
    solver.parameters.random_seed = seed
    solver.parameters.catch_sigint_signal = False  # its handler would replace that of Python for good
    statuses: list[object] = []
    thread = Thread(target=lambda: statuses.append(solver.solve(model)))
    thread.start()
    stopped = False
    while thread.is_alive():
        try:
            thread.join(_POLL_S)
            stopped = stopped or stop()
            if stopped:
                solver.stop_search()
        except KeyboardInterrupt:
            stopped = True
    if not statuses or statuses[0] == cp_model.MODEL_INVALID:
        raise AssertionError(f"the program is invalid: {model.validate()}")
    found = statuses[0] in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Answer(solver, found, statuses[0] == cp_model.INFEASIBLE, stopped)
