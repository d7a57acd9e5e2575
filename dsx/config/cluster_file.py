"""A cluster file, and the cluster as prices take it: device, node, network, and what running them costs.

Fused attention kernels have generations: which of them a software has, and what each reaches on a device.

| generation | kernels |
|---|---|
| flash-1 | FlashAttention (arXiv 2205.14135), and others that tile without sharing a head's work among blocks |
| flash-2 | FlashAttention-2 (arXiv 2307.08691), Composable Kernel of AMD, splash attention of JAX on TPU |
| flash-3 | FlashAttention-3 (arXiv 2407.08608), cuDNN 9, AITER of AMD: asynchronous multiplies and copies |
| flash-4 | FlashAttention-4: exponentials in part on the multiply units, for Blackwell |

A software that has a generation has those before it, and a device runs those that its file lists; the fastest counts.
A cluster file lists the names of its GPU under `run_tables` if it is the usual machine of that GPU. A name matches if
it begins with one that is listed, ignoring case and punctuation.

A field that a cluster file states has its name, meaning and SI unit in the spec of the file; 0 where the file
does not state it. The sweep states the number of devices. Assumptions say which share of its peaks a kernel reaches in
a training step (dsx.cost.roofline).

Operation changes no time of a step: a job pays for its GPUs and draws their full power from its first step to its last,
restarts included.

The network is tiers, from the fast domain of a few GPUs to the outermost one, which joins all GPUs.
`dsx.config.topology` says which levels a network has, and what a message that crosses one gets. The size of a tier is
the number of GPUs in one unit of it.

Not modelled: clusters of different devices; kernels that a framework cannot use for a mask or a head dimension; routes
that share a link by chance, failed links; caches; power below the limit while GPUs wait, and the power of hosts and
switches, which `pue` may include.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from dsx.config.documents import merged
from dsx.config.load import Assignment, Given, extended, stated_document
from dsx.config.schema import (
    Bytes,
    BytesPerSecond,
    Count,
    DollarsPerSecond,
    FileKind,
    FlopsPerSecond,
    Fraction,
    Seconds,
    Sourced,
    Spec,
    UsageEffectiveness,
    Watts,
    unsourced,
    usually,
    validate,
)
from dsx.config.search_path import find, names
from dsx.config.topology import FullyConnectedSpec, Level, NetworkSpec, TorusSpec
from dsx.errors import InputError, UnknownNameError, did_you_mean, nearest_names
from dsx.records import leaves, record, static

Generation = Literal["flash-1", "flash-2", "flash-3", "flash-4"]
GENERATIONS: tuple[Generation, ...] = get_args(Generation)  # in order: a device lists some of them
_WORDS = ("none", *GENERATIONS)


class ReachedSpec(Spec):
    """Shares of the data sheet's 16-bit peak that a kernel reaches at head dimension 128 and long sequences.

    As the papers count: four multiply-adds per pair of query, key and element in the forward under a mask of no
    effect, half of them under a causal mask, and 2.5 times as many in the backward.
    """

    forward: Fraction
    backward: Fraction


def _number(value: object) -> float:
    plain = unsourced(value)
    if isinstance(plain, int | float) and not isinstance(plain, bool) and plain in range(len(_WORDS)):
        return float(plain)
    if not isinstance(plain, str) or plain not in _WORDS:
        raise ValueError(f"{plain!r} is none of {', '.join(_WORDS)}{did_you_mean(str(plain), _WORDS)}")
    return float(_WORDS.index(plain))


# The newest generation that a software has, "none" to "flash-4", as a number from 0: rows of different software are
# priced together, so it is a leaf like every other number.
AttentionKernels = Annotated[
    float, BeforeValidator(_number), PlainSerializer(lambda value: _WORDS[int(value)], when_used="json")
]


_END_AFTER_DIGIT = r"(?![0-9])(?!(?!gi?b?(?![a-z]))[a-z])"  # 80 in 80GB and 80g, not in 800 and 80X
_END_AFTER_LETTER = r"(?![a-z])"
_MISSPELT = 0.8  # similarity from which on a name counts as a misspelt one of a cluster
# What vendors and clouds put before the name of a GPU.
_BEFORE = re.compile(r"^[^a-z0-9]*(?:(?:nvidia|dgx|hgx|[0-9]+ ?x)[^a-z0-9]*)*")


def begins_with(gpu: str, prefix: str) -> bool:
    """Return whether the name of a GPU begins with `prefix`, ignoring case and punctuation.

    The prefix must end where a part of the name ends: further digits, or letters other than a unit of memory, make it
    the name of another GPU.
    """
    name = re.sub(r"^[^a-z0-9]*nvidia", "", gpu.lower())
    characters = plain(prefix)
    end = _END_AFTER_DIGIT if characters[-1:].isdigit() else _END_AFTER_LETTER
    return re.match("".join(f"[^a-z0-9]*{character}" for character in characters) + end, name) is not None


def plain(name: str) -> str:
    """Return the name of a GPU without case, punctuation and vendor, for comparison."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia")


class ClustersOfDevice(NamedTuple):
    """The clusters that have a device."""

    usual: dict[str, str]  # name -> description, of the usual machines of the device
    further: list[str]  # names


def clusters_of_device(name: str) -> ClustersOfDevice | None:
    """Return the clusters of the device that `name` means, as in "H100" or "DGX B200".

    None if it means no device, or is nearly the name of a cluster.
    """
    if nearest_names(name, names("clusters", ".yaml"), _MISSPELT):
        return None
    gpu = _BEFORE.sub("", name.lower())
    descriptions: dict[str, str] = {}
    devices: dict[str, str] = {}
    lengths: dict[str, int] = {}  # of the longest listed name that `gpu` begins with; 0 if there is none
    for cluster in names("clusters", ".yaml"):
        try:
            files = extended(find("clusters", cluster, ".yaml"), ClusterSpec)
        except InputError:  # what a user's file has wrong, its own reader says
            continue
        data = merged([document for _, document in files]).data
        tables, device = (part if isinstance(part := data.get(key), dict) else {} for key in ("run_tables", "device"))
        gpus = tables.get("gpus")
        listed = [prefix for prefix in gpus if isinstance(prefix, str)] if isinstance(gpus, list) else []
        descriptions[cluster], devices[cluster] = str(data.get("description", "")), plain(str(device.get("name", "")))
        begins = [plain(prefix) for prefix in listed if plain(prefix) and begins_with(gpu, prefix)]
        lengths[cluster] = max(map(len, begins), default=0)
    longest = max(lengths.values(), default=0)
    if not longest:
        return None
    usual = {cluster: descriptions[cluster] for cluster, length in lengths.items() if length == longest}
    same = {devices[cluster] for cluster in usual}
    return ClustersOfDevice(
        usual, [cluster for cluster, device in devices.items() if cluster not in usual and device in same]
    )


# The programming platform of a device, which decides what launchers and kernels run on it.
Platform = Literal["cuda", "rocm", "xla", "synapseai", "neuron"]
PLATFORMS: tuple[str, ...] = get_args(Platform)
# 16-bit numbers of multiplies; a device without BF16 has FP16, with a scale of the loss.
HalfFormat = Literal["bf16", "fp16"]
HALF_FORMATS: tuple[HalfFormat, ...] = get_args(HalfFormat)
GPU_SOFTWARE: tuple[Platform, ...] = ("cuda", "rocm")  # of GPUs, whose multiprocessors run tiles in waves


class ChipSpec(Spec):
    """What a maker sells and describes as one, and software sees as several devices."""

    devices: Count
    name: str = "chip"


class DeviceSpec(Spec):
    """One GPU as its data sheet describes it, and what single kernels were measured to reach on it.

    What a whole training step reaches of that belongs to the assumption set.
    """

    name: str
    matrix_flops: FlopsPerSecond  # dense, at the precision of training
    vector_flops: FlopsPerSecond
    hbm_bandwidth: BytesPerSecond
    hbm_capacity: Annotated[Bytes, Field(gt=0)]
    chip: ChipSpec | None = usually(None)  # that it is a part of; a GPU is always one device. None: it is the chip
    half_format: Annotated[HalfFormat, Sourced] = usually("bf16")  # the 16 bits of matrix_flops
    # Family of its architecture: ampere, hopper, cdna3, tpu-v5p. Devices of a family have the same kernels.
    generation: Annotated[str | None, Sourced] = None
    # Dense, in fewer bits, by the name of the precision; None: such multiplies run at matrix_flops.
    fp8_flops: FlopsPerSecond | None = None
    fp4_flops: FlopsPerSecond | None = None
    int8_flops: FlopsPerSecond | None = None  # operations/s
    # Share of matrix_flops that the best large multiply was measured to reach; None: that of the assumption set.
    sustained_share: Fraction | None = None
    fp8_sustained_share: Fraction | None = None  # the same of fp8_flops; None: sustained_share, as in other precisions
    # What fused attention kernels reach on it; a generation that is not listed does not run on it.
    attention: dict[Generation, ReachedSpec] = Field(default_factory=dict)
    num_sms: Count | None = None  # multiprocessors; None: unknown, and waves of tiles do not count
    power: Watts | None = None  # the most that it draws: of its data sheet, or a lower limit
    full_power: Watts | None = None  # power of the data sheet, where `power` is a lower limit
    software: Annotated[Platform, Sourced] = "cuda"
    # Of its link towards the host's memory, per direction; None: PCIe 4, 32 GB/s. GPUs may share what follows of it.
    host_bandwidth: BytesPerSecond | None = None

    @property
    def family(self) -> str:
        """The family of its architecture; of a device that states none, its own name."""
        return self.generation or self.name

    @model_validator(mode="after")
    def _limits_power(self) -> Self:
        if self.power is None and self.full_power is not None:
            raise ValueError("full_power needs power: the limit below full_power, the power of the data sheet")
        if self.power and self.full_power and self.power > self.full_power:
            raise ValueError(f"power: {self.power:g} W is more than full_power, {self.full_power:g} W")
        return self


class HasPeak(Protocol):
    """A device, stated or priced."""

    @property
    def matrix_flops(self) -> float:
        """FLOP/s of the data sheet in 16 bits; `fp8_flops` and likewise are those of other precisions."""
        ...


def peak_flops(device: HasPeak, precision: str) -> float:
    """Return the data sheet's FLOP/s of multiplies in "bf16", "fp8", "fp4" or "int8"; in 16 bits where it has none."""
    return (getattr(device, f"{precision}_flops") if precision != "bf16" else None) or device.matrix_flops


class NodeSpec(Spec):
    """A node: a host and the GPUs that share its memory; a fast domain may be smaller or larger.

    What a file does not state has the values here, those of a node of eight A100 with 1 TB (MLPerf Training v1.0,
    Inspur NF5488A5) and two sockets of eight DDR4-3200 channels, and a link to the host for each GPU. A fast domain of
    4 with eight GPUs to a node has the same share of it.
    """

    gpus: Count = 8
    # That share a link to the host as fast as the device's, such as those of a PCIe switch with one uplink.
    gpus_per_host_link: Count = 1
    host_memory: Annotated[Bytes, Field(gt=0)] = 1024e9  # of all sockets
    host_memory_bandwidth: BytesPerSecond = 409.6e9  # of all sockets, reads and writes together

    @property
    def assumed(self) -> tuple[str, ...]:
        """The fields that no file states."""
        return tuple(name for name in type(self).model_fields if name not in self.model_fields_set)

    @model_serializer(mode="wrap")
    def _as_stated(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        # So that a copy still says what is assumed.
        return {name: value for name, value in write(self).items() if name in self.model_fields_set}


class RunTableSpec(Spec):
    """The names of this machine in tables of measured runs."""

    gpus: Annotated[list[str], Field(min_length=1)]  # prefixes of its GPU's names; case and punctuation do not count
    gpus_per_node: Annotated[list[Count], Field(min_length=1)]  # in such tables; not always the size of a fast domain


class FailuresSpec(Spec):
    """How often a GPU, with its share of host and network, stops a job, and what that takes."""

    mtbf: Annotated[Seconds, Field(gt=0)]  # mean time between failures of one GPU
    restart: Seconds  # from a failure until the job trains again from its last checkpoint
    checkpoint: Annotated[Seconds, Field(gt=0)]  # that the job stops for writing one


class ClusterSpec(Spec):
    """A machine of equal GPUs; their number is a setting of the sweep."""

    file_kind = FileKind("cluster", "a cluster", "--cluster", "clusters")
    keys_of_file = ("extends",)
    open_keys = ("network",)
    # What changes neither times nor memory of a plan.
    of_operation: ClassVar[Sequence[str]] = ("price", "pue", "failures")

    name: str
    description: str = ""
    device: DeviceSpec
    network: NetworkSpec
    node: NodeSpec = NodeSpec()
    run_tables: RunTableSpec | None = None
    price: DollarsPerSecond | None = None  # of one GPU with its share of host and network
    pue: UsageEffectiveness | None = None  # power of the site over that of the GPUs
    failures: FailuresSpec | None = None

    @property
    def label(self) -> str:
        """The name, with what a GPU is where data sheets count chips: "tpu-7x (TPU7x device, 2 to a chip)"."""
        return label_of(self.name, self.device.name, self.device.chip)


def label_of(cluster: str, device: str, chip: ChipSpec | None) -> str:
    """Return the label of a cluster with such devices."""
    return cluster if chip is None else f"{cluster} ({device}, {chip.devices} to a {chip.name})"


def load_cluster(reference: Given, overrides: Sequence[Assignment] = (), near: Path | None = None) -> ClusterSpec:
    """Return a cluster, given by name, path or content; `near` is the file that mentions it.

    Raises UnknownNameError, which names the clusters of a device where the name is that of a device, or SpecError with
    all faults of the file.
    """
    try:
        document = stated_document(ClusterSpec, reference, overrides, near)
    except UnknownNameError:
        if isinstance(reference, str) and "," not in reference and (clusters := clusters_of_device(reference)):
            verb = "its usual machine is" if len(clusters.usual) == 1 else "its usual machines are"
            lines = [f"\n  {name}: {description}" for name, description in clusters.usual.items()]
            further = f"\nothers: {', '.join(clusters.further)}" if clusters.further else ""
            meaning = "it is a device, and a cluster has fast domains and a network too"
            meaning = f": {meaning}; {verb}{''.join(lines)}{further}"
            raise UnknownNameError("cluster", reference, (), meaning=meaning) from None
        raise
    return validate(document, ClusterSpec)


@record
class Tier:
    """A network level, as one GPU sees it; a leaf is a float, or an [H] array of hardware points."""

    bandwidth: float  # bytes/s, per GPU and direction, when all GPUs send at once
    latency: float  # s, of one message that crosses it
    name: str = static()
    size: int = static()  # GPUs of one unit of this tier; 0 = unlimited
    peers: int = static(default=0)  # other units of the tier below to which a unit has direct links; 0 = a switch
    chain: int = static(default=0)  # units of the tier below in a row, linked to their neighbours alone; 0 = a switch
    wraps: bool = static(default=False)  # whether the first and the last unit of the row are linked: a ring


@record
class Network:
    """The tiers, innermost first; the first one is the fast domain."""

    tiers: tuple[Tier, ...]
    linked: int = static(default=1)  # tiers with direct links of the GPUs; the outer tiers use NICs
    gpus_per_nic: float = static(default=1.0)  # bandwidth of a NIC over one GPU's share of it
    nics: float = static(default=1.0)  # of a unit of GPUs with direct links, if GPUs share them

    @property
    def nvs(self) -> Tier:
        """The tier inside a fast domain."""
        return self.tiers[0]

    @property
    def net(self) -> Tier:
        """The first tier that uses NICs."""
        return self.tiers[self.linked]

    @property
    def middle(self) -> tuple[Tier, ...]:
        """The tiers between the fast domain and the outermost one; empty for a network of two tiers."""
        return self.tiers[1:-1]

    def oversubscription(self, tier: int) -> float:
        """Return the bandwidth of the NICs over that of a tier; 1 inside the tiers without NICs."""
        return self.net.bandwidth / self.tiers[tier].bandwidth if tier >= self.linked else 1.0


@record
class Device:
    """Peak rates of one GPU; a leaf is a float, or an [H] array of hardware points."""

    matrix_flops: float
    vector_flops: float
    hbm_bandwidth: float
    hbm_capacity: float
    fp8_flops: float  # as those below: 0 if such multiplies run at matrix_flops
    fp4_flops: float
    int8_flops: float
    sustained_share: float  # 0: that of the assumptions
    fp8_sustained_share: float
    attention_forward: tuple[float, ...]  # by generation of fused kernels; 0: it has none of it
    attention_backward: tuple[float, ...]
    power_share: float  # power limit over the power of its data sheet
    host_bandwidth: float
    num_sms: float  # 1 if unknown, so that every wave of tiles is full
    name: str = static()


@record
class DeviceOperation:
    """Facts of the operation of one GPU."""

    price: float
    site_power: float  # W that the site draws for it: the most that a GPU draws, times `pue`
    mtbf: float
    restart: float
    checkpoint: float


@record
class Node:
    """A host and the GPUs that share its memory; a leaf is a float, or an [H] array of hardware points."""

    gpus: float
    gpus_per_host_link: float
    host_memory: float
    host_memory_bandwidth: float


@record
class Cluster:
    """A machine of equal GPUs."""

    device: Device
    network: Network
    node: Node
    operation: DeviceOperation
    name: str = static()
    label: str = static()  # the name, with what a GPU is where that is not plain

    @property
    def node_size(self) -> int:
        """The GPUs of a node where nodes fill a fast domain; else 1, as a domain does not say which nodes it takes."""
        node = int(self.node.gpus)
        return 1 if self.network.nvs.size % node else node


_HOST_BANDWIDTH = 32e9  # bytes/s of PCIe 4 x16, for a cluster file that states none


def cluster_from_spec(spec: ClusterSpec) -> Cluster:
    """Return the cluster that a cluster file describes; its leaves are Python floats in SI units."""
    device = spec.device
    kernels = [device.attention.get(generation) for generation in GENERATIONS]
    resolved: dict[str, Any] = {
        "fp8_sustained_share": device.fp8_sustained_share or device.sustained_share or 0.0,
        "attention_forward": tuple(kernel.forward if kernel else 0.0 for kernel in kernels),
        "attention_backward": tuple(kernel.backward if kernel else 0.0 for kernel in kernels),
        "power_share": (device.power or 1.0) / (device.full_power or device.power or 1.0),
        "host_bandwidth": device.host_bandwidth or _HOST_BANDWIDTH,
        "num_sms": float(device.num_sms or 1),
    }
    money = {"price": spec.price or 0.0, "site_power": (device.power or 0.0) * (spec.pue or 1.0)}
    return Cluster(
        device=Device(**(_numbers(Device, device) | resolved), name=device.name),
        network=network_from_spec(spec.network),
        node=Node(**_numbers(Node, spec.node)),
        operation=DeviceOperation(**(_numbers(DeviceOperation, spec.failures) | money)),
        name=spec.name,
        label=spec.label,
    )


def _numbers(record: type, spec: object) -> dict[str, Any]:
    """Return the leaves of a record by the fields of a spec that have their names; 0 for what it does not state."""
    return {name: float(getattr(spec, name, None) or 0.0) for name in leaves(record)}


def anonymous(cluster: Cluster) -> Cluster:
    """Return the cluster without names and sizes, so that clusters share compiled functions."""
    unnamed = tuple(replace(tier, name="", size=0) for tier in cluster.network.tiers)
    device, network = replace(cluster.device, name=""), replace(cluster.network, tiers=unnamed)
    return replace(cluster, device=device, network=network, name="", label="")


def network_from_spec(spec: NetworkSpec) -> Network:
    """Return the network that a cluster file describes; without a topology two tiers, the outer of unlimited size."""
    nvs, net, topology = spec.nvs, spec.net, spec.topology
    torus = topology if isinstance(topology, TorusSpec) else None
    wraps, size = bool(torus and torus.wrap), nvs.size
    peers, chain = (size - 1 if nvs.mesh else 0), (size if torus else 0)
    tiers = [Tier(nvs.bandwidth, nvs.latency, "nvs", size, peers, chain, wraps)]
    outermost = Level("net", None, net.bandwidth, net.latency)
    for name, units, bandwidth, latency in topology.levels_outside(nvs, net) if topology else (outermost,):
        size *= units or 0
        peers = units - 1 if units and isinstance(topology, FullyConnectedSpec) else 0
        chain = units if units and torus else 0
        tiers.append(Tier(bandwidth, latency, name, size, peers, chain, wraps and units is not None))
    linked = len(torus.shape) if torus else 1
    gpus_per_nic = (net.nic_bandwidth or net.bandwidth) / net.bandwidth
    nics = tiers[linked - 1].size / gpus_per_nic if gpus_per_nic > 1.0 else 1.0
    return Network(tiers=tuple(tiers), linked=linked, gpus_per_nic=gpus_per_nic, nics=nics)
