"""Networks for layer tables.

A network file (JSON) maps names to networks. A network has `bandwidth_GiBps` and `latency_s` by level, innermost first,
and `devices_per_level` by number of devices.
"""

import math
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field

from dsx.errors import SpecError, UnknownNameError
from dsx.layer_table.bounded_quantities import Above0, Amount, CountKey, nearest
from dsx.spec.document import Document
from dsx.spec.json_text import load_json
from dsx.spec.validated import validate
from dsx.spec.value_types import Count

GIB = 2**30
_MOST_LEVELS = 40  # of a network; no machine has more than four

T = TypeVar("T")
_Levels = Annotated[list[T], Field(min_length=1, max_length=_MOST_LEVELS)]


@dataclass(frozen=True, slots=True)
class NetworkLevels:
    """A network for one number of devices, innermost level first."""

    name: str
    devices_per_level: tuple[int, ...]
    bandwidth: tuple[float, ...]  # bytes/s
    latency: tuple[float, ...]  # s


class _Network(BaseModel):
    bandwidth_GiBps: _Levels[Above0]
    latency_s: _Levels[Amount]
    devices_per_level: Annotated[dict[CountKey, _Levels[Count]], Field(min_length=1)]


def read_network(reference: str, num_devices: int) -> NetworkLevels:
    """Return the network that FILE:NAME names, for `num_devices` devices.

    Raises SpecError with file and key, UnknownNameError if the file has no network of that name.
    """
    file, colon, name = reference.rpartition(":")
    if not colon or not file or not name:
        raise SpecError(f"network {reference!r}: write FILE:NAME, as in networks.json:fat-tree")
    given = load_json("network file", file)
    if name not in given.data:
        raise UnknownNameError("network", name, given.data, f"; looked for in {given.place(())}")
    document = Document(given.data[name], {(): f"{given.place(())}: {name}"})
    network = validate(document, _Network)
    sizes = network.devices_per_level
    if num_devices not in sizes:
        raise document.fault(
            ("devices_per_level",),
            f"has no entry for {num_devices} devices, only for {', '.join(map(str, sorted(sizes)))}; "
            f"the nearest is {nearest(num_devices, sizes)}",
        )
    levels = sizes[num_devices]
    if (product := math.prod(levels)) != num_devices:
        raise document.fault(
            ("devices_per_level", num_devices),
            f"{' x '.join(map(str, levels))} = {product} devices, not {num_devices}",
        )
    for key, values in (("bandwidth_GiBps", network.bandwidth_GiBps), ("latency_s", network.latency_s)):
        if len(values) != len(levels):
            raise document.fault(
                (key,),
                f"has {len(values)} levels, but devices_per_level.{num_devices} has {len(levels)}: they must be equal",
            )
    return NetworkLevels(
        name, tuple(levels), tuple(value * GIB for value in network.bandwidth_GiBps), tuple(network.latency_s)
    )
