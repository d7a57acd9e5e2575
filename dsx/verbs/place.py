"""Place the single operators of a training step on the GPUs of a small cluster.

The arguments of `dsx.place`: a graph, and the devices that it is placed on.

Where the operators of a step go, and how good that is.

Place the single operators of a training step on the GPUs of a small cluster.

placed = dsx.place("alexnet.json", devices=4, inter="25 GB/s")
graph = dsx.place.from_jax(step, params, batch)      # or from_fx(graph_module), or measure(step, params, batch)
dsx.place(graph, devices=8, cluster="h100-nvs8").frame
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.documents import stated_in_code
from dsx.config.load import Given
from dsx.config.model_file import load_model
from dsx.config.operator_files import parse_operator_graph, read_operator_graph
from dsx.errors import InputError, SpecError, wrong
from dsx.placement import (
    Contended,
    DeviceLink,
    Devices,
    Effort,
    Id,
    OpGraph,
    Placed,
    ServerNetwork,
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
from dsx.tables.traces import operator_placement_text
from dsx.units import parse_count, parse_number, parse_share
from dsx.verbs.answer import Answer
from dsx.verbs.arguments import amount, count, option_of, seconds_from, watcher

if TYPE_CHECKING:
    import pandas as pd


GraphLike = OpGraph | str | Path | Mapping[str, object]
MOST_DEVICES = 1024
_LEAST_SPEED = 1e-6
_DEFAULT_CLUSTER = "h100-nvs8"  # whose device prices a step without times of its own


@dataclass(frozen=True)
class Hardware:
    """What a placement is for, as the caller states it; None where nothing is said."""

    devices: object = None
    inter: object = None
    intra: object = None
    gpus_per_server: object = None
    latency: object = None
    memory: object = None
    speeds: object = None
    cluster: Given | None = None
    assumptions: Given = "default"
    nics: object = None
    nic_bandwidth: object = None


def graph_from(graph: GraphLike | None, model: Given | None, hardware: Hardware) -> tuple[OpGraph, str]:
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
        raise wrong(
            "graph", graph, "a JSON file is wanted, FILE.py:NAME, its content as a dict, or a graph of dsx.place"
        )
    name = str(graph)
    if ".py:" in name or name.endswith(".py"):
        step, shapes = load_step(name)
        with _named(name):
            device = _DEFAULT_CLUSTER if hardware.cluster is None else hardware.cluster
            return from_jax(step, *shapes, device=device, assumptions=hardware.assumptions), name
    return graph_of(read_operator_graph(name)), name


def devices_from(hardware: Hardware, graph: OpGraph) -> Devices:
    """Return the devices; raises InputError for what does not fit together."""
    if hardware.devices is None:
        raise InputError("--devices is missing: the number of GPUs")
    number = count("--devices", hardware.devices)
    if number > MOST_DEVICES:
        raise InputError(f"--devices {number}: single operators are placed on {MOST_DEVICES} devices at most")
    if hardware.cluster is not None:
        stated = ("inter", "intra", "gpus_per_server", "latency", "memory")
        for name in stated:
            if getattr(hardware, name) is not None:
                raise InputError(f"{option_of(name)} cannot be given with --cluster, which has it")
        found = devices_of(load_cluster(hardware.cluster), load_assumptions(hardware.assumptions), number)
    else:
        found = _stated(hardware, number)
    speeds = _speeds(hardware.speeds, number)
    width = graph.seconds.shape[1]
    if width not in (1, number):
        raise InputError(f"--devices {number}: compute_us of the graph are lists of {width} times, one for each device")
    return Devices(speeds, found.units, found.links, found.memory_bytes)


def network_from(hardware: Hardware, devices: Devices) -> ServerNetwork | None:
    """Return the network cards of servers, if there are any; each has the bandwidth between servers unless said."""
    if hardware.nics is None:
        if hardware.nic_bandwidth is not None:
            raise InputError("--nic-bandwidth needs --nics, the number of network cards of a server")
        return None
    own = amount("nic_bandwidth", hardware.nic_bandwidth, "bytes/s")
    return ServerNetwork(count("--nics", hardware.nics), devices.links[-1].bandwidth if own is None else own)


def _stated(hardware: Hardware, number: int) -> Devices:
    """Return devices with the links that options state."""
    inter = amount("inter", hardware.inter, "bytes/s")
    intra = amount("intra", hardware.intra, "bytes/s")
    if inter is None and hardware.nics is not None:
        inter = amount("nic_bandwidth", hardware.nic_bandwidth, "bytes/s")
    latency_s = amount("latency", hardware.latency, "s", zero=True) or 0.0
    size = 1 if hardware.gpus_per_server is None else count("--gpus-per-server", hardware.gpus_per_server)
    if number % size:
        near = [size * max(number // size, 1), size * (number // size + 1)]
        raise InputError(
            f"--gpus-per-server {size} does not divide --devices {number}: "
            f"{' or '.join(map(str, dict.fromkeys(near)))} devices would do"
        )
    if size > 1 and intra is None:
        raise InputError("--intra is missing: the bandwidth between the GPUs of a server, as in 50GB/s")
    if size == 1 and intra is not None:
        raise InputError("--intra needs --gpus-per-server: with one GPU a server nothing uses it")
    if inter is None:
        if number > size:
            raise InputError("--inter is missing: the bandwidth between two servers, as in 25GB/s (or give --cluster)")
        inter = intra or 1.0
    memory = amount("memory", hardware.memory, "bytes")
    levels = [] if intra is None else [DeviceLink(intra, latency_s)]
    return Devices(
        (1.0,) * number, (size,) if intra is not None else (), (*levels, DeviceLink(inter, latency_s)), memory
    )


def _speeds(given: object, number: int) -> tuple[float, ...]:
    if given is None:
        return (1.0,) * number
    values = given.split(",") if isinstance(given, str) else given
    if not isinstance(values, Sequence):
        raise wrong("--speeds", given, "a number for each device is wanted, as in 1,1,0.5,0.5")
    try:
        speeds = tuple(float(parse_number(value)) for value in values)
    except SpecError as error:
        raise InputError(f"--speeds: {error}") from None
    if len(speeds) != number:
        raise InputError(f"--speeds has {len(speeds)} numbers, and there are {number} devices")
    for speed in speeds:
        if not _LEAST_SPEED <= speed <= 1 / _LEAST_SPEED:
            between = f"a number from {_LEAST_SPEED:g} to {1 / _LEAST_SPEED:g} is wanted, 1 for that of the times"
            raise InputError(f"--speeds: {speed:g} is no speed; {between}")
    return speeds


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


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
        busy = np.bincount(schedule.device, self._durations_s, count)
        held = np.bincount(schedule.device, graph.memory_bytes, count)
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
        """Return the best placement of a graph's operators that is found in a time, with a bound below all of them.

            dsx.place("alexnet.json", devices=4, inter="25 GB/s").makespan_s

        Args:
            graph: a JSON file ([placement.md](placement.md)), its content as a dict, FILE.py:NAME with a function that
                returns a step of JAX and the shapes of its arguments (the file is run as it is), or what `from_jax`,
                `from_fx` and `measure` return.
            devices: the number of GPUs.
            inter: the bandwidth between any two servers.
            intra: that between the GPUs of a server, with `gpus_per_server`.
            gpus_per_server: GPUs of a server; one by default.
            latency: that of each transfer; none by default.
            memory: that of each GPU; without limit by default.
            speeds: how fast each GPU is, 1 for one that takes the times of the graph.
            model: a model, in place of a graph: the layers of one microbatch, on the device of `cluster`.
            cluster: a cluster that gives links, latency, memory, and the times of operators that have none.
            assumptions: the assumption set of these times.
            bandwidth: what servers send is shared uniformly, or as the placement needs ("joint"); with `nics`.
            nics: network cards of a server.
            nic_bandwidth: of each of them; by default `inter`.
            time_limit: of the whole search.
            gap: the search may end once the step is at most this share longer than the shortest.
            seed: of the search.
            watch: told of the time that has gone by, instead of a progress bar.

        Raises InputError and SpecError for bad arguments and files, NothingFeasible if memory has no room.
        """
        hardware = Hardware(
            devices,
            inter,
            intra,
            gpus_per_server,
            latency,
            memory,
            speeds,
            cluster,
            assumptions,
            nics,
            nic_bandwidth,
        )
        if bandwidth not in (None, "uniform", "joint"):
            raise InputError(f"--bandwidth {bandwidth!r}: uniform or joint is wanted")
        if bandwidth is not None and nics is None:
            raise InputError(f"--bandwidth {bandwidth} needs --nics, the number of network cards of a server")
        seconds, share = seconds_from("time_limit", time_limit), _share("--gap", gap)
        number = _seed(seed)
        watch = watcher(watch)
        found, name = graph_from(graph, model, hardware)
        on = devices_from(hardware, found)
        network = network_from(hardware, on)
        begin, total = monotonic(), max(round(seconds * _TICKS), 1)
        with progress(total, "place", watch) as advance:
            done = 0

            def told(_: Placed) -> None:
                nonlocal done
                now = min(int((monotonic() - begin) * _TICKS), total)
                advance(now - done)
                done = now

            made = placed_on(found, on, Effort(seconds, share, number), network, bandwidth == "joint", told)
            advance(total - done)
        return OperatorPlacement(made, name, None if network is None else bandwidth or "uniform")


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
