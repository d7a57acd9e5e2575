"""Random plans that a framework runs, as requests for launch files, under assumptions that differ."""

from collections.abc import Iterator
from functools import cache

import numpy as np
from laws.spaces import SYSTEM
from validation.cases import cluster_spec

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.model_file import ModelSpec, has_experts
from dsx.launching.hosts import shares_of
from dsx.launching.request import Request, architecture_of, run_of
from dsx.plans.choices import BY_NAME, CODES, PLAN_COLUMNS
from dsx.plans.frameworks import read_framework
from dsx.plans.plan import Plan
from dsx.pricing.cuts import candidate_columns, column_names
from dsx.pricing.problem import ProblemOptions, make_problem
from dsx.search.spaces import Space

DEVICE = load_cluster("h100-nvs8").device
DENSE = {"e": 1024, "h": 8, "g": 4, "k": 128, "f": 2048, "v": 50000}
EXPERTS = {"x": 8, "topk": 2, "fx": 512, "capacity_percent": 100}
GATED = {"kind": "transformer", "options": ["rotary", "gated"]}
ROUTED = {"kind": "transformer", "options": ["rotary"], "ffn": "experts"}
BODIES = {"dense": (DENSE, [GATED | {"count": 12}])}
BODIES["experts"] = (DENSE | EXPERTS, [GATED | {"count": 4}, ROUTED | {"count": 8}])
SEARCHED = {name: choice.values for name, choice in BY_NAME.items() if choice.searched and choice.values}
ASSUMED = load_assumptions("uncalibrated")
# What else decides what is set.
VARIED = (
    {},
    {"gradient_bytes": 4, "dispatcher": "once_per_copy"},
    {"linear_dtype": "fp8", "tp_overlap": 0.0, "ep_overlap": 0.0},
    {"dp_overlap": 0.0, "pp_overlap": 0.0, "cross_entropy_bytes": 12},
)


@cache
def problem_of(body: str, framework: str):
    sizes, layers = BODIES[body]
    ends = [{"kind": "embedding"}, *layers, {"kind": "head"}]
    stated = {"name": body, "source": "a test", "default_sequence_length": 2048, "layers": ends, "dimensions": sizes}
    spec = ModelSpec.model_validate(stated)
    limits = read_framework(framework)
    files = (spec, cluster_spec(SYSTEM), ASSUMED)
    problem = make_problem(*files, limits.strategies(has_experts(sizes)), ProblemOptions(framework=limits))
    free = {"zero_replicas": [1, 2], "stored_layers": [0, 1, 2], "vpp": [1, 2, 3]}
    problem = problem.searching({**SEARCHED, **free})
    return problem, Space(problem, [12, 16], [48])


def requests(body: str, framework: str, count: int, seed: int) -> Iterator[Request]:
    """Yield about so many requests; some have a layout of their own."""
    problem, space = problem_of(body, framework)
    draw = np.random.default_rng(seed)
    some = np.sort(draw.choice(space.size, count))
    positions, choices = space.blocks.rows_at(some)
    columns, names = candidate_columns(problem, space.keys, positions, choices), column_names(problem)
    for row in range(count):
        plan = {name: int(columns[name][row]) for name in PLAN_COLUMNS}
        plan |= {name: names[name][plan[name]] for name in ("strategy", *CODES)}
        order = [axis for axis in plan["order"].split("-") if axis != "ep"]
        plan |= {f"{axis}_nvs": share for axis, share in (shares_of(plan, order) or {}).items()}
        if 1 < plan["pp"] * plan["vpp"] <= 12 and not plan["stored_layers"] and draw.random() < 0.5:
            plan["stage_layers"] = layout(draw, plan["pp"] * plan["vpp"])
        model = problem.models[problem.strategies.index(plan["strategy"])]
        assumed = ASSUMED.model_copy(update=VARIED[row % len(VARIED)])
        run = run_of(Plan(plan), model, assumed, DEVICE)
        yield Request(run, architecture_of(problem.model, assumed), "a plan", 8)


def layout(draw: np.random.Generator, chunks: int) -> tuple[int, ...]:
    """Twelve layers in so many chunks, embedding and head beside them."""
    sizes = draw.multinomial(12 - chunks, np.ones(chunks) / chunks) + 1
    sizes = [int(size) for size in sizes]
    sizes[0] += 1
    sizes[-1] += 1
    return tuple(sizes)
