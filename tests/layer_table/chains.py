"""Random chains on random machines, as the referee and as dsx describe them."""

from math import ceil
from random import Random

import numpy as np
from oracles import partition as oracle

from dsx.layer_table.instance import Hierarchy, LayerTable, TableChain
from dsx.layer_table.pipelines import PartitionProblem

ALL = {"zero_stages": (0, 1, 2, 3), "recompute": (False, True)}


def random_case(seed: int, most_layers: int = 9) -> tuple[dict, dict, dict, int]:
    """Chain, network, job and devices per stage of the referee; some memories are short, some chains even."""
    draw = Random(seed)
    num_layers = draw.choice([draw.randint(1, most_layers), most_layers - 1, most_layers])
    kinds = [
        (draw.uniform(0.2, 2.0), draw.uniform(0.2, 4.0), int(10 ** draw.uniform(5, 8)), int(10 ** draw.uniform(5, 8)))
        for _ in range(draw.choice([1, 2, num_layers, num_layers]))
    ]
    layers = [draw.choice(kinds) for _ in range(num_layers)]
    if draw.random() < 0.5:
        # Those that take long have few parameters, so that no cut divides both evenly.
        layers = [(f, b, int(1e7 / (f + b) ** 2), saved) for f, b, _, saved in layers]
    if draw.random() < 0.3:
        layers[0] = (0.0, 0.0, draw.randint(1, 60) * 10**6, 10**5)  # an embedding
    forward, backward, parameters, saved = (list(column) for column in zip(*layers, strict=True))
    inner = [draw.choice([0, 10**6, draw.randint(1, 10**7)]) for _ in range(num_layers - 1)]
    chain = {"forward": forward, "backward": backward, "parameters": parameters, "saved": saved, "cut": [0, *inner, 0]}
    scale = draw.choice([1e6, 1e7, 3e7, 1e8])  # from a network that dominates to one that hardly matters
    network = {
        "devices": draw.choice([(2, 2, 2), (4, 2, 2), (3, 2, 2), (2, 3, 3)]),
        "bandwidth": [scale * draw.uniform(0.2, 8.0) for _ in range(3)],
        "latency": [draw.choice([0.0, 1e-3, 0.1]) * draw.random() for _ in range(3)],
    }
    per_stage = draw.choice([1, 1, 2])
    job = {"batch": draw.choice([1, 2, 3, 4, 6, 8, 12, 16]), "optimizer": draw.choice([0, 6]), "memory": 1e12}
    if draw.random() < 0.8:
        # As much as some plan needs, so that others do not fit.
        every = list(oracle.plans(chain, network, job, per_stage))
        needed = [oracle.stages_of(chain, network, job, draw.choice(every))[1] for _ in range(draw.choice([1, 8, 100]))]
        job["memory"] = ceil(min(needed) * draw.choice([0.7, 1.0, 1.2, 1.5]))
    return chain, network, job, per_stage


def problem_of(chain: dict, network: dict, job: dict, per_stage: int, **choices: object) -> PartitionProblem:
    """The same for dsx."""
    columns = (chain[name] for name in ("forward", "backward", "parameters", "saved", "cut"))
    return PartitionProblem(
        widths=(LayerTable(per_stage, per_stage, TableChain(*(np.array(column, np.float64) for column in columns))),),
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


def tense_case(seed: int) -> tuple[dict, dict, dict, int]:
    """As `random_case`: no stage can hold all layers, and even loads are rarely even parameters."""
    draw = Random(seed)
    num_layers = draw.randint(6, 9)
    times = [draw.uniform(0.3, 1.5) for _ in range(num_layers)]
    parameters = [int(10 ** draw.uniform(5.5, 7.5)) for _ in range(num_layers)]
    chain = {
        "forward": times,
        "backward": times,
        "parameters": parameters,
        "saved": [10**5] * num_layers,
        "cut": [0, *[10**4] * (num_layers - 1), 0],
    }
    network = {"devices": (2, 3, 4), "bandwidth": [draw.choice([1e6, 3e6, 1e7])] * 3, "latency": [1e-3, 1e-3, 1e-3]}
    job = {"batch": draw.choice([4, 6, 8]), "optimizer": 0}
    job["memory"] = 2 * sum(parameters) * draw.uniform(0.4, 0.9)
    return chain, network, job, 1
