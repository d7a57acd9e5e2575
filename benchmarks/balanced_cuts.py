"""How far the best of all cuts is below the cut that a plan with several chunks per stage gets.

    python benchmarks/balanced_cuts.py [--write docs/partition.md]

Small pipelines of the layers of Llama-3 8B and DeepSeek-V3: every cut of every plan is priced, each chunk with a layer
at least. Memory has no limit, since memory may rule out the balanced cut where another one fits.
"""

import argparse
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
from sections import table, write_section

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import load_model
from dsx.plans.rules import OPTIMAL
from dsx.pricing.cuts import price_best_cuts, price_cuts
from dsx.pricing.problem import Problem, ProblemOptions, make_problem
from dsx.pricing.row_costs import Rows
from dsx.search.spaces import Space, at_points

# The layers between embedding and head by position in the model file, and how many of each.
CHAINS = {
    "llama-3-8b": [(n,) for n in (4, 6, 7, 10)],
    "deepseek-v3": [(1, 5), (3, 5), (3, 7)],
}
SHAPES = ((2, 2), (2, 3), (2, 4), (3, 2), (4, 2))  # stages, chunks per stage
BATCHES = (12, 24, 96)


def problem(model: str, counts: tuple[int, ...]) -> Problem:
    """Return the problem of a model with other numbers of layers, on GPUs without a limit of memory."""
    spec = load_model(model)
    first, *body, last = spec.layers
    layers = [entry.model_copy(update={"count": count}) for entry, count in zip(body, counts, strict=True)]
    short = spec.model_copy(update={"layers": [first, *layers, last]})
    made = make_problem(
        short, load_cluster("h100-nvs8"), load_assumptions("default"), ["1d"], ProblemOptions(partition=OPTIMAL)
    )
    fixed = {"zero_stage": [1], "recompute": ["none"], "schedule": ["1f1b"]}
    return at_points(made.searching(fixed), {"device.hbm_capacity": np.array([1e18])})


def excesses(made: Problem, shape: tuple[int, int]) -> Iterator[float]:
    """Yield, for each plan of a shape, the seconds of its cut over those of the best of all cuts, less 1."""
    pp, vpp = shape
    num_layers = int(made.workload.stack.num_layers)
    chunks = pp * vpp
    if chunks > num_layers:
        return
    fix = {"pp": [pp], "vpp": [vpp], "microbatch_size": [1], "cp": [1]}
    made = made.searching({"vpp": [vpp]})
    space = Space(made, [8 * pp], BATCHES, fix)
    if not space.size:
        return
    positions, choices = space.blocks.rows(0, space.size)
    table_of_keys = space.table(made)
    rows = Rows(np.zeros_like(positions), positions, choices)
    found = price_best_cuts(made, table_of_keys, rows).costs.step_time_s
    inner = np.array([[0, *cut] for cut in combinations(range(1, num_layers), chunks - 1)])
    cuts = np.pad(inner, [(0, 0), (0, num_layers + 1 - chunks)], constant_values=num_layers)
    for row, seconds in enumerate(found):
        every = rows.take(np.full(len(cuts), row))
        yield seconds / price_cuts(made, table_of_keys, every, cuts).costs.step_time_s.min() - 1.0


def main() -> None:
    """Price all cuts, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into the section of this document")
    options = parser.parse_args()
    rows = []
    for model, chains in CHAINS.items():
        problems = [problem(model, counts) for counts in chains]
        found = np.array([one for made in problems for shape in SHAPES for one in excesses(made, shape)])
        figures = found.mean(), np.quantile(found, 0.9), found.max()
        rows.append((model, f"{len(found):,}", f"{np.mean(found < 1e-9):.0%}", *(f"{one:.1%}" for one in figures)))
    head = ("layers of", "plans", "optimal", "mean excess", "90 % are below", "worst")
    text = table(head, rows, 5)
    print(text, end="")
    if options.write:
        write_section(options.write, "balanced_cuts", text)


if __name__ == "__main__":
    main()
