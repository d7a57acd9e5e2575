"""A placement, how good it is, and what else was tried: what a search fills while it goes on."""

from dataclasses import dataclass, field

import numpy as np

from dsx.errors import NothingFeasible
from dsx.operator_placement.bandwidth.network import Network
from dsx.operator_placement.contention import Contended, contended
from dsx.operator_placement.devices import Devices
from dsx.operator_placement.heavy_bound import Bound
from dsx.operator_placement.op_graph import OpGraph
from dsx.operator_placement.reduction import Reduction
from dsx.operator_placement.schedule import Schedule
from dsx.operator_placement.search import Found

_TOUCHING = 1e-6  # a gap that is none


@dataclass(eq=False)
class Placed:
    """A placement, how good it is, and what else was tried. It is filled while the search goes on."""

    graph: OpGraph
    devices: Devices
    network: Network | None
    gap_wanted: float
    found: Found = field(default_factory=Found)
    bound: Bound = field(default_factory=lambda: Bound(0.0, 0))
    mcmc_steps: int = 0
    bandwidth: np.ndarray | None = None  # [S, S] bytes/s from server to server, with a network
    uniform_s: float | None = None  # the makespan with uniform shares of the network
    tree_s: float | None = None  # and with the bandwidth of a network card between any two servers
    reduction: Reduction | None = None  # of the best, or the usual one
    stopped: bool = False  # by the user

    @property
    def schedule(self) -> Schedule:
        """The best schedule; raises NothingFeasible where none was found."""
        if self.found.best is None:
            raise NothingFeasible("no placement was found that fits into memory")
        return self.found.best

    @property
    def gap(self) -> float:
        """How much longer the schedule may be than the shortest, as a share of it."""
        if self.found.best is None:
            return 1.0
        return (self.schedule.makespan_s - self.bound_s) / (self.schedule.makespan_s or 1.0)

    @property
    def bound_s(self) -> float:
        """Seconds that no schedule is below: rounding of sums does not lift it over the best."""
        return min(self.bound.seconds, self.schedule.makespan_s)

    def close(self, gap: float) -> bool:
        """Return whether the best schedule is within a gap of the bound."""
        return self.found.best is not None and self.gap <= max(gap, _TOUCHING)

    def replay(self) -> Contended:
        """Return the replay of the schedule in which transfers share links."""
        total = None if self.network is None else self.network.total
        return contended(self.graph, self.devices, self.schedule, None if self.bandwidth is not None else total)
