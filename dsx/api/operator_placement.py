"""Where the operators of a step go, and how good that is."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsx.api.answer import Answer
from dsx.display.operator_placement_text import operator_placement_text
from dsx.errors import InputError
from dsx.operator_placement.contention import Contended
from dsx.operator_placement.op_graph import Id
from dsx.operator_placement.open_vswitch.files import write_ovs
from dsx.operator_placement.placed import Placed
from dsx.operator_placement.schedule import op_seconds
from dsx.remarks import remark

if TYPE_CHECKING:
    import pandas as pd

_BASELINES = ("heft", "metis", "mcmc", "single_device")


@dataclass(frozen=True, eq=False, repr=False)
class OperatorPlacement(Answer):
    """The device and the start of each operator, and a bound below every placement of the graph."""

    placed: Placed
    name: str  # of the graph, for people
    scheme: str | None  # of bandwidth: uniform or joint; None without network cards

    @property
    def makespan_s(self) -> float:
        """Seconds of the step."""
        return self.placed.schedule.makespan_s

    @property
    def bound_s(self) -> float:
        """No placement of the graph, as it is given, takes fewer seconds."""
        return self.placed.bound_s

    @property
    def gap(self) -> float:
        """The share of the step by which it may be longer than the shortest."""
        return self.placed.gap

    @property
    def placement(self) -> dict[Id, int]:
        """The device of each operator."""
        return dict(zip(self.placed.graph.ids, self.placed.schedule.device.tolist(), strict=True))

    @property
    def start_s(self) -> dict[Id, float]:
        """The start of each operator, in seconds."""
        return dict(zip(self.placed.graph.ids, self.placed.schedule.start_s.tolist(), strict=True))

    @property
    def baselines(self) -> dict[str, float | None]:
        """Seconds of the step by other ways to place it; None for what cannot run."""
        return {name: self.placed.found.makespans_s.get(name) for name in _BASELINES}

    @property
    def bandwidth(self) -> np.ndarray | None:
        """Bytes/s from each server to each other one, [servers, servers]; None without network cards."""
        placed = self.placed
        if placed.network is None:
            return None
        if placed.bandwidth is not None:
            return placed.bandwidth
        servers = placed.devices.count // placed.devices.server_size
        return (1.0 - np.eye(servers)) * placed.devices.links[-1].bandwidth

    @cached_property
    def _replay(self) -> Contended:
        return self.placed.replay()

    @property
    def contended_s(self) -> float:
        """Seconds of the step where transfers share the links of servers."""
        return self._replay.schedule.makespan_s

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """A row for each operator: its id, kind, device, start and end in seconds, and memory in bytes."""
        import pandas as pd

        graph, schedule = self.placed.graph, self.placed.schedule
        own = op_seconds(graph, self.placed.devices)[np.arange(graph.num_ops), schedule.device]
        kinds = [kind or "operator" for kind in graph.kinds]
        columns = {"id": graph.ids, "kind": kinds, "device": schedule.device, "start_s": schedule.start_s}
        columns |= {"end_s": schedule.start_s + own, "memory_bytes": graph.memory_bytes}
        frame = pd.DataFrame(columns)
        frame.attrs["units"] = {"start_s": "s", "end_s": "s", "memory_bytes": "bytes"}
        return frame

    @cached_property
    def transfers(self) -> "pd.DataFrame":
        """A row for each tensor that goes to another device, each with the full link: where from and to, and when."""
        import pandas as pd

        graph, devices, ops = self.placed.graph, self.placed.devices, self.frame
        device, end = self.placed.schedule.device.tolist(), ops["end_s"].tolist()
        sent: dict[tuple[int, int], tuple[int, int, float, float, float]] = {}
        for (source, target), tensors in graph.edges.items():
            own, other = device[source], device[target]
            if own == other:
                continue
            link = devices.numbered_links[devices.level[own, other]]
            for tensor in tensors:
                num_bytes = float(graph.tensor_bytes[tensor])
                sent[tensor, other] = own, other, end[source], end[source] + link.seconds(num_bytes), num_bytes
        frame = pd.DataFrame(sent.values(), columns=["source", "destination", "start_s", "end_s", "num_bytes"])
        frame.attrs["units"] = {"start_s": "s", "end_s": "s", "num_bytes": "bytes"}
        return frame

    def plot(self, path: str | Path) -> None:
        """Draw the timeline of devices and transfers into a file; its suffix is the format.

        Raises InputError for a format that cannot be written, StoreError if the file cannot be.
        """
        from dsx.results.plot.file import save
        from dsx.results.plot.timeline import timeline

        save(timeline(self.frame, self.transfers, self.makespan_s, self.bound_s), path)
        remark(f"wrote {path}")

    def write_ovs(self, folder: str | Path) -> list[Path]:
        """Write the commands that give servers their bandwidths in Open vSwitch, and those that undo them.

        Raises InputError without network cards, StoreError if the folder cannot be written.
        """
        if self.bandwidth is None or self.placed.network is None:
            raise InputError("--emit ovs needs --nics, the network cards whose bandwidth is shared out")
        network = self.placed.network
        return write_ovs(Path(folder), self.bandwidth, network.nics, network.nic_bandwidth)

    def _data(self) -> dict[str, Any]:
        """Return the answer as plain data; times in seconds, sizes in bytes."""
        placed = self.placed
        return {
            "graph": {"name": self.name, "operators": placed.graph.num_ops, "edges": len(placed.graph.edges)},
            "devices": placed.devices.count,
            "makespan_s": self.makespan_s,
            "bound_s": self.bound_s,
            "bound_operators": placed.bound.num_heavy,
            "gap": self.gap,
            "found_by": placed.found.source,
            "baselines": self.baselines,
            "mcmc_steps": placed.mcmc_steps,
            "strategies": dict(placed.found.makespans_s),
            "reduction": self._reduction(),
            "bandwidth": self._bandwidth(),
            "contended_s": self.contended_s,
            "stopped": placed.stopped,
            "per_device": self._per_device(),
            "placement": {str(op): device for op, device in self.placement.items()},
            "start_s": {str(op): start for op, start in self.start_s.items()},
        }

    def _reduction(self) -> Mapping[str, Any] | None:
        found = self.placed.reduction
        if found is None:
            return None
        return {
            "alpha": found.thresholds.source,
            "alpha_s": found.thresholds.alpha_s,
            "beta_s": found.thresholds.beta_s,
            "operators": found.graph.num_ops,
            "groups": found.num_groups,
            "units": found.num_units,
        }

    def _bandwidth(self) -> Mapping[str, Any] | None:
        placed = self.placed
        if self.bandwidth is None or placed.network is None:
            return None
        pairs = {
            f"{source}->{target}": float(self.bandwidth[source, target])
            for source, target in np.argwhere(self.bandwidth > 0.0).tolist()
        }
        return {
            "scheme": self.scheme,
            "nics": placed.network.nics,
            "nic_bytes_per_s": placed.network.nic_bandwidth,
            "server_bytes_per_s": placed.network.total,
            "bytes_per_s": pairs,
            "uniform_s": placed.uniform_s,
            "tree_s": placed.tree_s,
        }

    def _per_device(self) -> list[dict[str, Any]]:
        graph, schedule = self.placed.graph, self.placed.schedule
        count = self.placed.devices.count
        own = op_seconds(graph, self.placed.devices)[np.arange(graph.num_ops), schedule.device]
        busy, held = np.bincount(schedule.device, own, count), np.bincount(schedule.device, graph.memory_bytes, count)
        number = np.bincount(schedule.device, minlength=count)
        sent = np.bincount(self.transfers["source"], self.transfers["num_bytes"], count)
        return [
            {
                "device": device,
                "operators": int(number[device]),
                "busy_s": float(busy[device]),
                "memory_bytes": float(held[device]),
                "sent_bytes": float(sent[device]),
            }
            for device in range(count)
        ]

    def __str__(self) -> str:
        return operator_placement_text(self._data())
