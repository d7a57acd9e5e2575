"""The graphs that are placed, and the devices.

Reference graphs are files of a folder: they are not in the repository. The steps of `examples/steps` are traced, with
the times of an H100.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsx.config.documents import load_json
from dsx.config.operator_files import read_operator_graph
from dsx.placement.jaxpr import from_jax
from dsx.placement.op_graph import OpGraph, graph_of, joined
from dsx.placement.servers import DeviceLink, Devices
from dsx.placement.steps import load_step

STEPS = Path(__file__).resolve().parents[2] / "examples" / "steps"
EXAMPLES = ("alexnet.py:alexnet", "vgg.py:vgg16", "bert.py:bert_base", "fnet.py:fnet", "gpt2.py:gpt2")
REFERENCE = ("alexnet_tf", "vgg16_tf", "bert_base_jax")
BANDWIDTH = 25e9  # bytes/s between any two servers, one GPU each, no latency
COUNTS = (2, 4, 6)  # of devices

Row = dict[str, Any]  # what is measured of a case, as plain data


@dataclass(frozen=True)
class Case:
    """A graph by its name."""

    name: str
    graph: OpGraph
    reference: bool
    named: OpGraph | None = None  # the graph with the names of operators as ids, if its file has names

    @property
    def largest_part(self) -> OpGraph:
        """The largest connected part, which is what the sources reduce."""
        part = np.array(joined(self.graph.num_ops, self.graph.edges))
        return self.graph.only(np.flatnonzero(part == np.bincount(part).argmax()).tolist())


def on(count: int, bandwidth: float = BANDWIDTH) -> Devices:
    """Return equal devices with the same bandwidth between any two."""
    return Devices((1.0,) * count, (), (DeviceLink(bandwidth),))


def cases(folder: Path | None, names: Sequence[str]) -> list[Case]:
    """Return the reference graphs that a folder has, and the examples; those with some names alone if any are given."""
    return [case for name in _names(folder) if not names or name in names for case in [_case(folder, name)]]


def _names(folder: Path | None) -> Iterator[str]:
    yield from (name for name in REFERENCE if folder is not None and (folder / f"{name}.json").is_file())
    yield from EXAMPLES


def _case(folder: Path | None, name: str) -> Case:
    if name in EXAMPLES:
        step, shapes = load_step(str(STEPS / name))
        graph = from_jax(step, *shapes)
        return Case(name, graph, False, graph)
    assert folder is not None
    file = str(folder / f"{name}.json")
    graph = graph_of(read_operator_graph(file))
    nodes = load_json("operator graph", file).data["nodes"]
    names = tuple(node["name"] for node in nodes if "name" in node)
    return Case(name, graph, True, replace(graph, ids=names) if len(names) == graph.num_ops else None)


def us(seconds: float | None) -> str:
    """Return whole microseconds, or a dash for none."""
    return "-" if seconds is None else f"{1e6 * seconds:,.0f}"


def percent(share: float, sign: str = "+") -> str:
    """Return a share in percent."""
    return f"{100 * share:{sign}.1f}"
