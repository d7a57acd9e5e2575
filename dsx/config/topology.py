"""The `topology` of a cluster file: how its fast domains are joined, in one of several kinds.

A topology is physical: how many units of the level below a switch joins, the number and bandwidth of links, the
oversubscription of uplinks. `dsx.hardware.network` derives the tiers from it. A cluster file without a topology has two
tiers, the fast domain and the network of its NICs. Every kind may state `gpus`, the product of its levels.

Not modelled: different units on one level, failed links.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo, model_validator
from pydantic import field_validator as validated

from dsx.config.load import Spec
from dsx.config.values import BytesPerSecond, Count, Flag, Seconds, Sourced, number
from dsx.errors import did_you_mean
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


TierName = Annotated[str, AfterValidator(_name)]


class _Level(Spec):
    """A physical level of a network: how many units of the level below it joins."""

    name: TierName
    units: Count | None = None  # on the first level: fast domains; None: unlimited, on the outermost level alone


class SwitchLevelSpec(_Level):
    """A level of a fat tree."""

    oversubscription: Oversubscription = 1.0  # of the uplinks of its switches
    latency: Seconds | None = None  # total latency of a message that crosses it; None: as on the level below


class NumberedLevelSpec(_Level):
    """A level with its bandwidth and latency as plain numbers."""

    bandwidth: BytesPerSecond  # per GPU and direction when all GPUs send
    latency: Seconds  # total latency of a message that crosses it


class _Topology(Spec):
    gpus: Count | None = None  # of the whole machine; None: the product of the levels


class FatTreeSpec(_Topology):
    """A fat tree, or folded Clos: levels of switches, each of which joins the units of its level."""

    kind: Literal["fat_tree"]
    levels: Annotated[list[SwitchLevelSpec], Field(min_length=1, max_length=_MOST_LEVELS)]

    @validated("levels")
    @classmethod
    def _has_units(cls, levels: list[SwitchLevelSpec]) -> list[SwitchLevelSpec]:
        _check_levels(levels)
        last = levels[-1]
        if last.oversubscription > 1:
            raise ValueError(
                f"{last.name!r} is the outermost level and has no uplinks: an oversubscription of "
                f"{last.oversubscription:g} belongs to the level below it, or a level above is missing"
            )
        return levels


class SpineLeafSpec(_Topology):
    """Leaf switches that join fast domains, with uplinks to a spine."""

    kind: Literal["spine_leaf"]
    domains_per_leaf: Count
    leaves: Count | None = None
    uplinks_per_leaf: Count
    uplink_bandwidth: BytesPerSecond  # of one uplink, per direction
    spine_latency: Seconds | None = None  # total latency of a message through the spine; None: as through a leaf


class RailOptimizedSpec(_Topology):
    """Rails: inside a unit of some fast domains, the GPUs of the same position in their domains share a leaf switch."""

    kind: Literal["rail_optimized"]
    domains_per_unit: Count
    units: Count | None = None
    oversubscription: Oversubscription = 1.0  # of the uplinks of the leaves
    spine_latency: Seconds | None = None  # total latency of a message through the spine; None: as along a rail


class TorusSpec(_Topology):
    """A torus of two or three dimensions; the first one is the fast domain, and neighbours have one link."""

    kind: Literal["torus"]
    shape: Annotated[list[Count], Field(min_length=2, max_length=3), Sourced]
    wrap: Flag = True  # whether the first and the last chip of a dimension have a link
    link_bandwidth: BytesPerSecond  # of one link, per direction
    latency: Seconds | None = None  # of one hop; None: that of the fast domain


class DragonflySpec(_Topology):
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


class FullyConnectedSpec(_Topology):
    """A link between each two fast domains, without switches."""

    kind: Literal["fully_connected"]
    domains: Annotated[Count, Field(ge=2)]
    link_bandwidth: BytesPerSecond  # between two domains, per direction


class LevelsSpec(_Topology):
    """Levels with bandwidths and latencies as plain numbers."""

    kind: Literal["levels"]
    levels: Annotated[list[NumberedLevelSpec], Field(min_length=1, max_length=_MOST_LEVELS)]

    @validated("levels")
    @classmethod
    def _has_units(cls, levels: list[NumberedLevelSpec]) -> list[NumberedLevelSpec]:
        _check_levels(levels)
        return levels


Topology = (
    FatTreeSpec
    | SpineLeafSpec
    | RailOptimizedSpec
    | TorusSpec
    | DragonflySpec
    | FullyConnectedSpec
    | LevelsSpec
)  # fmt: skip
KINDS = ("fat_tree", "spine_leaf", "rail_optimized", "torus", "dragonfly", "fully_connected", "levels")


def _arm(value: object) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return f"<{kind}>" if kind in KINDS else None


def _known(value: object) -> object:
    if isinstance(value, dict) and _arm(value) is None:
        known = ", ".join(KINDS)
        if "kind" not in value:
            raise ValueError(f"'kind' is required, one of {known}")
        kind = str(value["kind"])
        raise ValueError(f"kind: {kind!r} is not one of {known}{did_you_mean(kind, KINDS)}")
    return value


AnyTopology = Annotated[
    Annotated[FatTreeSpec, Tag("<fat_tree>")]
    | Annotated[SpineLeafSpec, Tag("<spine_leaf>")]
    | Annotated[RailOptimizedSpec, Tag("<rail_optimized>")]
    | Annotated[TorusSpec, Tag("<torus>")]
    | Annotated[DragonflySpec, Tag("<dragonfly>")]
    | Annotated[FullyConnectedSpec, Tag("<fully_connected>")]
    | Annotated[LevelsSpec, Tag("<levels>")],
    Discriminator(
        _arm, custom_error_type="topology", custom_error_message=f"expected a section with a kind: {', '.join(KINDS)}"
    ),
    BeforeValidator(_known),
]


def _check_levels(levels: Sequence[_Level]) -> None:
    names = [level.name for level in levels]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two levels are called {twice!r}: each level needs its own name")
    for level in levels[:-1]:
        if level.units is None:
            raise ValueError(f"{level.name!r} states no units; only the outermost level may leave them out")


def units_of(topology: Topology, domain: int) -> tuple[tuple[str, int | None], ...]:
    """Return (name, units of the level below) of each level outside the fast domain of `domain` GPUs.

    Units of None mean a level without a limit. Raises ValueError, with the difference, where levels do not fit.
    """
    match topology:
        case FatTreeSpec() | LevelsSpec():
            return tuple((level.name, level.units) for level in topology.levels)
        case SpineLeafSpec():
            return (("leaf", topology.domains_per_leaf), ("spine", topology.leaves))
        case RailOptimizedSpec():
            return (("rail", topology.domains_per_unit), ("spine", topology.units))
        case TorusSpec():
            if topology.shape[0] != domain:
                raise ValueError(
                    f"the first dimension of the torus is the fast domain: network.nvs.size is {domain}, "
                    f"{_off(domain, topology.shape[0])} the first size of shape, {topology.shape[0]}"
                )
            return (*zip(("y", "z"), topology.shape[1:], strict=False), ("net", None))
        case DragonflySpec():
            if left := topology.gpus_per_router % domain:
                raise ValueError(
                    f"gpus_per_router: {topology.gpus_per_router} GPUs are not a multiple of the fast domain, "
                    f"{domain}: {domain - left} short of {topology.gpus_per_router // domain + 1} domains"
                )
            routers = (("router", topology.gpus_per_router // domain), ("group", topology.routers_per_group))
            return (*routers, ("global", topology.groups))
        case FullyConnectedSpec():
            return (("net", topology.domains),)


def check_sizes(topology: Topology, domain: int) -> None:
    """Raise ValueError where the levels do not fit each other, or their product is not the stated number of GPUs."""
    sizes = [domain]
    levels = units_of(topology, domain)
    for _, units in levels:
        if units is not None:
            sizes.append(sizes[-1] * units)
    if sizes[-1] > LARGEST_COUNT:
        raise ValueError(f"the levels multiply to {sizes[-1]} GPUs; at most {LARGEST_COUNT} are allowed")
    if topology.gpus is None:
        return
    factors = " * ".join([f"{INNERMOST}={domain}", *(f"{name}={units}" for name, units in levels if units is not None)])
    if levels[-1][1] is None and not isinstance(topology, TorusSpec):
        if topology.gpus % sizes[-1]:
            short = sizes[-1] - topology.gpus % sizes[-1]
            raise ValueError(
                f"gpus: {topology.gpus} GPUs are not a multiple of {factors} = {sizes[-1]}: {short} short of "
                f"{topology.gpus // sizes[-1] + 1} such units"
            )
    elif topology.gpus != sizes[-1]:
        raise ValueError(
            f"gpus: {factors} = {sizes[-1]} GPUs, {_off(sizes[-1], topology.gpus)} the stated {topology.gpus}"
        )


def _off(found: int, wanted: int) -> str:
    return f"{wanted - found} short of" if found < wanted else f"{found - wanted} more than"


def fits_network(topology: Topology | None, info: ValidationInfo) -> Topology | None:
    """Check a topology against the fast domain, which is validated first; raises ValueError."""
    nvs = info.data.get("nvs")
    if topology is None or nvs is None:
        return topology
    check_sizes(topology, nvs.size)
    if isinstance(topology, TorusSpec):
        along = topology.link_bandwidth * (2 if topology.wrap else 1)
        if nvs.bandwidth != along:
            raise ValueError(
                f"link_bandwidth: along a dimension {'two links' if topology.wrap else 'a link'} of a chip carry "
                f"{along:g} B/s, and network.nvs.bandwidth is {nvs.bandwidth:g} B/s"
            )
        if nvs.mesh:
            raise ValueError("network.nvs.mesh: the fast domain of a torus is a ring, not a mesh")
    return topology
