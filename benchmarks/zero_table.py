"""ZeRO for models that are infeasible without it: the degrees in table 7 of the NEST paper, and the plans of dsx.

    python benchmarks/zero_table.py [--file tests/data/partition/zero_table7.json] [--write docs/partition.md]

The paper divides the state of each stage over a degree of its own, a power of two; the devices of that degree process
no samples of their own. "Memory of dsx" applies this rule with the memory formula of dsx: the lowest degree, and for it
the lowest ZeRO stage, at which one layer fits on the deepest stage of the pipeline. The plan of dsx divides the state
over its replicas, which do process samples, with one ZeRO stage for all. The table has no layer times, so they count as
equal and the network costs nothing: the plan only shows what fits.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sections import table, write_section

from dsx.layer_table.instance import Hierarchy, LayerTable, TableChain
from dsx.layer_table.pipelines import OPTIMIZER_FACTORS, PartitionProblem, state_factor
from dsx.layer_table.solver import TablePlan, solve

FILE = Path(__file__).resolve().parent.parent / "tests" / "data" / "partition" / "zero_table7.json"
MICROBATCHES = 4096  # enough that the deepest stage holds its full stash
LARGEST_DEGREE = 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into the section of this document")
    options = parser.parse_args()
    text = report(json.loads(options.file.read_text(encoding="utf-8")))
    if options.write:
        write_section(options.write, "zero_table", text)
    else:
        print(text, end="")


def report(given: dict[str, Any]) -> str:
    """Return the degrees of all layers, and the plans, as Markdown."""
    rows = []
    for model, kind, optimizer, expected in degrees_of(given):
        row = given[model]
        alone = least_degree(row[kind], row["hbm_bytes"], row["bound"], optimizer)
        same = "yes" if alone == expected else "no"
        rows.append((model, kind, optimizer, _degree(expected), _degree(alone), same))
    plans = []
    for model in models_of(given):
        row = given[model]
        paper, best, without = row["paper"], plan(row, (0, 1, 2, 3)), plan(row, (0,))
        stages, replicas, _ = paper["strategy"]
        found = "no plan fits"
        if best is not None:
            fullest = max(stage.memory_bytes for stage in best.stages)
            found = (
                f"{len(best.stages)} x {best.num_replicas} on {len(best.stages) * best.num_replicas}, ZeRO "
                f"{best.zero_stage}; the fullest holds {fullest / row['hbm_bytes']:.0%}"
            )
        own = f"{stages} x {replicas} on {paper['devices']}"
        plans.append((model, "none fits" if without is None else "one fits", own, found))
    head = ("model", "layer", "optimizer", "the artifact chooses", "memory of dsx", "same")
    stages_by_replicas = ("model", "plans without ZeRO", "the paper's: stages x replicas on devices", "dsx")
    return f"{table(head, rows)}\n{table(stages_by_replicas, plans)}"


def _degree(chosen: list[int] | None) -> str:
    return "not needed" if chosen is None else f"{chosen[0]}, stage {chosen[1]}"


def models_of(given: dict[str, Any]) -> list[str]:
    """Return the models of the table."""
    return [name for name, row in given.items() if "layer" in row]


def degrees_of(given: dict[str, Any]) -> list[tuple[str, str, str, list[int] | None]]:
    """Return (model, layer, optimizer, degree and stage) of every entry; None if ZeRO is not needed."""
    found = [(m, kind, "none", given[m][kind]["expected"]) for m in models_of(given) for kind in ("layer", "embedding")]
    for name, expected in given["if_adam"].items():
        short, kind = name.split("_")
        model = next(name for name in models_of(given) if name.startswith(short))
        found.append((model, kind, "adam", expected))
    return found


def least_degree(layer: dict[str, Any], device_bytes: float, depth: int, optimizer: str) -> list[int] | None:
    """Return the lowest degree, and for it the lowest ZeRO stage, at which a layer fits; None if it fits without."""
    free = device_bytes - layer["A"] - (depth - 1) * layer["stash"]
    for degree in (2**power for power in range(LARGEST_DEGREE.bit_length())):
        for stage in (0,) if degree == 1 else (1, 2, 3):
            with jax.enable_x64(True):
                states = float(state_factor(np.int64(stage), OPTIMIZER_FACTORS[optimizer], np.float64(degree)))
            if states * layer["P"] <= free:
                return None if degree == 1 else [degree, stage]
    raise ValueError(f"no degree up to {LARGEST_DEGREE} is enough")


def plan(row: dict[str, Any], zero_stages: tuple[int, ...]) -> TablePlan | None:
    """Return the plan of the embedding and all layers, recomputed, on the number of devices in the paper."""
    layers = [row["embedding"], *[row["layer"]] * (row["bound"] - 1)]
    parameters, saved = (np.array([layer[name] for layer in layers], np.float64) for name in ("P", "A"))
    cuts = np.array([0, *[row["layer"]["stash"]] * (len(layers) - 1), 0], np.float64)
    chain = TableChain(np.ones(len(layers)), np.ones(len(layers)), parameters, saved, cuts)
    return solve(
        PartitionProblem(
            widths=(LayerTable(1, 1, chain),),
            hierarchy=Hierarchy(np.array([row["paper"]["devices"]]), np.array([1e30]), np.array([0.0])),
            num_microbatches=MICROBATCHES,
            device_bytes=row["hbm_bytes"],
            optimizer_factor=0.0,
            zero_stages=zero_stages,
            recompute=(True,),
        )
    )


if __name__ == "__main__":
    main()
