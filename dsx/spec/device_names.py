"""Names of devices as people and tables write them, and the clusters whose device such a name means.

A cluster file lists the names of its GPU under `run_tables` if it is the usual machine of that GPU. A name matches if
it begins with one that is listed, ignoring case and punctuation.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from dsx.errors import InputError, nearest_names
from dsx.spec.document import merged
from dsx.spec.extends import extended
from dsx.spec.locate import find, names

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
    others: list[str]  # names


def clusters_of_device(name: str) -> ClustersOfDevice | None:
    """Return the clusters of the device that `name` means, as in "H100" or "DGX B200".

    None if it means no device, or is nearly the name of a cluster.
    """
    if nearest_names(name, names("clusters", ".yaml"), _MISSPELT):
        return None
    gpu = _BEFORE.sub("", name.lower())
    found = [(cluster, data, _length(gpu, data)) for cluster, data in _contents()]
    longest = max((length for *_, length in found), default=0)
    if not longest:
        return None
    usual = {cluster: str(data.get("description", "")) for cluster, data, length in found if length == longest}
    devices = {plain(_device(data)) for cluster, data, _ in found if cluster in usual}
    return ClustersOfDevice(
        usual, [cluster for cluster, data, _ in found if cluster not in usual and plain(_device(data)) in devices]
    )


def _contents() -> list[tuple[str, dict[str, object]]]:
    """Return the names and contents of all clusters; what a user's file has wrong, its own reader says."""
    found: list[tuple[str, dict[str, object]]] = []
    for name in names("clusters", ".yaml"):
        try:
            files = extended(find("clusters", name, ".yaml"), "clusters")
        except InputError:
            continue
        found.append((name, merged([document for _, document in files]).data))
    return found


def _length(gpu: str, data: dict[str, object]) -> int:
    """Return the length of the longest listed name that `gpu` begins with; 0 if there is none."""
    listed = _listed(data)
    return max((len(plain(prefix)) for prefix in listed if begins_with(gpu, prefix)), default=0)


def _listed(data: dict[str, object]) -> Sequence[str]:
    tables = data.get("run_tables")
    gpus = tables.get("gpus") if isinstance(tables, dict) else None
    return [name for name in gpus if isinstance(name, str) and plain(name)] if isinstance(gpus, list) else []


def _device(data: dict[str, object]) -> str:
    device = data.get("device")
    return str(device.get("name", "")) if isinstance(device, dict) else ""
