"""``dsx place``: where the single operators of a training step go on the GPUs of a small cluster.

placed = dsx.place("alexnet.json", devices=4, inter="25 GB/s")
graph = dsx.place.from_jax(step, params, batch)      # or from_fx(graph_module), or measure(step, params, batch)
dsx.place(graph, devices=8, cluster="h100-nvs8").frame
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Literal

import numpy as np

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.documents import stated_in_code
from dsx.config.load import Given
from dsx.config.model_file import load_model
from dsx.config.operator_files import parse_operator_graph, read_operator_graph
from dsx.errors import InputError, SpecError, wrong
from dsx.placement import (
    DEFAULT_CLUSTER,
    Contended,
    DeviceLink,
    Devices,
    Id,
    OpGraph,
    Placed,
    ServerNetwork,
    SolverEffort,
    devices_of,
    from_fx,
    from_jax,
    from_layers,
    graph_of,
    load_step,
    measure,
    write_ovs,
)
from dsx.placement import place as placed_on
from dsx.progress import Watch, progress, remark
from dsx.tables.format import table
from dsx.text import Data, DataFrame, DataView, printable
from dsx.units import counted, format_quantity, parse_count, parse_number, parse_share
from dsx.verbs.arguments import Answer, amount, count, option_of, paragraphs, parsed, seconds_from, watcher, with_units

_MOST_DEVICES = 1024
_LEAST_SPEED = 1e-6

GraphLike = OpGraph | str | Path | Mapping[str, object]


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
        return {name: self.placed.ways.makespans_s.get(name) for name in _WAYS}

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
    def frame(self) -> DataFrame:
        """A row for each operator: its id, kind, device, start and end in seconds, and memory in bytes."""
        graph, schedule = self.placed.graph, self.placed.schedule
        columns = {
            "id": graph.ids,
            "kind": [kind or "operator" for kind in graph.kinds],
            "device": schedule.device,
            "start_s": schedule.start_s,
            "end_s": schedule.start_s + self._durations_s,
            "memory_bytes": graph.memory_bytes,
        }
        return with_units(columns)

    @cached_property
    def transfers(self) -> DataFrame:
        """A row for each tensor that goes to another device, each with the full link: where from and to, and when."""
        sent = self.placed.timing.transfers(self.placed.schedule)
        columns = ("source", "destination", "start_s", "end_s", "num_bytes")
        return with_units({name: [getattr(transfer, name) for transfer in sent] for name in columns})

    def plot(self, path: str | Path) -> None:
        """Draw the timeline of devices and transfers into a file; its suffix is the format.

        Raises InputError for a format that cannot be written, StoreError if the file cannot be.
        """
        from dsx.pictures.figure import save
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
        placed, reduction, network, bandwidth = self.placed, self.placed.reduction, self.placed.network, self.bandwidth
        graph, device, count = placed.graph, placed.schedule.device, placed.devices.count
        per_device = {
            "operators": np.bincount(device, minlength=count),
            "busy_s": np.bincount(device, self._durations_s, count),
            "memory_bytes": placed.timing.held_bytes(device.tolist()),
            "sent_bytes": np.bincount(self.transfers["source"], self.transfers["num_bytes"], count),
        }
        reduced = shared = None
        if reduction is not None:
            bounds = reduction.thresholds
            reduced = {"alpha": bounds.source, "alpha_s": bounds.alpha_s, "beta_s": bounds.beta_s}
            reduced |= {"operators": reduction.graph.num_ops}
            reduced |= {"groups": reduction.num_groups, "units": reduction.num_units}
        if bandwidth is not None and network is not None:
            pairs = [(f"{s}->{t}", float(bandwidth[s, t])) for s, t in np.argwhere(bandwidth > 0.0).tolist()]
            shared = {"scheme": self.scheme, "nics": network.nics, "nic_bytes_per_s": network.nic_bandwidth}
            shared |= {"server_bytes_per_s": network.total, "bytes_per_s": dict(pairs), "uniform_s": placed.uniform_s}
        return {
            "graph": {"name": self.name, "operators": graph.num_ops, "edges": len(graph.edges)},
            "devices": count,
            "makespan_s": self.makespan_s,
            "bound_s": self.bound_s,
            "bound_operators": placed.bound.num_heavy,
            "gap": self.gap,
            "found_by": placed.ways.source,
            "baselines": self.baselines,
            "strategies": dict(placed.ways.makespans_s),
            "reduction": reduced,
            "bandwidth": shared,
            "contended_s": self.contended_s,
            "stopped": placed.stopped,
            "per_device": [
                {"device": number} | {name: values[number].item() for name, values in per_device.items()}
                for number in range(count)
            ],
            "placement": {str(op): device for op, device in self.placement.items()},
            "start_s": {str(op): start for op, start in self.start_s.items()},
        }

    def __str__(self) -> str:
        placed = self._data()
        return paragraphs([_title(placed), _ways(placed), _devices(placed), _bandwidth(placed["bandwidth"])])


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
        hardware = PlacementHardware(
            devices, inter, intra, gpus_per_server, latency, memory, speeds, cluster, assumptions, nics, nic_bandwidth
        )
        if bandwidth not in (None, "uniform", "joint"):
            raise InputError(f"--bandwidth {bandwidth!r}: uniform or joint is wanted")
        if bandwidth is not None and nics is None:
            raise InputError(f"--bandwidth {bandwidth} needs --nics, the number of network cards of a server")
        seconds, share = seconds_from("time_limit", time_limit), parsed(lambda: parse_share(gap), "--gap")
        try:
            number = 0 if seed == 0 and not isinstance(seed, bool) else parse_count(seed)
        except SpecError:
            raise wrong("--seed", seed, "a whole number from 0 to 2147483647 is wanted") from None
        watch = watcher(watch)
        operators, name = _graph(graph, model, hardware)
        linked, network = _devices_of(hardware, operators), None
        if nics is not None:  # each has the bandwidth between servers unless it is stated
            per_card = amount("nic_bandwidth", nic_bandwidth, "bytes/s")
            network = ServerNetwork(count("--nics", nics), linked.links[-1].bandwidth if per_card is None else per_card)
        elif nic_bandwidth is not None:
            raise InputError("--nic-bandwidth needs --nics, the number of network cards of a server")
        begin, total = monotonic(), max(round(seconds * _TICKS), 1)
        with progress(total, "place", watch) as advance:
            done = 0

            def show(_: Placed) -> None:
                nonlocal done
                now = min(int((monotonic() - begin) * _TICKS), total)
                advance(now - done)
                done = now

            effort = SolverEffort(seconds, share, number)
            placed = placed_on(operators, linked, effort, network, bandwidth == "joint", show)
            advance(total - done)
        return OperatorPlacement(placed, name, None if network is None else bandwidth or "uniform")


place = Placer()
_WAYS = {"heft": "HEFT", "single_device": "one device"}
_DEVICE_ROWS = 16  # of the table of devices
_PAIRS = 12  # of servers


def _title(placed: DataView) -> str:
    graph, heavy, reduced = placed["graph"], placed["bound_operators"], placed["reduction"]
    gap, contended, alone = placed["gap"], placed["contended_s"], placed["baselines"]["single_device"]
    quality = "no placement is shorter"
    if gap > 1e-6:
        within = f"{100 * gap:.1f} %" if gap >= 0.0005 else f"{max(100 * gap, 0.001):.1g} %"
        quality = f"no placement is below {_time(placed['bound_s'])}, so it is within {within} of the shortest"
    proof = f"proved for its {heavy:,} longest operators" if heavy else "by the critical path or the load"
    slower = ""
    if alone is not None and contended > alone:
        slower = f", longer than on one device ({_time(alone)}): its links must carry transfers at once"
    lines = [
        f"{graph['name']}: {counted(graph['operators'], 'operator')} on {counted(placed['devices'], 'device')}",
        f"step {_time(placed['makespan_s'])}; {quality} ({proof})",
        f"where transfers share links: {_time(contended)}{slower}",
    ]
    if reduced and reduced["alpha"] in placed["found_by"]:
        sizes = f"{counted(reduced['operators'], 'operator')} in {counted(reduced['groups'], 'group')}"
        lines.append(f"reduced to {sizes} (alpha {_time(reduced['alpha_s'])}, {reduced['alpha']})")
    if placed["stopped"]:
        lines.append("stopped early: the best so far")
    return printable("\n".join(lines), keep="\n")


def _ways(placed: DataView) -> str:
    found_by = placed["found_by"]
    rows = [[_WAYS.get(found_by, found_by), _time(placed["makespan_s"]), ""]]
    for name, seconds in placed["baselines"].items():
        if name != found_by:
            more = "" if seconds is None else f"{100 * (seconds / (placed['makespan_s'] or 1.0) - 1):+.1f} %"
            rows.append([_WAYS[name], "-" if seconds is None else _time(seconds), more])
    return table(["found by", "step", ""], rows)


def _devices(placed: DataView) -> str:
    step, devices = placed["makespan_s"] or 1.0, placed["per_device"]
    rows: list[list[str]] = []
    for device in devices[:_DEVICE_ROWS]:
        busy = [_time(device["busy_s"]), f"{100 * device['busy_s'] / step:.0f} %"]
        sizes = [format_quantity(device[name], "bytes") for name in ("memory_bytes", "sent_bytes")]
        rows.append([str(device["device"]), f"{device['operators']:,}", *busy, *sizes])
    left_out = len(devices) - len(rows)
    more = f"\n... and {left_out} more devices (--json has all)" if left_out else ""
    return table(["device", "operators", "busy", "", "memory", "sends"], rows) + more


def _bandwidth(allocation: DataView | None) -> str:
    if allocation is None:
        return ""
    scheme, cards = allocation["scheme"], counted(allocation["nics"], "NIC")
    total = format_quantity(allocation["server_bytes_per_s"], "bytes/s")
    lines = [f"bandwidth: {scheme}, of {total} that a server sends ({cards})"]
    if scheme == "joint":
        lines.append(f"uniform shares: step {_time(allocation['uniform_s'])}")
        rates = allocation["bytes_per_s"].items()
        pairs = [[pair.replace("->", " to "), format_quantity(rate, "bytes/s")] for pair, rate in rates]
        more = f"\n... and {len(pairs) - _PAIRS} more pairs (--json has all)" if len(pairs) > _PAIRS else ""
        lines.append(table(["servers", "bandwidth"], pairs[:_PAIRS]) + more)
    return "\n".join(filter(None, lines))


def _time(seconds: float) -> str:
    return format_quantity(seconds, "s")


@dataclass(frozen=True)
class PlacementHardware:
    """What a placement is for, as the caller states it; None where nothing is said."""

    devices: object
    inter: object
    intra: object
    gpus_per_server: object
    latency: object
    memory: object
    speeds: object
    cluster: Given | None
    assumptions: Given
    nics: object
    nic_bandwidth: object


def _graph(graph: GraphLike | None, model: Given | None, hardware: PlacementHardware) -> tuple[OpGraph, str]:
    """Return the graph, and its name for people; raises InputError or SpecError for what is none."""
    if (graph is None) == (model is None):
        what = "both are given" if model is not None else "neither is given"
        raise InputError(f"a graph is placed, or the layers of a --model; {what}, give one of them")
    if model is not None:
        if hardware.cluster is None:
            raise InputError("--model needs --cluster, whose device gives the times of operators")
        spec = load_model(model)
        near = Path(model) if isinstance(model, str | Path) and Path(model).is_file() else None
        cluster, assumptions = load_cluster(hardware.cluster), load_assumptions(hardware.assumptions)
        return from_layers(spec, cluster, assumptions, near=near), f"a microbatch of {spec.name}"
    if isinstance(graph, OpGraph):
        return graph, "graph"
    if isinstance(graph, Mapping):
        return graph_of(parse_operator_graph(stated_in_code(dict(graph), "graph"))), "graph"
    if not isinstance(graph, str | Path):
        kinds = "a JSON file is wanted, FILE.py:NAME, its content as a dict, or a graph of dsx.place"
        raise wrong("graph", graph, kinds)
    name = str(graph)
    if ".py:" not in name and not name.endswith(".py"):
        return graph_of(read_operator_graph(name)), name
    step, shapes = load_step(name)
    try:
        device = DEFAULT_CLUSTER if hardware.cluster is None else hardware.cluster
        return from_jax(step, *shapes, device=device, assumptions=hardware.assumptions), name
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _devices_of(hardware: PlacementHardware, graph: OpGraph) -> Devices:
    """Return the devices; raises InputError for what does not fit together."""
    if hardware.devices is None:
        raise InputError("--devices is missing: the number of GPUs")
    number = count("--devices", hardware.devices)
    if number > _MOST_DEVICES:
        raise InputError(f"--devices {number}: single operators are placed on {_MOST_DEVICES} devices at most")
    if hardware.cluster is None:
        linked = _stated(hardware, number)
    else:
        for name in ("inter", "intra", "gpus_per_server", "latency", "memory"):
            if getattr(hardware, name) is not None:
                raise InputError(f"{option_of(name)} cannot be given with --cluster, which has it")
        linked = devices_of(load_cluster(hardware.cluster), load_assumptions(hardware.assumptions), number)
    speeds = _speeds(hardware.speeds, number)
    width = graph.seconds.shape[1]
    if width not in (1, number):
        raise InputError(f"--devices {number}: compute_us of the graph are lists of {width} times, one for each device")
    return Devices(speeds, linked.units, linked.links, linked.memory_bytes)


def _stated(hardware: PlacementHardware, number: int) -> Devices:
    """Return devices with the links that options state."""
    inter, intra = (amount(name, getattr(hardware, name), "bytes/s") for name in ("inter", "intra"))
    if inter is None and hardware.nics is not None:
        inter = amount("nic_bandwidth", hardware.nic_bandwidth, "bytes/s")
    latency_s = amount("latency", hardware.latency, "s", zero=True) or 0.0
    size = 1 if hardware.gpus_per_server is None else count("--gpus-per-server", hardware.gpus_per_server)
    if number % size:
        near = [size * max(number // size, 1), size * (number // size + 1)]
        counts = " or ".join(map(str, dict.fromkeys(near)))
        raise InputError(f"--gpus-per-server {size} does not divide --devices {number}: {counts} devices would do")
    if size > 1 and intra is None:
        raise InputError("--intra is missing: the bandwidth between the GPUs of a server, as in 50GB/s")
    if size == 1 and intra is not None:
        raise InputError("--intra needs --gpus-per-server: with one GPU a server nothing uses it")
    if inter is None and number > size:
        raise InputError("--inter is missing: the bandwidth between two servers, as in 25GB/s (or give --cluster)")
    between = DeviceLink(intra or 1.0 if inter is None else inter, latency_s)
    within = [] if intra is None else [DeviceLink(intra, latency_s)]
    units = () if intra is None else (size,)
    return Devices((1.0,) * number, units, (*within, between), amount("memory", hardware.memory, "bytes"))


def _speeds(listed: object, number: int) -> tuple[float, ...]:
    if listed is None:
        return (1.0,) * number
    values = listed.split(",") if isinstance(listed, str) else listed
    if not isinstance(values, Sequence):
        raise wrong("--speeds", listed, "a number for each device is wanted, as in 1,1,0.5,0.5")
    speeds = tuple(float(parsed(lambda value=value: parse_number(value), "--speeds")) for value in values)
    if len(speeds) != number:
        raise InputError(f"--speeds has {len(speeds)} numbers, and there are {number} devices")
    for speed in speeds:
        if not _LEAST_SPEED <= speed <= 1 / _LEAST_SPEED:
            between = f"a number from {_LEAST_SPEED:g} to {1 / _LEAST_SPEED:g} is wanted, 1 for that of the times"
            raise InputError(f"--speeds: {speed:g} is no speed; {between}")
    return speeds
