"""Fit the network's fields of an assumption set to measured collectives, and report the errors.

    python benchmarks/collectives.py [--write docs/validation.md]

The measurements are in data/validation/nccl.csv: NCCL on nodes with four A100 and four NICs. Their GPUs have direct
links, of which NCCL reaches less than behind NVSwitch, so their `nvs_efficiency` is the fitted one. The fit is by least
squares on the logarithm of the time, with a soft threshold; JAX computes the derivatives. "Held out" predicts each
number of nodes by a fit to the others. With --write the section between the markers is replaced.
"""

import argparse
import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares
from sections import put_section

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import cluster_from_spec, load_cluster
from dsx.cost.collectives import collective
from dsx.cost.context import Assumptions, assumptions_from_spec
from dsx.cost.groups import group
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER

ROOT = Path(__file__).resolve().parent.parent
CLUSTER = "a100-40-nvs4"
KINDS = {"allgather": ALL_GATHER, "reducescatter": REDUCE_SCATTER, "allreduce": ALL_REDUCE}

# The fitted fields, with their bounds. In the protocol for small messages every word carries a flag, so it reaches at
# most half of the bandwidth of a link. `eager_nvs_latency` and `tree_bandwidth` are NCCL's own numbers.
BOUNDS = {
    "nvs_efficiency": (0.6, 0.9),  # NCCL's tests reach 230 of 300 GB/s on eight A100, 360 of 450 on H100
    "net_efficiency": (0.6, 0.95),
    "relay": (0.0, 1.0),
    "call_latency": (0.0, 50e-6),
    "bulk_latency": (1.0, 10.0),
    "eager_net_latency": (0.2, 3.0),
    "eager_bandwidth": (0.02, 0.5),
    "tree_latency": (1.0, 4.0),
}
OF_NODES = ("nvs_efficiency",)  # fields in which these nodes differ from those that the set is for
SMALLEST = 2**20  # bytes; smaller messages have a quarter of the weight in the fit, and do not count in the errors
THRESHOLD = 0.1  # of the logarithm; larger residuals count linearly
RANGES = {"1 to 8 MB": (20, 23), "8 to 64 MB": (23, 26), "64 MB to 1 GB": (26, 30), "from 1 GB": (30, 99)}


class Measurements(NamedTuple):
    """Measured collectives, [R] each."""

    kind: np.ndarray
    nodes: np.ndarray
    per_node: np.ndarray  # GPUs
    bytes: np.ndarray
    seconds: np.ndarray


def measurements(path: Path = ROOT / "data" / "validation" / "nccl.csv") -> Measurements:
    """Return the measured times."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = ("num_nodes", "gpus_per_node", "message_bytes", "time_us")
    numbers = np.array([[float(row[name]) for name in columns] for row in rows]).T
    return Measurements(np.array([row["collective"] for row in rows]), *numbers[:3], numbers[3] * 1e-6)


def predicted(measured: Measurements, assumptions: Assumptions) -> jax.Array:
    """Return the predicted seconds of every measurement."""
    network = cluster_from_spec(load_cluster(CLUSTER)).network
    members = group(jnp.asarray(measured.nodes * measured.per_node), jnp.asarray(measured.per_node))
    seconds = jnp.zeros(len(measured.bytes))
    for name, kind in KINDS.items():
        times = collective(kind, members, network, assumptions)(jnp.asarray(measured.bytes))
        seconds = jnp.where(jnp.asarray(measured.kind == name), times, seconds)
    return seconds


def fitted(measured: Measurements, start: Assumptions) -> dict[str, float]:
    """Return the values of the fields in `BOUNDS` that fit the measurements best, starting from those of `start`."""
    low, high = np.array(list(BOUNDS.values())).T
    weight = np.where(measured.bytes >= SMALLEST, 1.0, 0.25)

    def residuals(share: jax.Array) -> jax.Array:
        values = dict(zip(BOUNDS, low + share * (high - low), strict=True))
        return weight * jnp.log(predicted(measured, replace(start, **values)) / measured.seconds)

    first = np.clip((np.array([getattr(start, name) for name in BOUNDS]) - low) / (high - low), 0.01, 0.99)
    compiled, slopes = jax.jit(residuals), jax.jit(jax.jacfwd(residuals))
    found = least_squares(
        lambda x: np.asarray(compiled(x)),
        first,
        jac=lambda x: np.asarray(slopes(x)),
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=THRESHOLD,
    )
    return dict(zip(BOUNDS, (low + found.x * (high - low)).tolist(), strict=True))


def of_nodes(own: Assumptions, values: Mapping[str, float]) -> Assumptions:
    """Return the set with the fitted values of the fields in which these nodes differ."""
    return replace(own, **{name: values[name] for name in OF_NODES})


def held_out(measured: Measurements, start: Assumptions) -> np.ndarray:
    """Return the seconds of every measurement, predicted by a fit to those on other numbers of nodes."""
    seconds = np.zeros(len(measured.bytes))
    for nodes in np.unique(measured.nodes):
        here = measured.nodes == nodes
        others = Measurements(*(column[~here] for column in measured))
        left_out = Measurements(*(column[here] for column in measured))
        seconds[here] = predicted(left_out, replace(start, **fitted(others, start)))
    return seconds


def errors(measured: Measurements, seconds: np.ndarray) -> np.ndarray:
    """Return the absolute errors as shares of the measured times, [R]."""
    return np.abs(np.asarray(seconds) / measured.seconds - 1.0)


def medians(measured: Measurements, seconds: np.ndarray) -> dict[str, list[float]]:
    """Return {collective: median error in each of `RANGES` and over them, and the mean}; the last row is all."""
    error, power = errors(measured, seconds), np.log2(measured.bytes)
    table = {}
    for name in (*KINDS, "all"):
        of = (power >= 20) & ((measured.kind == name) | (name == "all"))
        inside = [of & (power >= low) & (power < high) for low, high in RANGES.values()]
        table[KINDS.get(name, name)] = [*(float(np.median(error[at])) for at in (*inside, of)), float(error[of].mean())]
    return table


def section(measured: Measurements, own: Assumptions, values: Mapping[str, float], others: np.ndarray) -> str:
    """Return the text between the markers."""
    large = int((measured.bytes >= SMALLEST).sum())
    lines = [
        f"{large} NCCL times of at least 1 MB, on 1 to 256 nodes with one, two or four A100 "
        f"(`data/validation/nccl.csv`), priced on `{CLUSTER}`.",
        f"{len(BOUNDS)} fields are fitted to them by least squares on log time. *Held out* predicts each number of "
        "nodes by a fit to the",
        "others. The other values are those of `default`, but for the efficiency of direct links between GPUs "
        "(`nvs_efficiency`),",
        "which is fitted.",
        "Absolute errors, medians over a range of message sizes:",
        "",
        f"| collective | {' | '.join(RANGES)} | all | mean | held out, all | held out, mean |",
        "|---|" + "--:|" * (len(RANGES) + 4),
    ]
    outside = medians(measured, others)
    error, large_ones = errors(measured, others), measured.bytes >= SMALLEST
    for name, row in medians(measured, np.asarray(predicted(measured, of_nodes(own, values)))).items():
        shown = " | ".join(f"{100 * value:.1f} %" for value in (*row, *outside[name][-2:]))
        lines.append(f"| {name} | {shown} |")
    numbers = [int(nodes) for nodes in np.unique(measured.nodes)]
    lines += [
        "",
        f"| held out, by nodes | {' | '.join(map(str, numbers))} |",
        "|---|" + "--:|" * len(numbers),
        "| median | "
        + " | ".join(f"{100 * np.median(error[large_ones & (measured.nodes == n)]):.1f} %" for n in numbers)
        + " |",
    ]
    lines += ["", "| field | `default` | fitted | bounds |", "|---|--:|--:|---|"]
    lines += [
        f"| `{name}` | {getattr(own, name):.4g} | {value:.4g} | {BOUNDS[name][0]:g} to {BOUNDS[name][1]:g} |"
        for name, value in values.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the network's fields to measured collectives.")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the markers of FILE")
    chosen = parser.parse_args()
    measured = measurements()
    with jax.enable_x64(True):
        own = assumptions_from_spec(load_assumptions("default"))
        text = section(measured, own, fitted(measured, own), held_out(measured, own))
    print(text)
    if chosen.write:
        put_section(chosen.write, "Collectives", "collectives", text)


if __name__ == "__main__":
    main()
