"""A cluster file: one device, and the network between its copies: fast domains, NICs, and what joins those.

Without a topology there are two tiers: inside a fast domain, and between fast domains. Not modelled: devices that
differ.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from dsx.errors import SpecError
from dsx.spec.load import Given, Spec, load_overridden
from dsx.spec.overrides import Assignment
from dsx.spec.quantities import Bytes, BytesPerSecond, Count, Flag, FlopsPerSecond, Seconds, Sourced, Watts
from dsx.spec.topology import AnyTopology, Topology, fits_network
from dsx.spec.validate import validate


class DeviceSpec(Spec):
    """One GPU, by its data sheet: efficiencies belong to the assumption set."""

    name: str
    matrix_flops: FlopsPerSecond  # dense, at the precision of training
    vector_flops: FlopsPerSecond
    hbm_bandwidth: BytesPerSecond
    hbm_capacity: Annotated[Bytes, Field(gt=0)]
    fp8_flops: FlopsPerSecond | None = None  # dense, at 8 bits; none: such multiplies run at matrix_flops
    num_sms: Count | None = None  # multiprocessors; none: unknown, so waves of tiles are not counted
    power: Watts | None = None  # that it may draw; none: as much as its data sheet says
    full_power: Watts | None = None  # what its data sheet says, where `power` is less
    # What it is programmed with, which decides the launchers that run on it.
    software: Annotated[Literal["cuda", "rocm", "xla", "synapseai", "neuron"], Sourced] = "cuda"
    host_bandwidth: BytesPerSecond | None = None  # to the host's memory, per direction; none: that of PCIe 4, 32 GB/s

    @model_validator(mode="after")
    def _limits_power(self) -> Self:
        if (self.power is None) != (self.full_power is None):
            raise ValueError("power and full_power belong together: what the GPU may draw, and what it would")
        if self.power and self.full_power and self.power > self.full_power:
            raise ValueError(f"power: {self.power:g} W is more than full_power, {self.full_power:g} W")
        return self


class TierSpec(Spec):
    """A network level, as one GPU sees it."""

    bandwidth: BytesPerSecond  # per GPU and direction
    latency: Seconds  # of one hop


class FastTierSpec(TierSpec):
    """The fast domain: NVLink and NVSwitch, or what another maker calls it."""

    size: Count  # GPUs that share it
    mesh: Flag = False  # links from each GPU to each other, no switch: some of them have the links among those alone


class SlowTierSpec(TierSpec):
    """The network between domains; `bandwidth` is a GPU's share of its NIC where all GPUs of a domain send."""

    nic_bandwidth: BytesPerSecond | None = None  # of a NIC that GPUs share; none: each GPU has one

    @field_validator("nic_bandwidth")
    @classmethod
    def _holds_a_share(cls, value: float | None, info: ValidationInfo) -> float | None:
        share = info.data.get("bandwidth")
        if value is not None and share is not None and value < share:
            raise ValueError(f"{value:g} B/s is less than bandwidth, {share:g} B/s, one GPU's share of the NIC")
        return value


class NetworkSpec(Spec):
    """The fast domains, the NICs behind which they are joined, and how."""

    nvs: FastTierSpec
    net: SlowTierSpec
    topology: AnyTopology | None = None  # none: all domains are alike to each other

    @field_validator("topology")
    @classmethod
    def _fits(cls, topology: Topology | None, info: ValidationInfo) -> Topology | None:
        return fits_network(topology, info)

    @model_serializer(mode="wrap")
    def _without_blank_topology(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A result set is known by what its cluster states: one without a topology stays what it was.
        return {name: value for name, value in write(self).items() if name != "topology" or value is not None}


def changed_network(network: NetworkSpec, values: Mapping[str, float | int]) -> NetworkSpec:
    """Return a network with other values of the fields at some paths ("net.bandwidth"), in SI units.

    Raises SpecError where its topology does not fit them.
    """
    changed: BaseModel = network
    for path, value in values.items():
        changed = _with(changed, path.split("."), value)
    try:
        return NetworkSpec.model_validate(changed.model_dump(mode="json"))
    except ValidationError as error:
        stated = ", ".join(f"network.{path} = {value:g}" for path, value in values.items())
        reasons = "; ".join(str(details.get("ctx", {}).get("error", details["msg"])) for details in error.errors())
        raise SpecError(f"{stated}: {reasons}") from error


def _with(spec: BaseModel, path: Sequence[str], value: float | int) -> BaseModel:
    name, *rest = path
    return spec.model_copy(update={name: _with(getattr(spec, name), rest, value) if rest else value})


class RunTableSpec(Spec):
    """What tables of measured runs call this machine."""

    gpus: Annotated[list[str], Field(min_length=1)]  # how names of its GPU begin; case and punctuation do not count
    gpus_per_node: Annotated[list[Count], Field(min_length=1)]  # as tables count them, not always the fast domain


class ClusterSpec(Spec):
    """A machine of equal GPUs; how many of them is a setting of the sweep."""

    name: str
    description: str = ""
    device: DeviceSpec
    network: NetworkSpec
    run_tables: RunTableSpec | None = None


def load_cluster(given: Given, overrides: Sequence[Assignment] = (), near: Path | None = None) -> ClusterSpec:
    """Return the cluster that is given, by name, path or content; `near` is the file that mentions it.

    Raises UnknownNameError, or SpecError that lists all faults of the file.
    """
    document = load_overridden("clusters", "cluster", ClusterSpec, given, overrides, near, open_keys=("network",))
    return validate(document, ClusterSpec)
