"""The plans of one case, a model on a cluster: network-aware, network-agnostic, and with even cuts.

A network-agnostic plan is searched on the same devices with another network. It keeps the result of that search: all
degrees, the microbatch and the cut. The search does not decide the placement of ranks, since all placements are equal
there; the plan gets the best placement on the true network, which favours it.
"""

from dataclasses import dataclass, replace

import numpy as np

from dsx.notation.model import parameters
from dsx.plans.enumerate import Arrays
from dsx.plans.layer_layout import LAYOUT, starts
from dsx.plans.rules import EVEN, OPTIMAL
from dsx.pricing.cuts import cost_columns, price_cuts
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows
from dsx.search.spaces import Space
from dsx.search.sweep import search_of
from dsx.verbs.job import load_inputs, split_overrides

GPUS, MANY_GPUS, LARGE = 256, 1024, 100e9  # models of more parameters than LARGE have MANY_GPUS
ASSUMPTIONS = "default"
PARTS = {
    "compute_s": "compute", "memory_s": "kernels bound by memory", "tp_comm_s": "tensor parallelism",
    "cp_comm_s": "context parallelism", "ep_comm_s": "expert parallelism", "pp_comm_s": "sends between stages",
    "dp_comm_s": "data parallelism", "bubble_s": "bubble", "recompute_s": "recomputation", "optimizer_s": "optimizer",
}  # fmt: skip
WAYS_OF_CASE = ("flat", "free", "even", "recut")
_KEPT = ("tp", "tp2", "cp", "ep", "pp", "dp", "microbatch_size", "panels")
_PLACED = ("tp", "tp2", "cp", "ep", "pp", "dp")
# Of each choice the usual value, so that plans differ in degrees, placement and cut alone.
_FIXED = {
    "schedule": ["1f1b"], "vpp": [1], "zero_stage": [1], "zero_replicas": [1], "recompute": ["none"],
    "stored_layers": [0], "offload": ["none"],
}  # fmt: skip
_CHEAP = 1e-12  # divides bandwidths and multiplies latencies, for a network that costs nothing
_SAME = 1e-9  # relative difference below which times count as equal


@dataclass(frozen=True, slots=True)
class Plan:
    """A priced plan: its degrees by column, its cut, and its costs in seconds."""

    degrees: dict[str, int]
    stage_layers: tuple[int, ...]  # of each stage; empty for an even cut
    costs: dict[str, float]

    @property
    def step_s(self) -> float:
        """The step time."""
        return self.costs["step_time_s"]


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a cluster. A plan is None if it does not fit, or cannot be cut that way."""

    model: str
    cluster: str
    num_gpus: int
    aware: Plan | None = None
    flat: Plan | None = None  # the best if all GPUs share one fast domain, priced on the true network
    free: Plan | None = None  # the best if the network costs nothing, priced on the true network
    even: Plan | None = None  # the best with an even cut
    recut: Plan | None = None  # the aware plan with a cut that is as even as possible

    def loss(self, way: str) -> float | None:
        """Return how much longer the step of a plan is than that of the aware plan, as a share."""
        plan: Plan | None = getattr(self, way)
        return None if plan is None or self.aware is None else plan.step_s / self.aware.step_s - 1.0


class Model:
    """A model, and the number of GPUs that it is priced on."""

    def __init__(self, name: str) -> None:
        self.name = name
        problem = _problem(name, "h100-nvs8")
        self.parameters = parameters(problem.models[0])
        self.num_gpus = MANY_GPUS if self.parameters > LARGE else GPUS

    def on(self, cluster: str) -> Case:
        """Return the case of a cluster. Raises AssertionError if the aware plan is not the best of all."""
        problem = _problem(self.name, cluster)
        table = _Table(problem, self.num_gpus)
        aware = table.best()
        if aware is None:
            return Case(self.name, cluster, self.num_gpus)
        flat = _problem(self.name, cluster, self.num_gpus)
        agnostic = [table.like(_Table(other, self.num_gpus).best()) for other in (flat, _free(flat))]
        even = _Table(replace(problem, partition=EVEN), self.num_gpus).best()
        case = Case(self.name, cluster, self.num_gpus, aware, *agnostic, even, table.evenly(aware))
        for way in WAYS_OF_CASE:
            loss = case.loss(way)
            if loss is not None and loss < -_SAME:
                raise AssertionError(f"{self.name} on {cluster}: the {way} plan is {-loss:.3g} better than the best")
        return case


class _Table:
    """A problem with one number of GPUs and a batch of one sequence per GPU, and the costs of its layers."""

    def __init__(self, problem: Problem, num_gpus: int) -> None:
        self.problem, self.num_gpus = problem, num_gpus
        self.space = Space(problem, [num_gpus], [num_gpus])
        self.table = self.space.table(problem)

    def best(self) -> Plan | None:
        """Return the fastest plan that fits."""
        if not self.space.size:
            return None
        rows, counts = search_of(self.problem, self.space, self.table).best(1)
        return _plan(rows, 0) if counts.feasible else None

    def like(self, plan: Plan | None) -> Plan | None:
        """Return a plan from another network, with its cut and the fastest placement here; None if it does not fit."""
        return None if plan is None else self._fastest({name: plan.degrees[name] for name in _KEPT}, plan.stage_layers)

    def evenly(self, plan: Plan) -> Plan | None:
        """Return a plan with its body layers divided over the stages as evenly as possible.

        Embedding and head are on the first and the last stage.
        """
        stages = plan.degrees["pp"]
        if stages > self.problem.num_layers:
            return None
        stack = self.problem.workload.stack
        sizes = np.diff(np.arange(stages + 1) * self.problem.num_layers // stages)
        sizes[0] += len(stack.first)
        sizes[-1] += len(stack.last)
        return self._fastest(plan.degrees, tuple(sizes.tolist()))

    def _fastest(self, degrees: dict[str, int], stage_layers: tuple[int, ...]) -> Plan | None:
        positions, choices = self.space.blocks.rows(0, self.space.size)
        keys = {name: column[positions] for name, column in self.space.keys.items()}
        alike = np.flatnonzero(np.logical_and.reduce([(keys | choices)[name] == n for name, n in degrees.items()]))
        positions, choices = positions[alike], {name: column[alike] for name, column in choices.items()}
        num_layers, boundaries = int(self.problem.workload.stack.num_layers), starts(stage_layers)
        cut = [*boundaries, *[num_layers] * (num_layers + 1 - len(boundaries))]
        cuts = np.repeat([cut], len(alike), axis=0)
        priced = price_cuts(self.problem, self.table, Rows(np.zeros_like(positions), positions, choices), cuts)
        costs = cost_columns(priced.costs)
        margin = self.problem.assumptions_spec.memory_margin
        fits = costs["peak_bytes"] <= self.problem.cluster.device.hbm_capacity / (1 + margin)
        if not fits.any():
            return None
        row = int(np.argmin(np.where(fits, costs["step_time_s"], np.inf)))
        keys = {name: column[alike] for name, column in keys.items()}
        return _plan(keys | choices | costs | {LAYOUT: np.diff(cuts, axis=1)}, row)


def _plan(rows: Arrays, row: int) -> Plan:
    names = (*_KEPT, *(f"{axis}_nvs" for axis in _PLACED))
    degrees = {name: int(rows[name][row]) for name in names}
    costs = {name: float(rows[name][row]) for name in ("step_time_s", "peak_bytes", *PARTS)}
    layers = rows[LAYOUT][row].tolist() if LAYOUT in rows else []
    return Plan(degrees, tuple(filter(None, layers)), costs)


def _problem(model: str, cluster: str, gpus_of_domain: int | None = None) -> Problem:
    """Return the problem of a model; `gpus_of_domain` replaces the network by one switched fast domain of that size."""
    inputs = load_inputs(model, cluster, ASSUMPTIONS, split_overrides(()))
    if gpus_of_domain is not None:
        domain = inputs.cluster.network.nvs.model_copy(update={"size": gpus_of_domain, "mesh": False})
        network = inputs.cluster.network.model_copy(update={"nvs": domain, "topology": None})
        inputs = replace(inputs, cluster=inputs.cluster.model_copy(update={"network": network}))
    return inputs.problem([], None, partition=OPTIMAL).searching(_FIXED)


def _free(problem: Problem) -> Problem:
    """Return the problem on a network that costs nothing; the tiers are leaves, so compiled code is reused."""
    network = problem.hardware.network
    tiers = tuple(
        replace(tier, bandwidth=tier.bandwidth / _CHEAP, latency=tier.latency * _CHEAP) for tier in network.tiers
    )
    return replace(problem, hardware=replace(problem.hardware, network=replace(network, tiers=tiers)))
