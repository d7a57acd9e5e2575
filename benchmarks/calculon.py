"""The space of Calculon (Isaev et al., SC23) for GPT-3 175B on 512 A100 as a subset of dsx's, and the seconds it takes.

    python benchmarks/calculon.py [--write docs/performance.md]

calculon.yaml is the subset. It is swept twice in one process, from the file to the kept rows; the first run compiles.
"""

import argparse
import time
from pathlib import Path

from sections import table, write_section

import dsx
from dsx.config.sweep_file import load_sweep
from dsx.results.set_columns import MENTIONED

_SPEC = Path(__file__).parent / "calculon.yaml"
# A choice of Calculon's search, and what it is in dsx: a column, a what-if, or nothing.
CHOICES = (
    ("tensor, pipeline and data parallelism", "`tp`, `pp`, `dp`"),
    ("network of each of these axes", "`tp_nvs`, `pp_nvs`, `dp_nvs`: how many members share a fast domain"),
    ("microbatch size", "`microbatch_size`"),
    ("pipeline interleaving", "`vpp`"),
    (
        "recomputation: none, attention, full",
        "`recompute`: none, full; fused attention always recomputes",
    ),
    ("optimizer sharding", "`zero_stage`: 0, 1"),
    ("collectives of tensor parallelism: all-reduce, or gathers and scatters", "`strategy`: 1d-no-sp, 1d"),
    ("the same with sends of a neighbour", "not in dsx"),
    ("gathers of sequence parallelism again in the backward", "always (the layer definition says so)"),
    ("overlap of tensor parallelism: none, ring, pipe", "what-if on `assumptions.tp_overlap`: three values"),
    ("overlap of the reduction", "what-if on `assumptions.dp_overlap`: two values"),
    ("fused activations", "not a choice: kernels of a layer definition are fused"),
    ("offload of optimizer and activations", "`offload`: none, optimizer, activations, both"),
    ("offload of weights", "not in dsx"),
)


def main() -> None:
    """Sweep the subset, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    file = parser.parse_args().write
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        found = dsx.sweep(_SPEC, watch=lambda *progress: None)
        seconds.append(time.perf_counter() - start)
    points = load_sweep(_SPEC, MENTIONED).what_if.points
    text = table(("Calculon", "dsx"), CHOICES) + "\n"
    counts = (
        ("Calculon: as reported, and at its measured speed", "13,200,000", "about 21 core-hours"),
        (
            f"dsx, {found.candidates // len(points):,} plans at {len(points)} what-if points",
            f"{found.candidates:,}",
            f"{seconds[1]:.2f} s, first run {seconds[0]:.1f} s",
        ),
    )
    text += table(("", "configurations", "time of all"), counts, numbers=2)
    if file is None:
        print(text)
    else:
        write_section(file, "calculon", text)


if __name__ == "__main__":
    main()
