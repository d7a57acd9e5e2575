"""The network of a cluster file: fast domains, their NICs, and the topology that joins them, of one of several kinds.

A topology is physical: how many units of the level below a switch joins, the number and bandwidth of links, the
oversubscription of uplinks. Each kind says which units its levels have, and what a message that crosses a level gets:
the bandwidth of one GPU when all GPUs send out of their units at once, and the latency of a whole message. No level
with NICs gives a GPU more bandwidth than its NIC or the level below, since an outward message crosses them all.
`dsx.config.cluster_file` prices the levels as tiers. Without a topology there are two tiers, the fast domain and the
network of its NICs. Every kind may state `gpus`, the product of its levels.

Not modelled: different units on one level, failed links, adaptive routing over idle links, other jobs on the same
switches.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Self, TypeVar, Union, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dsx.config.schema import BytesPerSecond, Count, Flag, Seconds, Sourced, Spec, number, usually
from dsx.errors import SpecError, did_you_mean
from dsx.units import LARGEST_COUNT

Oversubscription = Annotated[float, Field(ge=1), BeforeValidator(number)]  # bytes/s into a switch over those out of it
INNERMOST = "nvs"
_MOST_LEVELS = 40  # real machines have up to four


def _name(value: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9]*", value) or value == INNERMOST:
        why = "it is the fast domain" if value == INNERMOST else "write small letters and digits, a letter first"
        lowered = re.sub("[^a-z0-9]|^[^a-z]*", "", value.lower())
        nearest = f"; nearest: {lowered!r}" if lowered and value != INNERMOST else ""
        raise ValueError(f"{value!r} cannot be the name of a level: {why}{nearest}")
    return value


class TierSpec(Spec):
    """A network level, as one GPU sees it."""

    bandwidth: BytesPerSecond  # per GPU and direction
    latency: Seconds  # of one hop


class FastTierSpec(TierSpec):
    """The fast domain: NVLink and NVSwitch, or the interconnect of another vendor."""

    size: Count  # GPUs of a fast domain
    mesh: Flag = False  # a link between each two GPUs and no switch: a group uses only the links among its members


class SlowTierSpec(TierSpec):
    """The network between fast domains; `bandwidth` is a GPU's share of its NIC when all GPUs of a domain send."""

    nic_bandwidth: BytesPerSecond | None = None  # of a NIC that several GPUs share; None: each GPU has one

    @field_validator("nic_bandwidth")
    @classmethod
    def _holds_a_share(cls, value: float | None, info: ValidationInfo) -> float | None:
        share = info.data.get("bandwidth")
        if value is not None and share is not None and value < share:
            raise ValueError(f"{value:g} B/s is less than bandwidth, {share:g} B/s, one GPU's share of the NIC")
        return value


class _Level(Spec):
    """A physical level of a network: how many units of the level below it joins."""

    name: Annotated[str, AfterValidator(_name)]
    units: Count | None = None  # on the first level: fast domains; None: unlimited, on the outermost level alone


class SwitchLevelSpec(_Level):
    """A level of a fat tree."""

    oversubscription: Oversubscription = 1.0  # of the uplinks of its switches
    latency: Seconds | None = None  # total latency of a message that crosses it; None: as on the level below


class NumberedLevelSpec(_Level):
    """A level with its bandwidth and latency as plain numbers."""

    bandwidth: BytesPerSecond  # per GPU and direction when all GPUs send
    latency: Seconds  # total latency of a message that crosses it


L = TypeVar("L", bound=_Level)


def _check_levels(levels: list[L]) -> list[L]:
    names = [level.name for level in levels]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two levels are called {twice!r}: each level needs its own name")
    for level in levels[:-1]:
        if level.units is None:
            raise ValueError(f"{level.name!r} states no units; only the outermost level may leave them out")
    return levels


Levels = Annotated[list[L], Field(min_length=1, max_length=_MOST_LEVELS), AfterValidator(_check_levels)]


class Level(NamedTuple):
    """A level outside the fast domain, as one GPU sees it."""

    name: str
    units: int | None  # how many units of the level below it joins; None: no limit
    bandwidth: float  # for one GPU when all GPUs send
    latency: float  # of a message that crosses it


def _stated(latency: float | None, usual: float) -> float:
    return usual if latency is None else latency


class Topology(Spec, ABC):
    """How fast domains are joined: in levels, the innermost first."""

    gpus: Count | None = None  # of the whole machine; None: the product of the levels

    @abstractmethod
    def levels_outside(self, nvs: FastTierSpec, net: SlowTierSpec) -> Sequence[Level]:
        """Return the levels; raises ValueError, with the difference, where one does not fit the fast domain."""


class FatTreeSpec(Topology):
    """A fat tree, or folded Clos: levels of switches, each of which joins the units of its level."""

    kind: Literal["fat_tree"]
    levels: Levels[SwitchLevelSpec]

    @field_validator("levels")
    @classmethod
    def _outermost_has_no_uplinks(cls, levels: list[SwitchLevelSpec]) -> list[SwitchLevelSpec]:
        last = levels[-1]
        if last.oversubscription > 1:
            raise ValueError(
                f"{last.name!r} is the outermost level and has no uplinks: an oversubscription of "
                f"{last.oversubscription:g} belongs to the level below it, or a level above is missing"
            )
        return levels

    def levels_outside(self, nvs: FastTierSpec, net: SlowTierSpec) -> Sequence[Level]:
        """Return levels of bandwidth = NIC / (product of the oversubscriptions of the levels below).

        Oversubscription limits the uplinks of a level, so the first level has the bandwidth of the NICs (Leiserson,
        IEEE Trans. Computers C-34, 1985; Al-Fares, Loukissas and Vahdat, SIGCOMM 2008).
        """
        bandwidth, latency = net.bandwidth, net.latency
        levels: list[Level] = []
        for level in self.levels:
            latency = _stated(level.latency, latency)
            levels.append(Level(level.name, level.units, bandwidth, latency))
            bandwidth = bandwidth / level.oversubscription
        return levels


class SpineLeafSpec(Topology):
    """Leaf switches that join fast domains, with uplinks to a spine."""

    kind: Literal["spine_leaf"]
    domains_per_leaf: Count
    leaves: Count | None = None
    uplinks_per_leaf: Count
    uplink_bandwidth: BytesPerSecond  # of one uplink, per direction
    spine_latency: Seconds | None = None  # total latency of a message through the spine; None: as through a leaf

    def levels_outside(self, nvs: FastTierSpec, net: SlowTierSpec) -> Sequence[Level]:
        """Return NIC, and a GPU's share of the uplinks, uplinks * bandwidth / (domains * GPUs per domain).

        The oversubscription is NIC over that share, at least 1 (Alizadeh and Edsall, HotI 2013: a two-stage Clos
        network).
        """
        share = self.uplinks_per_leaf * self.uplink_bandwidth / (self.domains_per_leaf * nvs.size)
        leaf = Level("leaf", self.domains_per_leaf, net.bandwidth, net.latency)
        return leaf, Level("spine", self.leaves, min(net.bandwidth, share), _stated(self.spine_latency, net.latency))


class RailOptimizedSpec(Topology):
    """Rails: inside a unit of some fast domains, the GPUs of the same position in their domains share a leaf switch."""

    kind: Literal["rail_optimized"]
    domains_per_unit: Count
    units: Count | None = None
    oversubscription: Oversubscription = 1.0  # of the uplinks of the leaves
    spine_latency: Seconds | None = None  # total latency of a message through the spine; None: as along a rail

    def levels_outside(self, nvs: FastTierSpec, net: SlowTierSpec) -> Sequence[Level]:
        """Return NIC, and NIC / oversubscription.

        Inside a unit, GPUs of the same position in their domains are one switch apart. A message between different
        positions crosses the fast domain first (PXN of NCCL 2.12); since that has more bandwidth, it adds one hop and
        no transfer time. A group with several members in a domain sends on the rail of each (NVIDIA DGX SuperPOD
        reference architecture, H100: from memory of it).
        """
        bandwidth, latency = net.bandwidth / self.oversubscription, _stated(self.spine_latency, net.latency)
        rail = Level("rail", self.domains_per_unit, net.bandwidth, net.latency)
        return rail, Level("spine", self.units, bandwidth, latency)


class TorusSpec(Topology):
    """A torus of two or three dimensions; the first one is the fast domain, and neighbours have one link."""

    kind: Literal["torus"]
    shape: Annotated[list[Count], Field(min_length=2, max_length=3), Sourced]
    wrap: Flag = True  # whether the first and the last chip of a dimension have a link
    link_bandwidth: BytesPerSecond  # of one link, per direction
    latency: Seconds | None = None  # of one hop; None: that of the fast domain

    @property
    def along(self) -> float:
        """Bytes/s along a dimension: links * link_bandwidth.

        In a dimension that wraps around, a chip sends on two links, in both directions of its ring; in one that does
        not, a ring folds, with one link in each direction.
        """
        return self.link_bandwidth * (2 if self.wrap else 1)

    def levels_outside(self, nvs: FastTierSpec, net: SlowTierSpec) -> Sequence[Level]:
        """Return each dimension after the first, with the bandwidth `along` it, and the NICs between tori.

        A group on a part of a dimension has no wrap-around and half the bandwidth (Jouppi et al., arXiv 2304.01433,
        section 2; rings of one dimension after the other: Sack and Gropp, PPoPP 2012).
        """
        if self.shape[0] != nvs.size:
            raise ValueError(
                f"the first dimension of the torus is the fast domain: network.nvs.size is {nvs.size}, "
                f"{_off(nvs.size, self.shape[0])} the first size of shape, {self.shape[0]}"
            )
        hop_s, dimensions = _stated(self.latency, nvs.latency), zip(("y", "z"), self.shape[1:], strict=False)
        inner = (Level(name, size, self.along, hop_s) for name, size in dimensions)
        return *inner, Level("net", None, net.bandwidth, net.latency)


class DragonflySpec(Topology):
    """Groups of routers: a router has a link to each other router of its group, and links to other groups."""

    kind: Literal["dragonfly"]
    gpus_per_router: Count
    routers_per_group: Count
    groups: Count | None = None
    local_bandwidth: BytesPerSecond  # between two routers of a group, per direction
    global_bandwidth: BytesPerSecond  # of one link between groups, per direction
    global_links_per_router: Count
    local_latency: Seconds | None = None  # total latency of a message inside a group; None: as inside a router
    global_latency: Seconds | None = None  # total latency of a message between groups; None: as inside a group

    @model_validator(mode="after")
    def _reaches_every_group(self) -> Self:
        links = self.routers_per_group * self.global_links_per_router
        if self.groups is not None and self.groups - 1 > links:
            raise ValueError(
                f"with {self.groups} groups, each needs a link to {self.groups - 1} others, but has "
                f"routers_per_group * global_links_per_router = {self.routers_per_group} * "
                f"{self.global_links_per_router} = {links}: {self.groups - 1 - links} short"
            )
        return self

    def levels_outside(self, nvs: FastTierSpec, net: SlowTierSpec) -> Sequence[Level]:
        """Return router, group and all groups, each with a GPU's share of the links of its router.

        With p GPUs per router and a routers per group it is (a - 1) local_bandwidth / p inside the group, and
        global_links_per_router * global_bandwidth / p between groups, under uniform traffic on shortest paths (Kim,
        Dally, Scott and Abts, ISCA 2008, section 3).

        Not modelled: traffic between two groups alone, which has one direct link and takes up to twice as many links
        on detours.
        """
        domains, excess = divmod(self.gpus_per_router, nvs.size)
        if excess:
            raise ValueError(
                f"gpus_per_router: {self.gpus_per_router} GPUs are not a multiple of the fast domain, "
                f"{nvs.size}: {nvs.size - excess} short of {domains + 1} domains"
            )
        in_group, per_gpu = net.bandwidth, 1.0 / self.gpus_per_router
        if self.routers_per_group > 1:
            in_group = min(in_group, (self.routers_per_group - 1) * self.local_bandwidth * per_gpu)
        outside = min(in_group, self.global_links_per_router * self.global_bandwidth * per_gpu)
        local = _stated(self.local_latency, net.latency)
        return (
            Level("router", domains, net.bandwidth, net.latency),
            Level("group", self.routers_per_group, in_group, local),
            Level("global", self.groups, outside, _stated(self.global_latency, local)),
        )


class FullyConnectedSpec(Topology):
    """A link between each two fast domains, without switches."""

    kind: Literal["fully_connected"]
    domains: Annotated[Count, Field(ge=2)]
    link_bandwidth: BytesPerSecond  # between two domains, per direction

    def levels_outside(self, nvs: FastTierSpec, net: SlowTierSpec) -> Sequence[Level]:
        """Return one level, a GPU's share of its domain's links, (domains - 1) * link_bandwidth / GPUs of a domain.

        A group on some of the domains uses only the links among them, as in a fast domain that is a mesh.
        """
        share = (self.domains - 1) * self.link_bandwidth / nvs.size
        return (Level("net", self.domains, min(net.bandwidth, share), net.latency),)


class LevelsSpec(Topology):
    """Levels with bandwidths and latencies as plain numbers."""

    kind: Literal["levels"]
    levels: Levels[NumberedLevelSpec]

    def levels_outside(self, nvs: FastTierSpec, net: SlowTierSpec) -> Sequence[Level]:
        """Return those stated, none faster than the level below: a path has the least bandwidth of its levels."""
        least = [*accumulate((level.bandwidth for level in self.levels), min, initial=net.bandwidth)][1:]
        return [
            Level(level.name, level.units, bandwidth, level.latency)
            for level, bandwidth in zip(self.levels, least, strict=True)
        ]


_KINDS = FatTreeSpec, SpineLeafSpec, RailOptimizedSpec, TorusSpec, DragonflySpec, FullyConnectedSpec, LevelsSpec
_BY_KIND = {get_args(spec.model_fields["kind"].annotation)[0]: spec for spec in _KINDS}


def _arm(value: object) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return f"<{kind}>" if isinstance(kind, str) and kind in _BY_KIND else None


def _of_a_kind(value: object) -> object:
    if isinstance(value, dict) and _arm(value) is None:
        kinds = ", ".join(_BY_KIND)
        if "kind" not in value:
            raise ValueError(f"'kind' is required, one of {kinds}")
        kind = str(value["kind"])
        raise ValueError(f"kind: {kind!r} is not one of {kinds}{did_you_mean(kind, _BY_KIND)}")
    return value


if TYPE_CHECKING:
    AnyTopology = Topology
else:
    AnyTopology = Annotated[
        Union[tuple(Annotated[spec, Tag(f"<{kind}>")] for kind, spec in _BY_KIND.items())],  # noqa: UP007
        Discriminator(_arm, "topology", f"expected a section with a kind: {', '.join(_BY_KIND)}"),
        BeforeValidator(_of_a_kind),
    ]


def _check_sizes(topology: Topology, levels: Sequence[Level], domain: int) -> None:
    """Raise ValueError where the product of the levels is too large, or not the stated number of GPUs."""
    limited = {level.name: level.units for level in levels if level.units is not None}
    size = domain * math.prod(limited.values())
    if size > LARGEST_COUNT:
        raise ValueError(f"the levels multiply to {size} GPUs; at most {LARGEST_COUNT} are allowed")
    if topology.gpus is None:
        return
    factors = " * ".join(f"{name}={units}" for name, units in ({INNERMOST: domain} | limited).items())
    if levels[-1].units is None and not isinstance(topology, TorusSpec):
        if topology.gpus % size:
            raise ValueError(
                f"gpus: {topology.gpus} GPUs are not a multiple of {factors} = {size}: "
                f"{size - topology.gpus % size} short of {topology.gpus // size + 1} such units"
            )
    elif topology.gpus != size:
        raise ValueError(f"gpus: {factors} = {size} GPUs, {_off(size, topology.gpus)} the stated {topology.gpus}")


def _off(size: int, target: int) -> str:
    return f"{target - size} short of" if size < target else f"{size - target} more than"


class NetworkSpec(Spec):
    """The fast domains, their NICs, and the topology that joins them."""

    nvs: FastTierSpec
    net: SlowTierSpec
    topology: AnyTopology | None = usually(None)  # None: all domains are equally far apart

    @field_validator("topology")
    @classmethod
    def _fits_the_domain(cls, topology: Topology | None, info: ValidationInfo) -> Topology | None:
        nvs: FastTierSpec | None = info.data.get("nvs")
        net: SlowTierSpec | None = info.data.get("net")
        if topology is None or nvs is None or net is None:
            return topology
        _check_sizes(topology, topology.levels_outside(nvs, net), nvs.size)
        if isinstance(topology, TorusSpec):
            if nvs.bandwidth != topology.along:
                raise ValueError(
                    f"link_bandwidth: along a dimension {'two links' if topology.wrap else 'a link'} of a chip carry "
                    f"{topology.along:g} B/s, and network.nvs.bandwidth is {nvs.bandwidth:g} B/s"
                )
            if nvs.mesh:
                raise ValueError("network.nvs.mesh: the fast domain of a torus is a ring, not a mesh")
        return topology


def changed_network(network: NetworkSpec, values: Mapping[str, float | int]) -> NetworkSpec:
    """Return a network with the fields at some paths ("net.bandwidth") changed to `values`, in SI units.

    Raises SpecError where its topology does not fit the values.
    """
    changed = network
    for path, value in values.items():
        section, name = path.split(".")
        changed = changed.model_copy(update={section: getattr(changed, section).model_copy(update={name: value})})
    try:
        return NetworkSpec.model_validate(changed.model_dump(mode="json"))
    except ValidationError as error:
        changes = ", ".join(f"network.{path} = {value:g}" for path, value in values.items())
        reasons = "; ".join(str(details.get("ctx", {}).get("error", details["msg"])) for details in error.errors())
        raise SpecError(f"{changes}: {reasons}") from None
