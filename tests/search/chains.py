"""Random chains on random machines, as the referee and as dsx describe them."""

from random import Random

import numpy as np
from oracles import partition as oracle

from dsx.cost.segments import Chain
from dsx.hardware.hierarchy import Hierarchy
from dsx.search.partition_problem import PartitionProblem, Width

ALL = {"zero_stages": (0, 1, 2, 3), "recompute": (False, True)}


def random_case(seed: int, most_layers: int = 9) -> tuple[dict, dict, dict, int]:
    """Chain, network, job and devices per stage of the referee; some memories are short, some chains even."""
    draw = Random(seed)
    num_layers = draw.randint(1, most_layers)
    kinds = [
        (draw.uniform(0.5, 2.0), draw.uniform(0.5, 4.0), draw.randint(1, 40) * 10**6, draw.randint(1, 30) * 10**6)
        for _ in range(draw.choice([1, 2, num_layers]))
    ]
    layers = [draw.choice(kinds) for _ in range(num_layers)]
    if draw.random() < 0.3:
        layers[0] = (0.0, 0.0, draw.randint(1, 60) * 10**6, 10**5)  # an embedding
    forward, backward, parameters, saved = (list(column) for column in zip(*layers, strict=True))
    inner = [draw.choice([0, 10**6, draw.randint(1, 10**7)]) for _ in range(num_layers - 1)]
    chain = {
        "forward": forward,
        "backward": backward,
        "parameters": parameters,
        "saved": saved,
        "cut": [0, *inner, 0],
    }
    scale = draw.choice([1e7, 1e8, 1e9])  # from a network that dominates to one that hardly matters
    network = {
        "devices": draw.choice([(2, 2, 2), (4, 1, 3), (3, 2, 2), (2, 3, 2)]),
        "bandwidth": [scale * draw.uniform(0.2, 8.0) for _ in range(3)],
        "latency": [draw.choice([0.0, 1e-3, 0.1]) * draw.random() for _ in range(3)],
    }
    per_stage = draw.choice([1, 1, 2])
    job = {"batch": draw.randint(1, 16), "optimizer": draw.choice([0, 6]), "memory": 1e12}
    if draw.random() < 0.7:
        # As much as some plan needs, so that others do not fit.
        some = draw.choice(list(oracle.plans(chain, network, job, per_stage)))
        job["memory"] = oracle.stages_of(chain, network, job, some)[1] * draw.choice([0.7, 1.0, 1.0, 1.2])
    return chain, network, job, per_stage


def problem_of(chain: dict, network: dict, job: dict, per_stage: int, **choices: object) -> PartitionProblem:
    """The same for dsx."""
    columns = (chain[name] for name in ("forward", "backward", "parameters", "saved", "cut"))
    return PartitionProblem(
        widths=(Width(per_stage, per_stage, Chain(*(np.array(column, np.float64) for column in columns))),),
        hierarchy=Hierarchy(*(np.array(network[name]) for name in ("devices", "bandwidth", "latency"))),
        num_microbatches=job["batch"],
        device_bytes=job["memory"],
        optimizer_factor=float(job["optimizer"]),
        **(ALL | choices),
    )


def plan_of(made) -> dict:
    """A plan of dsx, as the referee describes it."""
    return {
        "per_stage": made.devices_per_stage,
        "layers": [stage.num_layers for stage in made.stages],
        "replicas": made.num_replicas,
        "zero": made.zero_stage,
        "recompute": made.recompute,
    }
