"""What of the NEST paper's comparisons dsx finds again: claims, and the instances of the artifact run again.

    python benchmarks/nest.py [--write docs/partition.md]

Of each instance in tests/data/partition, on the paper's network for it, with 64 to 1,024 devices: the best plan of
`dsx partition --instance`; the best plan of the same search for a network of which every level is the innermost one,
priced on the true network with its cut; and the best plan of all whose cut is even. All are priced by the cost of
dsx. Every instance is run as the artifact runs it (no optimizer state, no ZeRO, recomputation as its file says) and as
dsx does by default (Adam, any ZeRO stage, with and without recomputation). It takes about a minute.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from sections import table, write_section

from dsx.cost.protocols import Linear
from dsx.layer_table.from_instance import problem_of
from dsx.layer_table.instance import read_instance
from dsx.layer_table.network_levels import read_network
from dsx.layer_table.partition_problem import PartitionProblem, Pipelines, pipelines, priced
from dsx.layer_table.ring import joining_level, path_bandwidth, transfer_s
from dsx.layer_table.segments import OPTIMIZER_FACTORS, STAGES
from dsx.layer_table.solver import Partition, solve

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "partition"
DEVICES = (64, 128, 256, 512, 1024)
_SHOWN = 256  # devices of the plans that are printed
_SAME = 1e-9  # relative difference of times that are the same


class Claim(NamedTuple):
    """What is said of the paper's comparisons."""

    text: str
    said_by: str
    instances: str  # those that dsx runs again have this in their name; empty where there are none
    reason: str = ""  # why not all of it is run again


_PAPER, _AGAIN = "the paper", "a run of its artifact"
_BASELINES = "the plans of the baselines are constants in the artifact, and no part of an instance"
_PER_LINK = (
    "the artifact counts a transfer beyond a node twice, and sends all bytes of an all-reduce through every level"
)
CLAIMS = (
    Claim("1.59x over manual plans, on average", _PAPER, "", _BASELINES),
    Claim(
        "1.24x over manual plans, with the stages of these priced first to last; the artifact has them last to first",
        _AGAIN,
        "",
        _BASELINES,
    ),
    Claim("1.19x over the plans of Phaze, on average", _PAPER, "", _BASELINES),
    Claim(
        "1.04x over the plans of Phaze, with the stages of these priced first to last; the artifact has them last to "
        "first",
        _AGAIN,
        "",
        _BASELINES,
    ),
    Claim("No gain over a search without the network on any point of the TPUv4 fat tree", _AGAIN, "_tpuv4_"),
    Claim(
        "1.03x to 1.43x over a search without the network on the H100 spine-leaf, links priced as the artifact does",
        _AGAIN,
        "",
        _PER_LINK,
    ),
    Claim(
        "1.08x over a search without the network for Llama-3 70B on the H100 spine-leaf, links priced as dsx does (128 "
        "and 256 devices)",
        _AGAIN,
        "",
        "the instance is not here",
    ),
    Claim(
        "1.00x over a search without the network for BERT-large on the H100 spine-leaf, links priced as dsx does",
        _AGAIN,
        "bertlarge_h100",
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """An instance on some devices: step times in seconds, None where nothing fits."""

    instance: str
    as_artifact: bool
    devices: int
    aware: float | None
    blind: float | None
    even: float | None
    plan: str

    def loss(self, way: str) -> float | None:
        """Return by how much longer a step is than that of the aware plan, as a share."""
        seconds = getattr(self, way)
        return None if seconds is None or self.aware is None else seconds / self.aware - 1.0


def main() -> None:
    """Run all instances, and print or write what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put it between the markers of this document")
    path = parser.parse_args().write
    text = report(list(rows()))
    if path:
        write_section(path, "nest", text)
    else:
        print(text, end="")


def rows() -> Iterator[Row]:
    """Yield the row of every instance, in both settings, on every number of devices."""
    for file in sorted(DATA.glob("*_mbs*.json")):
        given = json.loads(file.read_text(encoding="utf-8"))
        for as_artifact in (True, False):
            for devices in DEVICES:
                row = run(file, given["setup"], given["activation_recompute"], as_artifact, devices)
                print(f"{row.instance} {devices}: {row.plan}", file=sys.stderr, flush=True)
                yield row


def run(file: Path, network: str, recomputes: bool, as_artifact: bool, devices: int) -> Row:
    """Return the row of an instance."""
    problem = problem_of(
        read_instance(str(file)),
        read_network(f"{DATA / 'networks.json'}:{network}", devices),
        OPTIMIZER_FACTORS["none" if as_artifact else "adam"],
        (0,) if as_artifact else STAGES,
        (recomputes,) if as_artifact else (False, True),
    )
    levels = problem.hierarchy
    flat = replace(
        levels,
        bandwidth=np.full_like(levels.bandwidth, levels.bandwidth[0]),
        latency=np.full_like(levels.latency, levels.latency[0]),
    )
    aware, blind = solve(problem), solve(replace(problem, hierarchy=flat))
    found = Row(
        instance=file.stem,
        as_artifact=as_artifact,
        devices=devices,
        aware=aware and aware.step_time_s,
        blind=blind and price(problem, blind),
        even=best_even(problem),
        plan="no plan fits" if aware is None else _text(aware),
    )
    # What is priced here is what the search prices, and nothing is better than its plan.
    assert aware is None or abs(price(problem, aware) / aware.step_time_s - 1.0) < _SAME
    assert all((loss := found.loss(way)) is None or loss > -_SAME for way in ("blind", "even"))
    return found


def price(problem: PartitionProblem, plan: Partition) -> float:
    """Return the step time of a plan on the network of a problem, whatever it was made for."""
    width = next(index for index, one in enumerate(problem.widths) if one.width == plan.width)
    columns = (width, plan.recompute, plan.zero_stage, len(plan.stages), plan.num_replicas)
    pipeline = priced(problem, *(np.array([value]) for value in columns))
    return float(step_s(problem, pipeline, np.array([stage.num_layers for stage in plan.stages]))[0])


def best_even(problem: PartitionProblem) -> float | None:
    """Return the least step time of all plans whose layers, the first one aside, are cut as evenly as they go."""
    found = pipelines(problem)
    best = np.inf
    for stages in range(1, problem.num_layers):
        sizes = np.diff(np.arange(stages + 1) * (problem.num_layers - 1) // stages)
        sizes[0] += 1
        for width in range(len(problem.widths)):
            some = np.flatnonzero((found.num_stages == stages) & (found.width == width))
            if len(some):
                best = min(best, step_s(problem, found.rows(some), sizes).min())
    return float(best) if np.isfinite(best) else None


def step_s(problem: PartitionProblem, found: Pipelines, sizes: np.ndarray) -> np.ndarray:
    """Return [C] step times of pipelines of one width and as many stages as `sizes` has layers for, as [S].

    Infinite where a stage does not fit. It is the cost of docs/partition.md, stage by stage.
    """
    width = problem.widths[found.width[0]]
    chain, ends = width.chain, np.cumsum([0, *sizes])
    begin, stop, from_end = ends[:-1], ends[1:], np.arange(len(sizes), 0, -1)

    def held(column: np.ndarray) -> np.ndarray:
        return np.add.reduceat(column, begin)

    devices = width.devices_per_stage * np.arange(len(sizes) + 1)
    with jax.enable_x64(True):
        # Link s joins stage s with the one in front of it; stages are numbered from the end.
        level = np.asarray(joining_level(devices[:-1], devices[1:], problem.hierarchy))
        bandwidth = np.asarray(path_bandwidth(problem.hierarchy))[level]
        latency = problem.hierarchy.latency[level]
        front = np.asarray(transfer_s(chain.cut_bytes[begin], latency[from_end - 1], bandwidth[from_end - 1]))
        behind = np.asarray(transfer_s(chain.cut_bytes[stop], latency[from_end - 2], bandwidth[from_end - 2]))
    parameters, saved = held(chain.parameter_bytes), held(chain.activation_bytes)
    again = found.recomputed[:, None]
    load = held(chain.forward_s) * (1 + again) + held(chain.backward_s) + front + behind
    load = load + Linear(*(term[:, None] for term in found.per_microbatch))(parameters)
    stash = np.where(again > 0, chain.cut_bytes[begin], saved)
    flying = np.minimum(from_end, found.num_microbatches[:, None])
    memory = found.states[:, None] * parameters + saved + (flying - 1) * stash
    seconds = load.max(axis=1) * found.bottlenecks + found.per_step(parameters.max())
    return np.where((memory <= problem.most_bytes).all(axis=1), seconds, np.inf)


def report(found: list[Row]) -> str:
    """Return the claims, and the rows of all instances."""
    claims = [(claim.text, claim.said_by, _run_again(found, claim)) for claim in CLAIMS]
    groups: dict[tuple[str, bool], list[Row]] = {}
    for row in found:
        groups.setdefault((row.instance, row.as_artifact), []).append(row)
    lines = [
        (
            name,
            "artifact" if as_artifact else "dsx",
            next(row.plan for row in group if row.devices == _SHOWN),
            _range(group, "blind"),
            _range(group, "even"),
        )
        for (name, as_artifact), group in groups.items()
    ]
    head = ("instance", "run as", f"best plan on {_SHOWN} devices", "network-agnostic, %", "even, %")
    return table(("claim", "of", "dsx"), claims) + "\n" + _BETWEEN + "\n" + table(head, lines, 2)


_BETWEEN = """\
By how much a step of the network-agnostic plan, and of the best even one, is longer than that of the best plan; the
least and the most of 64, 128, 256, 512 and 1,024 devices. As the artifact runs it: no optimizer state, no ZeRO,
recomputation as the instance says. As dsx does: Adam, any ZeRO stage, with and without recomputation.
"""


def _run_again(found: list[Row], claim: Claim) -> str:
    """Return the step of network-agnostic plans over that of the best, for the instances of a claim."""
    if not claim.instances:
        return f"not run again: {claim.reason}"
    texts = []
    for as_artifact, title in ((True, "as the artifact"), (False, "as dsx")):
        rows = [row for row in found if claim.instances in row.instance and row.as_artifact == as_artifact]
        ratios = [1.0 + loss for row in rows if (loss := row.loss("blind")) is not None]
        texts.append(
            f"{title} runs it, {_between(f'{min(ratios):.2f}x', f'{max(ratios):.2f}x')} ({len(ratios)} points)"
        )
    return "; ".join(texts)


def _range(group: list[Row], way: str) -> str:
    shares = [100 * max(loss, 0.0) for row in group if (loss := row.loss(way)) is not None]  # below zero is rounding
    return _between(f"{min(shares):.1f}", f"{max(shares):.1f}") if len(shares) == len(group) else "some do not fit"


def _between(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _text(plan: Partition) -> str:
    stages = f"{len(plan.stages)} stage{'s' * (len(plan.stages) > 1)} x {plan.num_replicas} replicas"
    return f"{stages}, width {plan.width}, ZeRO {plan.zero_stage}{', recomputed' * plan.recompute}"


if __name__ == "__main__":
    main()
