"""What `dsx.place` is asked: a graph of operators, the devices that they are placed on, and network cards."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import load_cluster
from dsx.config.documents import stated_in_code
from dsx.config.load import Given
from dsx.config.model_file import load_model
from dsx.config.operator_files import parse_operator_graph, read_operator_graph
from dsx.errors import InputError, SpecError, wrong
from dsx.placement import (
    DeviceLink,
    Devices,
    OpGraph,
    ServerNetwork,
    devices_of,
    from_jax,
    from_layers,
    graph_of,
    load_step,
)
from dsx.units import parse_number
from dsx.verbs.arguments import amount, count, option_of

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
        of_cluster = ("inter", "intra", "gpus_per_server", "latency", "memory")
        for name in of_cluster:
            if getattr(hardware, name) is not None:
                raise InputError(f"{option_of(name)} cannot be given with --cluster, which has it")
        linked = devices_of(load_cluster(hardware.cluster), load_assumptions(hardware.assumptions), number)
    else:
        linked = _stated(hardware, number)
    speeds = _speeds(hardware.speeds, number)
    width = graph.seconds.shape[1]
    if width not in (1, number):
        raise InputError(f"--devices {number}: compute_us of the graph are lists of {width} times, one for each device")
    return Devices(speeds, linked.units, linked.links, linked.memory_bytes)


def network_from(hardware: Hardware, devices: Devices) -> ServerNetwork | None:
    """Return the network cards of servers, if there are any; each has the bandwidth between servers unless said."""
    if hardware.nics is None:
        if hardware.nic_bandwidth is not None:
            raise InputError("--nic-bandwidth needs --nics, the number of network cards of a server")
        return None
    per_card = amount("nic_bandwidth", hardware.nic_bandwidth, "bytes/s")
    return ServerNetwork(count("--nics", hardware.nics), devices.links[-1].bandwidth if per_card is None else per_card)


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
