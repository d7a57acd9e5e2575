"""Placement of the single operators of a training step on the GPUs of a small cluster.

Operators that do not depend on each other run at once on several devices, and tensors between devices take time. The
package reduces a graph (`op_graph`), searches placements (`solve`), bounds the shortest step of the graph as it is
(`timetable`, `exact`), and replays its answer where transfers share links (`timetable`). Other packages use the names
of this module alone.

Sources: Efficient Device Placement for Distributed DNN Training (IEEE ICC 2025), called QuickP; and the thesis Joint
Optimization of Algebraic Transformation, Device Placement, and Network Bandwidth Allocation (2025).
"""

from dsx.placement.cp_program import SolverEffort
from dsx.placement.jaxpr import from_jax
from dsx.placement.op_graph import Id, OpGraph, graph_of
from dsx.placement.open_vswitch import write_ovs
from dsx.placement.servers import DeviceLink, Devices, ServerNetwork, devices_of
from dsx.placement.solve import Placed, place
from dsx.placement.steps import from_layers, load_step, measure
from dsx.placement.timetable import Contended
from dsx.placement.torch_fx import from_fx
from dsx.placement.traced import DEFAULT_CLUSTER

__all__ = [
    "DEFAULT_CLUSTER",
    "Contended",
    "DeviceLink",
    "Devices",
    "Id",
    "OpGraph",
    "Placed",
    "ServerNetwork",
    "SolverEffort",
    "devices_of",
    "from_fx",
    "from_jax",
    "from_layers",
    "graph_of",
    "load_step",
    "measure",
    "place",
    "write_ovs",
]
