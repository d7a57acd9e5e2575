"""The comparisons of the NEST paper that dsx reproduces: claims, and the instances of its artifact.

    python benchmarks/nest.py [--write docs/partition.md]

For each instance in tests/data/partition, on the paper's network for it, with 64 to 1,024 devices, the script finds
three plans: the best plan of `dsx partition --instance`; the network-agnostic plan, which is the best if every level of
the network were the innermost one, priced with its cut on the true network; and the best plan with an even cut. dsx
prices them all. Every instance is run as in the artifact (no optimizer state, no ZeRO, recomputation as in its file)
and with the defaults of dsx (Adam, any ZeRO stage, with and without recomputation). It takes about a minute.
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

from dsx.cost.collectives import Linear
from dsx.layer_table.instance import joining_level, path_bandwidth, read_instance, read_network, transfer_s
from dsx.layer_table.pipelines import (
    OPTIMIZER_FACTORS,
    STAGES,
    PartitionProblem,
    Pipelines,
    pipelines,
    priced,
    problem_of,
)
from dsx.layer_table.solver import TablePlan, solve

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "partition"
DEVICES = (64, 128, 256, 512, 1024)
_SHOWN = 256  # devices of the printed plans
_SAME = 1e-9  # relative difference below which times count as equal


class Claim(NamedTuple):
    """A claim about the paper's comparisons."""

    text: str
    source: str
    instances: str  # a part of the names of the instances that dsx runs; empty if there are none
    reason: str = ""  # why dsx does not run it


_PAPER, _ARTIFACT = "the paper", "a run of its artifact"
_BASELINES = "the plans of the baselines are constants in the artifact, not parts of an instance"
_PER_LINK = (
    "the artifact counts a transfer beyond a node twice, and sends all bytes of an all-reduce through every level"
)
CLAIMS = (
    Claim("1.59x over manual plans, on average", _PAPER, "", _BASELINES),
    Claim(
        "1.24x over manual plans, with their stages priced first to last; the artifact has them last to first",
        _ARTIFACT,
        "",
        _BASELINES,
    ),
    Claim("1.19x over the plans of Phaze, on average", _PAPER, "", _BASELINES),
    Claim(
        "1.04x over the plans of Phaze, with their stages priced first to last; the artifact has them last to first",
        _ARTIFACT,
        "",
        _BASELINES,
    ),
    Claim("No gain over a search without the network on any point of the TPUv4 fat tree", _ARTIFACT, "_tpuv4_"),
    Claim(
        "1.03x to 1.43x over a search without the network on the H100 spine-leaf, links priced as the artifact does",
        _ARTIFACT,
        "",
        _PER_LINK,
    ),
    Claim(
        "1.08x over a search without the network for Llama-3 70B on the H100 spine-leaf, links priced as dsx does (128 "
        "and 256 devices)",
        _ARTIFACT,
        "",
        "the instance is not in this repository",
    ),
    Claim(
        "1.00x over a search without the network for BERT-large on the H100 spine-leaf, links priced as dsx does",
        _ARTIFACT,
        "bertlarge_h100",
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """An instance on a number of devices: step times in seconds, None if nothing fits."""

    instance: str
    as_artifact: bool
    devices: int
    aware: float | None
    agnostic: float | None
    even: float | None
    plan: str

    def loss(self, way: str) -> float | None:
        """Return how much longer a step is than that of the aware plan, as a share."""
        seconds = getattr(self, way)
        return None if seconds is None or self.aware is None else seconds / self.aware - 1.0


def main() -> None:
    """Run all instances, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into the section of this document")
    path = parser.parse_args().write
    text = report(list(rows()))
    if path:
        write_section(path, "nest", text)
    else:
        print(text, end="")


def rows() -> Iterator[Row]:
    """Yield the row of every instance, as in the artifact and with the defaults of dsx, on every number of devices."""
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
    aware, agnostic = solve(problem), solve(replace(problem, hierarchy=flat))
    found = Row(
        instance=file.stem,
        as_artifact=as_artifact,
        devices=devices,
        aware=aware and aware.step_time_s,
        agnostic=agnostic and price(problem, agnostic),
        even=best_even(problem),
        plan="no plan fits" if aware is None else _text(aware),
    )
    # The price here equals that of the search, and no plan is better than that of the search.
    assert aware is None or abs(price(problem, aware) / aware.step_time_s - 1.0) < _SAME
    assert all((loss := found.loss(way)) is None or loss > -_SAME for way in ("agnostic", "even"))
    return found


def price(problem: PartitionProblem, plan: TablePlan) -> float:
    """Return the step time of a plan on the network of a problem, whichever network it was found for."""
    width = next(index for index, each in enumerate(problem.widths) if each.width == plan.width)
    columns = (width, plan.recompute, plan.zero_stage, len(plan.stages), plan.num_replicas)
    pipeline = priced(problem, *(np.array([value]) for value in columns))
    return float(step_s(problem, pipeline, np.array([stage.num_layers for stage in plan.stages]))[0])


def best_even(problem: PartitionProblem) -> float | None:
    """Return the least step time of all plans that divide their layers, after the first, as evenly as possible."""
    found = pipelines(problem)
    best = np.inf
    for stages in range(1, problem.num_layers):
        sizes = np.diff(np.arange(stages + 1) * (problem.num_layers - 1) // stages)
        sizes[0] += 1
        for width in range(len(problem.widths)):
            rows = np.flatnonzero((found.num_stages == stages) & (found.width == width))
            if len(rows):
                best = min(best, step_s(problem, found.rows(rows), sizes).min())
    return float(best) if np.isfinite(best) else None


def step_s(problem: PartitionProblem, found: Pipelines, sizes: np.ndarray) -> np.ndarray:
    """Return [C] step times of pipelines of one width, whose stages have `sizes` [S] layers.

    Infinite if a stage does not fit. This is the cost of docs/partition.md, stage by stage.
    """
    width = problem.widths[found.width[0]]
    chain, bounds = width.chain, np.cumsum([0, *sizes])
    begin, stop, from_end = bounds[:-1], bounds[1:], np.arange(len(sizes), 0, -1)

    def by_stage(column: np.ndarray) -> np.ndarray:
        return np.add.reduceat(column, begin)

    devices = width.devices_per_stage * np.arange(len(sizes) + 1)
    with jax.enable_x64(True):
        # Link s joins stage s with the previous one; stages are numbered from the end.
        level = np.asarray(joining_level(devices[:-1], devices[1:], problem.hierarchy))
        bandwidth = np.asarray(path_bandwidth(problem.hierarchy))[level]
        latency = problem.hierarchy.latency[level]
        received = np.asarray(transfer_s(chain.cut_bytes[begin], latency[from_end - 1], bandwidth[from_end - 1]))
        sent = np.asarray(transfer_s(chain.cut_bytes[stop], latency[from_end - 2], bandwidth[from_end - 2]))
    parameters, saved = by_stage(chain.parameter_bytes), by_stage(chain.activation_bytes)
    recomputed = found.recomputed[:, None]
    load = by_stage(chain.forward_s) * (1 + recomputed) + by_stage(chain.backward_s) + received + sent
    load = load + Linear(*(term[:, None] for term in found.per_microbatch))(parameters)
    stash = np.where(recomputed > 0, chain.cut_bytes[begin], saved)
    in_flight = np.minimum(from_end, found.num_microbatches[:, None])
    memory = found.states[:, None] * parameters + saved + (in_flight - 1) * stash
    seconds = load.max(axis=1) * found.bottlenecks + found.per_step(parameters.max())
    return np.where((memory <= problem.most_bytes).all(axis=1), seconds, np.inf)


def report(found: list[Row]) -> str:
    """Return the claims, and the rows of all instances."""
    claims = [(claim.text, claim.source, _result(found, claim)) for claim in CLAIMS]
    groups: dict[tuple[str, bool], list[Row]] = {}
    for row in found:
        groups.setdefault((row.instance, row.as_artifact), []).append(row)
    lines = [
        (
            name,
            "artifact" if as_artifact else "dsx",
            next(row.plan for row in group if row.devices == _SHOWN),
            _range(group, "agnostic"),
            _range(group, "even"),
        )
        for (name, as_artifact), group in groups.items()
    ]
    head = ("instance", "run as", f"best plan on {_SHOWN} devices", "network-agnostic, %", "even, %")
    return table(("claim", "source", "dsx"), claims) + "\n" + _BETWEEN + "\n" + table(head, lines, 2)


_BETWEEN = """\
The last columns say how much longer a step of the network-agnostic plan, and of the best even plan, takes than a step
of the best plan: the smallest and the largest value over 64, 128, 256, 512 and 1,024 devices. Run as "artifact" means
no optimizer state, no ZeRO, and recomputation as in the instance; "dsx" means Adam, any ZeRO stage, with and without
recomputation.
"""


def _result(found: list[Row], claim: Claim) -> str:
    """Return the step of network-agnostic plans over that of the best, for the instances of a claim."""
    if not claim.instances:
        return f"not run: {claim.reason}"
    texts = []
    for as_artifact, title in ((True, "as the artifact"), (False, "as dsx")):
        rows = [row for row in found if claim.instances in row.instance and row.as_artifact == as_artifact]
        ratios = [1.0 + loss for row in rows if (loss := row.loss("agnostic")) is not None]
        texts.append(
            f"{title} runs it, {_between(f'{min(ratios):.2f}x', f'{max(ratios):.2f}x')} ({len(ratios)} points)"
        )
    return "; ".join(texts)


def _range(group: list[Row], way: str) -> str:
    shares = [100 * max(loss, 0.0) for row in group if (loss := row.loss(way)) is not None]  # below zero is rounding
    return _between(f"{min(shares):.1f}", f"{max(shares):.1f}") if len(shares) == len(group) else "some do not fit"


def _between(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _text(plan: TablePlan) -> str:
    stages = f"{len(plan.stages)} stage{'s' * (len(plan.stages) > 1)} x {plan.num_replicas} replicas"
    return f"{stages}, width {plan.width}, ZeRO {plan.zero_stage}{', recomputed' * plan.recompute}"


if __name__ == "__main__":
    main()
