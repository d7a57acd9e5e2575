"""The validator of schedules and allocations, and what to compare with, which are those of the benchmarks."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # at last, so that it hides no other module

from placing.baselines import mcmc, metis
from placing.other_reductions import by_name, cheapest_into_neighbour, into_only_successor
from placing.validator import excesses, violations

__all__ = ["by_name", "cheapest_into_neighbour", "excesses", "into_only_successor", "mcmc", "metis", "violations"]
