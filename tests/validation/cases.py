"""Problems of dsx from the plain models and systems that the oracle takes, and the names of both for one plan."""

import json
from functools import cache
from pathlib import Path

import numpy as np
from oracles.formulas import system_from_inputs
from verbs.small import model_of

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import ClusterSpec
from dsx.config.model_file import ModelSpec
from dsx.pricing.cuts import priced_rows
from dsx.pricing.problem import make_problem
from dsx.pricing.row_costs import Rows
from dsx.search.spaces import Space

PAPER = "paper-2410.00273"
STRATEGIES = ("1d", "2d", "summa")
DATA = Path(__file__).resolve().parents[1] / "data"
INPUTS, POINTS, OPTIMA = (
    json.loads((DATA / name).read_text()) for name in ("inputs.json", "points.json", "optima.json")
)

# Column of dsx: name of the oracle. n2 is another axis in each strategy.
_COLUMNS = {
    "tp": "n1", "pp": "np", "dp": "nd", "microbatch_size": "bm", "panels": "nb",
    "tp_nvs": "t1", "pp_nvs": "tp", "dp_nvs": "td",
}  # fmt: skip
_SECOND_AXIS = {"2d": {"cp": "n2", "cp_nvs": "t2"}, "summa": {"tp2": "n2", "tp2_nvs": "t2"}}

CONFIG = ("n1", "n2", "np", "nd", "bm", "nb", "t1", "t2", "tp", "td")


def columns_of(strategy):
    """{column of dsx: name of the oracle} of one strategy."""
    return _COLUMNS | _SECOND_AXIS.get(strategy, {})


def model_spec(model):
    """The model l, e, h, f, depth of the oracle: multi-head attention, head dimension e / h."""
    return ModelSpec.model_validate(
        model_of(
            [{"kind": "transformer", "count": model["depth"]}],
            {name: model[name] for name in "ehf"} | {"g": model["h"], "k": model["e"] // model["h"]},
            name="case",
            length=model["l"],
        )
    )


def cluster_spec(system):
    def tier(name):
        return {"bandwidth": f"{system[f'{name}_bandwidth']!r} B/s", "latency": f"{system[f'{name}_latency']!r} s"}

    return ClusterSpec.model_validate(
        {
            "name": "case",
            "device": {
                "name": "case",
                "matrix_flops": f"{system['matrix_flops']!r} FLOP/s",
                "vector_flops": f"{system['vector_flops']!r} FLOP/s",
                "hbm_bandwidth": f"{system['hbm_bandwidth']!r} B/s",
                "hbm_capacity": f"{system['hbm_capacity']!r} B",
                "host_bandwidth": f"{system['host_bandwidth']!r} B/s" if "host_bandwidth" in system else None,
            },
            "network": {"nvs": tier("fast") | {"size": system["fast_size"]}, "net": tier("slow")},
            "node": {"host_memory_bandwidth": f"{system['node_bandwidth']!r} B/s"}
            if "node_bandwidth" in system
            else system.get("node", {}),
        }
    )


def problem_for(model, system, *strategies, assumptions=PAPER):
    """The problem of a model and a system of the oracle."""
    efficiency = system.get("fast_efficiency", 0.7)
    assert efficiency == system.get("slow_efficiency", 0.7), "dsx has one efficiency of the network"
    spec = load_assumptions(assumptions)
    if assumptions == PAPER:
        spec = spec.model_copy(update={"nvs_efficiency": efficiency, "net_efficiency": efficiency})
    return make_problem(model_spec(model), cluster_spec(system), spec, strategies)


def settings_of(strategy, config):
    """A configuration of the oracle as a plan of dsx."""
    found = []
    for column, name in columns_of(strategy).items():
        axis = column.removesuffix("_nvs")
        found.append(f"nvs.{axis}={config[name]}" if axis != column else f"{column}={config[name]}")
    return found


def config_of(reference):
    """A configuration of points.json or optima.json in the names of the oracle."""
    return {
        "nb": reference.get("nb", 1),
        **{name: reference[name] for name in ("n1", "n2", "np", "nd", "bm")},
        "t1": reference["nNVS1"],
        "t2": reference["nNVS2"],
        "tp": reference["nNVSp"],
        "td": reference["nNVSd"],
    }


@cache
def reference_problem(model, gpu, fast_size, strategy):
    """The problem of a model and a system of inputs.json."""
    return problem_for(INPUTS["models"][model], system_from_inputs(INPUTS["systems"][gpu], fast_size), strategy)


def priced_space(problem, num_gpus, global_batch_size):
    """All candidates of a space and their costs in float64, by column."""
    return priced(problem, Space(problem, num_gpus, global_batch_size))


def priced(problem, space):
    """All candidates of a space at the first hardware point and their costs in float64, by column."""
    positions, choices = space.blocks.rows(0, space.size)
    table = space.table(problem)
    rows = priced_rows(problem, space.keys, table, Rows(np.zeros_like(positions), positions, choices))
    del rows["point"]
    return rows


def configs_of(strategy, rows):
    """Rows of dsx as tuples of the oracle's n1, n2, np, nd, bm, nb, t1, t2, tp, td."""
    column = {ours: theirs for theirs, ours in columns_of(strategy).items()}
    ones = np.ones_like(rows["tp"])
    return list(zip(*((rows[column[n]] if n in column else ones).tolist() for n in CONFIG), strict=True))


def case_id(case):
    return "-".join(str(case[name]) for name in ("model", "tp_strategy", "gpu", "nvs", "num_gpus") if name in case)
