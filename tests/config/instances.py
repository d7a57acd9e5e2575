"""A small instance and its networks, to be written as files."""

import copy
import json


def small() -> dict:
    """Three layers in two widths and two core configurations, of which `b` counts."""
    rows = [[0, 2.0, 4.0, 100, 10], [-1, 0.0, 0.0, 50, 5], [1, 3.0, 6.0, 200, 20]]
    edges = [[-1, 0, 8], [-1, 1, 1], [0, 1, 16]]
    return {
        "tag": "small",
        "microbatches_in_batch": 8,
        "max_memory_bytes": 10_000,
        "devices_per_stage": {"1": 1, "2": 2},
        "layer_columns": ["id", "fw_latency", "bw_latency", "param_bytes", "activation_bytes"],
        "layers": {"b": {"2": rows, "1": copy.deepcopy(rows)}, "a": {"1": [[0, 1.0, 1.0, 1, 1]]}},
        "edge_columns": ["src", "dst", "bytes"],
        "edges": {"1": edges, "2": copy.deepcopy(edges)},
        "time_unit_s": 0.001,
    }


def networks() -> dict:
    """Two levels for 4 or 8 devices."""
    return {
        "fast": {
            "bandwidth_GiBps": [100, 10],
            "latency_s": [1e-6, 1e-5],
            "devices_per_level": {"4": [2, 2], "8": [4, 2]},
        },
        "slow": {"bandwidth_GiBps": [1], "latency_s": [0], "devices_per_level": {"8": [8]}},
    }


def changed(document: dict, *path: object, to: object) -> dict:
    """The document with one value changed; REMOVED takes it out."""
    *above, last = path
    part = document
    for key in above:
        part = part[key]
    if to is REMOVED:
        del part[last]
    else:
        part[last] = to
    return document


REMOVED = object()


def write(path, document) -> str:
    """Write a JSON file; returns its path as text."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)
