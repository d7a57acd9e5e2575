"""Predict a training step of plain JAX on the local device, with and without measured times of its kernels.

    python benchmarks/measured_step.py [--time-limit "3 min"] [--write docs/validation.md]

The step is that of benchmarks/jax_step.py. The device's peaks are measured (`dsx measure --device`). The kernels are
measured at the shapes of 1, 2 and 4 sequences, and each step is predicted three times: by rooflines alone, by times at
the other numbers of sequences alone, which are interpolated or extrapolated, and by all times. With --write the section
between the markers is replaced.

Other programs on the machine disturb both, so the steps are timed in turn, before and after the kernels, and the median
of the rounds counts.
"""

import argparse
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax_step import Sizes, step, weights_of
from sections import put_section, table

import dsx
from dsx.measuring.array_library import timed

SIZES = Sizes(e=512, h=8, g=4, k=64, f=1536, v=8192, layers=4)
TOKENS = 256
SEQUENCES = (1, 2, 4)
ROUNDS = 4
# Weights, gradients and optimizer state in float32, and a whole step handed to the device at once. The assumption set
# is otherwise as it is: fitted to GPUs.
SETTINGS = {
    "assumptions.activation_bytes": 4,
    "assumptions.weight_bytes": 4,
    "assumptions.gradient_bytes": 4,
    "assumptions.dispatch_latency": "0 us",
    "assumptions.accumulation_traffic_per_parameter": 0,
}
MODEL = {
    "name": "small",
    "source": "the sizes of benchmarks/measured_step.py",
    "default_sequence_length": TOKENS,
    "dimensions": {name: getattr(SIZES, name) for name in "ehgkfv"},
    "layers": [
        {"kind": "embedding"},
        {"kind": "transformer", "options": ["rotary", "gated"], "count": SIZES.layers},
        {"kind": "head"},
    ],
}


class Compared(NamedTuple):
    """One step, measured and predicted, in seconds."""

    sequences: int
    measured_s: tuple[float, ...]  # of each round
    predicted_s: tuple[float, ...]  # by rooflines, with other shapes, with all shapes


def step_s(sequences: int) -> float:
    """Return the seconds of a step."""
    weights = weights_of(SIZES)
    state = weights, (jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights))
    ids = jax.random.randint(jax.random.key(1), (sequences, TOKENS + 1), 0, SIZES.v)

    def call() -> Any:
        nonlocal state
        state = step(SIZES, *state, ids)
        return state

    return timed(call, jax.block_until_ready, warm_ups=2, samples=5).median_s


def predicted_s(cluster: Path, sequences: int, times: Path | None) -> float:
    """Return the predicted seconds of a step."""
    return evaluated(cluster, sequences, times).step_time_s


def evaluated(cluster: Path, sequences: int, times: Path | None) -> dsx.Evaluation:
    """Return the plan of a step on one device: all sequences at once, nothing recomputed."""
    job = dsx.Job(MODEL, cluster, 1, sequences, set=SETTINGS, operator_times=times)
    return dsx.evaluate(job, {"microbatch_size": sequences, "recompute": "none", "zero_stage": 0})


def without_own(times: Path, evaluation: dsx.Evaluation, out: Path) -> Path:
    """Write the rows of a file that are of no kernel of a plan."""
    known = evaluation.to_data()["operator_times"]["kernels"]
    own = {one["line"] for one in known if one["line"] is not None}
    lines = times.read_text(encoding="utf-8").splitlines(keepends=True)
    out.write_text("".join(line for number, line in enumerate(lines, 1) if number not in own), encoding="utf-8")
    return out


def compared(folder: Path, time_limit: str) -> tuple[list[Compared], dsx.Measured]:
    """Measure and predict the step for each number of sequences, with files in a folder."""
    times, cluster = folder / "times.csv", folder / "device.yaml"
    model_settings = {name: value for name, value in SETTINGS.items() if name.endswith("bytes")}
    rounds = [[step_s(sequences) for sequences in SEQUENCES] for _ in range(ROUNDS // 2)]
    found = dsx.measure(MODEL, times, set=model_settings, time_limit=time_limit, library="jax", device=cluster)
    rounds += [[step_s(sequences) for sequences in SEQUENCES] for _ in range(ROUNDS // 2)]
    rows: list[Compared] = []
    for sequences, measured_s in zip(SEQUENCES, zip(*rounds, strict=True), strict=True):
        others = without_own(times, evaluated(cluster, sequences, times), folder / f"without-{sequences}.csv")
        predictions = tuple(predicted_s(cluster, sequences, file) for file in (None, others, times))
        rows.append(Compared(sequences, measured_s, predictions))
    return rows, found


def section(rows: Sequence[Compared], found: dsx.Measured) -> str:
    """Return the text between the markers."""

    def error(predicted: float, row: Compared) -> str:
        return f"{1e3 * predicted:.0f} ms, {100 * (predicted / median(row.measured_s) - 1):+.0f} %"

    lines = [
        f"{SIZES.layers} layers of width {SIZES.e}, {TOKENS} tokens a sequence, in float32, on {found.device} with "
        f"{found.software}. The device's peaks are",
        "measured; the other parameters are those of `default`, for GPUs. "
        f"{len(found.measured)} kernels of this model are measured (tp 1 to 8, 1 to",
        "4 sequences). *Other shapes* leaves out those of the step itself.",
        "",
    ]
    head = ["sequences", "measured", "rounds", "rooflines", "other shapes", "all shapes"]
    cells = [
        [
            f"{row.sequences}",
            f"{1e3 * median(row.measured_s):.0f} ms",
            f"{1e3 * min(row.measured_s):.0f} to {1e3 * max(row.measured_s):.0f} ms",
            *(error(predicted, row) for predicted in row.predicted_s),
        ]
        for row in rows
    ]
    return "\n".join([*lines, ""]) + table(head, cells, numbers=6).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict a step of plain JAX with and without measured kernels.")
    parser.add_argument("--time-limit", default="3 min", metavar="TIME", help="of the measurements of kernels")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of FILE")
    chosen = parser.parse_args()
    logging.getLogger("dsx").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        text = section(*compared(Path(folder), chosen.time_limit))
    print(text)
    if chosen.write:
        put_section(chosen.write, "A step with measured kernels", "measured_step", text)


if __name__ == "__main__":
    main()
