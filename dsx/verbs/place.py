"""``dsx place``: where the single operators of a training step go on the GPUs of a small cluster.

placed = dsx.place("alexnet.json", devices=4, inter="25 GB/s")
graph = dsx.place.from_jax(step, params, batch)      # or from_fx(graph_module), or measure(step, params, batch)
dsx.place(graph, devices=8, cluster="h100-nvs8").frame
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal

import numpy as np

from dsx.config.load import Given
from dsx.errors import InputError, SpecError, wrong
from dsx.placement import Contended, Id, Placed, SolverEffort, from_fx, from_jax, measure, write_ovs
from dsx.placement import place as placed_on
from dsx.progress import Watch, progress, remark
from dsx.tables.format import table
from dsx.text import Data, DataView, printable
from dsx.units import counted, format_quantity, parse_count, parse_share
from dsx.verbs.answer import Answer
from dsx.verbs.arguments import seconds_from, watcher
from dsx.verbs.place_request import GraphLike, Hardware, devices_from, graph_from, network_from

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
        return {name: self.placed.ways.makespans_s.get(name) for name in _BASELINES}

    @property
    def bandwidth(self) -> np.ndarray | None:
        """Bytes/s from each server to each other one, [servers, servers]; None without network cards."""
        placed = self.placed
        if placed.network is None:
            return None
        if placed.bandwidth is not None:
            return placed.bandwidth
        return (1.0 - np.eye(placed.devices.num_servers)) * placed.devices.links[-1].bandwidth

    @cached_property
    def _replay(self) -> Contended:
        return self.placed.replay()

    @property
    def contended_s(self) -> float:
        """Seconds of the step where transfers share the links of servers."""
        return self._replay.schedule.makespan_s

    @cached_property
    def _durations_s(self) -> np.ndarray:
        return np.array(self.placed.timing.durations(self.placed.schedule.device.tolist()))

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """A row for each operator: its id, kind, device, start and end in seconds, and memory in bytes."""
        import pandas as pd

        graph, schedule = self.placed.graph, self.placed.schedule
        end_s = schedule.start_s + self._durations_s
        kinds = [kind or "operator" for kind in graph.kinds]
        columns = {"id": graph.ids, "kind": kinds, "device": schedule.device, "start_s": schedule.start_s}
        columns |= {"end_s": end_s, "memory_bytes": graph.memory_bytes}
        frame = pd.DataFrame(columns)
        frame.attrs["units"] = {"start_s": "s", "end_s": "s", "memory_bytes": "bytes"}
        return frame

    @cached_property
    def transfers(self) -> "pd.DataFrame":
        """A row for each tensor that goes to another device, each with the full link: where from and to, and when."""
        import pandas as pd

        columns = ["source", "destination", "start_s", "end_s", "num_bytes"]
        sent = self.placed.timing.transfers(self.placed.schedule)
        frame = pd.DataFrame([[getattr(transfer, name) for name in columns] for transfer in sent], columns=columns)
        frame.attrs["units"] = {"start_s": "s", "end_s": "s", "num_bytes": "bytes"}
        return frame

    def plot(self, path: str | Path) -> None:
        """Draw the timeline of devices and transfers into a file; its suffix is the format.

        Raises InputError for a format that cannot be written, StoreError if the file cannot be.
        """
        from dsx.pictures.image_file import save
        from dsx.pictures.timeline import timeline

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

    def _data(self) -> Data:
        placed = self.placed
        return {
            "graph": {"name": self.name, "operators": placed.graph.num_ops, "edges": len(placed.graph.edges)},
            "devices": placed.devices.count,
            "makespan_s": self.makespan_s,
            "bound_s": self.bound_s,
            "bound_operators": placed.bound.num_heavy,
            "gap": self.gap,
            "found_by": placed.ways.source,
            "baselines": self.baselines,
            "mcmc_steps": placed.mcmc_steps,
            "strategies": dict(placed.ways.makespans_s),
            "reduction": self._reduction(),
            "bandwidth": self._bandwidth(),
            "contended_s": self.contended_s,
            "stopped": placed.stopped,
            "per_device": self._per_device(),
            "placement": {str(op): device for op, device in self.placement.items()},
            "start_s": {str(op): start for op, start in self.start_s.items()},
        }

    def _reduction(self) -> DataView | None:
        reduction = self.placed.reduction
        if reduction is None:
            return None
        return {
            "alpha": reduction.thresholds.source,
            "alpha_s": reduction.thresholds.alpha_s,
            "beta_s": reduction.thresholds.beta_s,
            "operators": reduction.graph.num_ops,
            "groups": reduction.num_groups,
            "units": reduction.num_units,
        }

    def _bandwidth(self) -> DataView | None:
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

    def _per_device(self) -> list[Data]:
        schedule, count = self.placed.schedule, self.placed.devices.count
        busy = np.bincount(schedule.device, self._durations_s, count)
        held = self.placed.timing.held_bytes(schedule.device.tolist())
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


_TICKS = 10  # of the progress, a second


class Placer:
    """Places operators when it is called; its functions make graphs of them."""

    from_jax = staticmethod(from_jax)
    from_fx = staticmethod(from_fx)
    measure = staticmethod(measure)

    def __call__(
        self,
        graph: GraphLike | None = None,
        devices: int | None = None,
        inter: str | None = None,
        *,
        intra: str | None = None,
        gpus_per_server: int | None = None,
        latency: str | None = None,
        memory: str | None = None,
        speeds: Sequence[float] | str | None = None,
        model: Given | None = None,
        cluster: Given | None = None,
        assumptions: Given = "default",
        bandwidth: Literal["uniform", "joint"] | None = None,
        nics: int | None = None,
        nic_bandwidth: str | None = None,
        time_limit: str = "60 s",
        gap: float = 0.05,
        seed: int = 0,
        watch: Watch | None = None,
    ) -> OperatorPlacement:
        """Place the operators of a step on several GPUs.

        The answer is the best placement that is found in a time, with a bound below all placements.

            dsx.place("alexnet.json", devices=4, inter="25 GB/s").makespan_s

        Args:
            graph: a JSON file ([placement.md](placement.md)), its content as a dict, FILE.py:NAME with a function that
                returns a step of JAX and the shapes of its arguments (the file is run as it is), or what `from_jax`,
                `from_fx` and `measure` return.
            devices: the number of GPUs.
            inter: the bandwidth between any two servers, as in "25 GB/s".
            intra: the bandwidth between the GPUs of a server, as in "50 GB/s".
            gpus_per_server: GPUs of a server; one by default.
            latency: the latency of each transfer, as in "5 us"; none by default.
            memory: the memory of each GPU, as in "16 GB"; without limit by default.
            speeds: the speed of each GPU, as in "1,1,0.5,0.5"; 1, by default, takes the times of the graph.
            model: a model, in place of a graph: the layers of one microbatch, on the device of `cluster`.
            cluster: a cluster that gives links, latency, memory, and the times of operators that have none.
            assumptions: the assumption set of these times.
            bandwidth: share what servers send uniformly, or as the placement needs (joint); it needs `nics`.
            nics: the network cards of a server.
            nic_bandwidth: the bandwidth of a network card, as in "10 Gb/s"; by default `inter`.
            time_limit: the longest that the search may take.
            gap: the search may end once the step is at most this share longer than the shortest.
            seed: the seed of the search.
            watch: told of the time that has gone by, instead of a progress bar.

        Raises InputError and SpecError for bad arguments and files, NothingFeasible if memory has no room.
        """
        hardware = Hardware(
            devices, inter, intra, gpus_per_server, latency, memory, speeds, cluster, assumptions, nics, nic_bandwidth
        )
        if bandwidth not in (None, "uniform", "joint"):
            raise InputError(f"--bandwidth {bandwidth!r}: uniform or joint is wanted")
        if bandwidth is not None and nics is None:
            raise InputError(f"--bandwidth {bandwidth} needs --nics, the number of network cards of a server")
        seconds, share = seconds_from("time_limit", time_limit), _share("--gap", gap)
        number = _seed(seed)
        watch = watcher(watch)
        operators, name = graph_from(graph, model, hardware)
        on = devices_from(hardware, operators)
        network = network_from(hardware, on)
        begin, total = monotonic(), max(round(seconds * _TICKS), 1)
        with progress(total, "place", watch) as advance:
            done = 0

            def told(_: Placed) -> None:
                nonlocal done
                now = min(int((monotonic() - begin) * _TICKS), total)
                advance(now - done)
                done = now

            placed = placed_on(operators, on, SolverEffort(seconds, share, number), network, bandwidth == "joint", told)
            advance(total - done)
        return OperatorPlacement(placed, name, None if network is None else bandwidth or "uniform")


place = Placer()


def _share(name: str, value: object) -> float:
    try:
        return parse_share(value)
    except SpecError as error:
        raise InputError(f"{name}: {error}") from None


def _seed(value: object) -> int:
    try:
        return 0 if value == 0 and not isinstance(value, bool) else parse_count(value)
    except SpecError:
        raise wrong("--seed", value, "a whole number from 0 to 2147483647 is wanted") from None


_WAYS = {"heft": "HEFT", "metis": "METIS", "mcmc": "MCMC", "single_device": "one device"}


_DEVICE_ROWS = 16  # of the table of devices


_PAIRS = 12  # of servers


def operator_placement_text(placed: DataView) -> str:
    """Return the data of a placement as text: the step and its bound, other ways, devices, bandwidths."""
    parts = [_placement_title(placed), _ways(placed), _devices(placed), _bandwidth(placed["bandwidth"])]
    return "\n\n".join(filter(None, parts))


def _placement_title(placed: DataView) -> str:
    graph = placed["graph"]
    step, bound = _time(placed["makespan_s"]), _time(placed["bound_s"])
    if placed["gap"] <= 1e-6:
        quality = "no placement is shorter"
    else:
        quality = f"no placement is below {bound}, so it is within {_percent(placed['gap'])} of the shortest"
    heavy = placed["bound_operators"]
    proof = f"proved for its {heavy:,} longest operators" if heavy else "by the critical path or the load"
    lines = [
        f"{graph['name']}: {counted(graph['operators'], 'operator')} on {counted(placed['devices'], 'device')}",
        f"step {step}; {quality} ({proof})",
        f"where transfers share links: {_time(placed['contended_s'])}{_slower(placed)}",
    ]
    reduced = placed["reduction"]
    if reduced and reduced["alpha"] in placed["found_by"]:
        lines.append(
            f"reduced to {counted(reduced['operators'], 'operator')} in {counted(reduced['groups'], 'group')} "
            f"(alpha {_time(reduced['alpha_s'])}, {reduced['alpha']})"
        )
    if placed["stopped"]:
        lines.append("stopped early: the best so far")
    return printable("\n".join(lines), keep="\n")


def _slower(placed: DataView) -> str:
    """Return a warning if one device is faster where transfers share links."""
    alone = placed["baselines"]["single_device"]
    if alone is None or placed["contended_s"] <= alone:
        return ""
    return f", longer than on one device ({_time(alone)}): its links must carry transfers at once"


def _ways(placed: DataView) -> str:
    found_by = placed["found_by"]
    rows = [[_WAYS.get(found_by, found_by), _time(placed["makespan_s"]), ""]]
    for name, seconds in placed["baselines"].items():
        if name == found_by:
            continue
        way = f"{_WAYS[name]}, {placed['mcmc_steps']:,} steps" if name == "mcmc" and seconds else _WAYS[name]
        more = "" if seconds is None else f"{100 * (seconds / (placed['makespan_s'] or 1.0) - 1):+.1f} %"
        rows.append([way, "-" if seconds is None else _time(seconds), more])
    return table(["found by", "step", ""], rows)


def _devices(placed: DataView) -> str:
    step = placed["makespan_s"] or 1.0
    rows = [
        [
            str(device["device"]),
            f"{device['operators']:,}",
            _time(device["busy_s"]),
            f"{100 * device['busy_s'] / step:.0f} %",
            format_quantity(device["memory_bytes"], "bytes"),
            format_quantity(device["sent_bytes"], "bytes"),
        ]
        for device in placed["per_device"]
    ]
    more = f"\n... and {len(rows) - _DEVICE_ROWS} more devices (--json has all)" if len(rows) > _DEVICE_ROWS else ""
    return table(["device", "operators", "busy", "", "memory", "sends"], rows[:_DEVICE_ROWS]) + more


def _bandwidth(allocation: DataView | None) -> str:
    if allocation is None:
        return ""
    total = format_quantity(allocation["server_bytes_per_s"], "bytes/s")
    head = f"bandwidth: {allocation['scheme']}, of {total} that a server sends ({counted(allocation['nics'], 'NIC')})"
    uniform, tree = _time(allocation["uniform_s"]), _time(allocation["tree_s"])
    compared = f"uniform shares: step {uniform}; a tree, one NIC's for any two: {tree}"
    pairs = [
        [pair.replace("->", " to "), format_quantity(rate, "bytes/s")]
        for pair, rate in allocation["bytes_per_s"].items()
    ]
    more = f"\n... and {len(pairs) - _PAIRS} more pairs (--json has all)" if len(pairs) > _PAIRS else ""
    shown = table(["servers", "bandwidth"], pairs[:_PAIRS]) + more if allocation["scheme"] == "joint" else ""
    return "\n".join(filter(None, [head, compared, shown]))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.0005 else f"{max(100 * share, 0.001):.1g} %"


def _time(seconds: float) -> str:
    return format_quantity(seconds, "s")
