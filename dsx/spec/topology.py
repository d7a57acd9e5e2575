"""How the fast domains of a cluster are joined: `topology` of a cluster file, one of several kinds.

What stands here is physical: how many units of the level below a switch joins, how many links there are and how
fast, by how much uplinks are oversubscribed. `dsx.hardware.topology` derives the tiers from it, and says how. A
cluster file without a topology has two tiers, the fast domain and the NICs behind it. `gpus`, which every kind may
state, is what the levels must multiply to.

Not modelled: units of one level that differ, failed links.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo, model_validator
from pydantic import field_validator as validated

from dsx.errors import did_you_mean
from dsx.spec.load import Spec
from dsx.spec.quantities import BytesPerSecond, Count, Flag, Seconds, Sourced, number
from dsx.units import LARGEST_COUNT

Oversubscription = Annotated[float, Field(ge=1), BeforeValidator(number)]  # bytes/s into a switch over those out of it
INNERMOST = "nvs"
_MOST_LEVELS = 40  # no machine has more than four


def _name(value: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9]*", value) or value == INNERMOST:
        why = "that is the fast domain" if value == INNERMOST else "write small letters and digits, a letter first"
        lowered = re.sub("[^a-z0-9]|^[^a-z]*", "", value.lower())
        nearest = f"; nearest: {lowered!r}" if lowered and value != INNERMOST else ""
        raise ValueError(f"{value!r} is no name of a tier: {why}{nearest}")
    return value


TierName = Annotated[str, AfterValidator(_name)]


class _Level(Spec):
    """A level of a network as it was built: how many units of the level below it joins."""

    name: TierName
    units: Count | None = None  # fast domains, on the innermost level; none: as many as one likes, on the outermost


class SwitchLevelSpec(_Level):
    """A level of a fat tree."""

    oversubscription: Oversubscription = 1.0  # of the uplinks of its switches
    latency: Seconds | None = None  # of a message that crosses it, in all; none: as on the level below


class NumberedLevelSpec(_Level):
    """A level as numbers."""

    bandwidth: BytesPerSecond  # per GPU and direction where all send
    latency: Seconds  # of a message that crosses it, in all


class _Topology(Spec):
    gpus: Count | None = None  # of the whole machine; none: what the levels multiply to


class FatTreeSpec(_Topology):
    """Switches in levels, as many GPUs below each as its level joins: a fat tree, or folded Clos."""

    kind: Literal["fat_tree"]
    levels: Annotated[list[SwitchLevelSpec], Field(min_length=1, max_length=_MOST_LEVELS)]

    @validated("levels")
    @classmethod
    def _has_units(cls, levels: list[SwitchLevelSpec]) -> list[SwitchLevelSpec]:
        _check_levels(levels)
        last = levels[-1]
        if last.oversubscription > 1:
            raise ValueError(
                f"{last.name!r} is the outermost level, which has no uplinks to oversubscribe: "
                f"{last.oversubscription:g} belongs to the level below it, or a level above is missing"
            )
        return levels


class SpineLeafSpec(_Topology):
    """Leaf switches with so many domains below and uplinks to a spine above: their ratio is the oversubscription."""

    kind: Literal["spine_leaf"]
    domains_per_leaf: Count
    leaves: Count | None = None
    uplinks_per_leaf: Count
    uplink_bandwidth: BytesPerSecond  # of one of them, per direction
    spine_latency: Seconds | None = None  # of a message through the spine, in all; none: as through a leaf


class RailOptimizedSpec(_Topology):
    """Rails: the GPUs of one position in their domains share a leaf, in a unit of so many domains."""

    kind: Literal["rail_optimized"]
    domains_per_unit: Count
    units: Count | None = None
    oversubscription: Oversubscription = 1.0  # of the uplinks of the leaves
    spine_latency: Seconds | None = None  # of a message through the spine, in all; none: as along a rail


class TorusSpec(_Topology):
    """A torus of two or three dimensions, the first of which is the fast domain; its rings are of single links."""

    kind: Literal["torus"]
    shape: Annotated[list[Count], Field(min_length=2, max_length=3), Sourced]
    wrap: Flag = True  # whether the ends of a dimension are linked
    link_bandwidth: BytesPerSecond  # of one link, per direction
    latency: Seconds | None = None  # of one hop; none: that of the fast domain


class DragonflySpec(_Topology):
    """Groups of routers: each router has a link to each other of its group, and some to other groups."""

    kind: Literal["dragonfly"]
    gpus_per_router: Count
    routers_per_group: Count
    groups: Count | None = None
    local_bandwidth: BytesPerSecond  # between two routers of a group, per direction
    global_bandwidth: BytesPerSecond  # of one link between groups, per direction
    global_links_per_router: Count
    local_latency: Seconds | None = None  # of a message inside a group, in all; none: as inside a router
    global_latency: Seconds | None = None  # of a message between groups, in all; none: as inside a group

    @model_validator(mode="after")
    def _reaches_every_group(self) -> Self:
        links = self.routers_per_group * self.global_links_per_router
        if self.groups is not None and self.groups - 1 > links:
            raise ValueError(
                f"a group of {self.groups} needs a link to each of {self.groups - 1} others, and has "
                f"routers_per_group * global_links_per_router = {self.routers_per_group} * "
                f"{self.global_links_per_router} = {links}: {self.groups - 1 - links} short"
            )
        return self


class FullyConnectedSpec(_Topology):
    """A link from each domain to each other, and no switch."""

    kind: Literal["fully_connected"]
    domains: Annotated[Count, Field(ge=2)]
    link_bandwidth: BytesPerSecond  # between two domains, per direction


class LevelsSpec(_Topology):
    """Tiers as numbers."""

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


def _arm(value: Any) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return f"<{kind}>" if kind in KINDS else None


def _known(value: Any) -> Any:
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
        raise ValueError(f"two levels are called {twice!r}: each is a tier of its own")
    for level in levels[:-1]:
        if level.units is None:
            raise ValueError(f"{level.name!r} does not say how many units it joins; only the outermost level may not")


def units_of(topology: Topology, domain: int) -> tuple[tuple[str, int | None], ...]:
    """Return (name, units of the level below) of each level behind the fast domain, of `domain` GPUs.

    None is a level without a bound. Raises ValueError where levels do not fit together, saying by how much.
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
                    f"{_off(domain, topology.shape[0])} the {topology.shape[0]} with which shape begins"
                )
            return (*zip(("y", "z"), topology.shape[1:], strict=False), ("net", None))
        case DragonflySpec():
            if left := topology.gpus_per_router % domain:
                raise ValueError(
                    f"gpus_per_router: {topology.gpus_per_router} GPUs are not whole fast domains of {domain}: "
                    f"{domain - left} short of {topology.gpus_per_router // domain + 1} domains"
                )
            routers = (("router", topology.gpus_per_router // domain), ("group", topology.routers_per_group))
            return (*routers, ("global", topology.groups))
        case FullyConnectedSpec():
            return (("net", topology.domains),)


def check_sizes(topology: Topology, domain: int) -> None:
    """Raise ValueError where the levels do not fit together, or do not multiply to the GPUs that are stated."""
    sizes = [domain]
    levels = units_of(topology, domain)
    for _, units in levels:
        if units is not None:
            sizes.append(sizes[-1] * units)
    if sizes[-1] > LARGEST_COUNT:
        raise ValueError(f"the levels multiply to {sizes[-1]} GPUs; at most {LARGEST_COUNT} are counted")
    if topology.gpus is None:
        return
    factors = " * ".join([f"{INNERMOST}={domain}", *(f"{name}={units}" for name, units in levels if units is not None)])
    if levels[-1][1] is None and not isinstance(topology, TorusSpec):
        if topology.gpus % sizes[-1]:
            short = sizes[-1] - topology.gpus % sizes[-1]
            raise ValueError(
                f"gpus: {topology.gpus} GPUs are not whole units of {factors} = {sizes[-1]}: {short} short of "
                f"{topology.gpus // sizes[-1] + 1} of them"
            )
    elif topology.gpus != sizes[-1]:
        raise ValueError(
            f"gpus: {factors} = {sizes[-1]} GPUs, {_off(sizes[-1], topology.gpus)} the {topology.gpus} that are stated"
        )


def _off(found: int, wanted: int) -> str:
    return f"{wanted - found} short of" if found < wanted else f"{found - wanted} more than"


def fits_network(topology: Topology | None, info: ValidationInfo) -> Topology | None:
    """Check a topology against the fast domain beside it, which is read first; raises ValueError."""
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
