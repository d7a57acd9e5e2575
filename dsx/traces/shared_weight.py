"""A weight of two layers that one stage holds once: the embedding table of a stage whose head is tied to it.

The gradient is one buffer. On a single stage the backward of the last layer adds to it first, in each microbatch, and
that of the first layer last, so a microbatch writes several versions of it. Where the two layers are in two chunks of a
stage, whose passes mix, each chunk has versions of its own, and the update reads the last ones of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dsx.traces.layer_nodes import LayerNodes, LayerWeight

SHARED = "gradients of the shared weight"  # shard of the gradient, where the last layer scatters it
_MARK = "t"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a buffer that a microbatch writes: the layer that has the buffer, its name, and a suffix."""

    position: int
    buffer: str
    suffix: str
    last: str = ""  # suffix of the last version that a microbatch writes in the chunk


@dataclass(frozen=True, slots=True)
class SharedWeight:
    """The weight of the first layer, and what has it in the last one."""

    weight: LayerWeight  # of the first layer
    number: int  # of its weight group
    group_bytes: int  # of all weights of that group
    names: frozenset[str]  # in the last layer
    versions: Mapping[tuple[int, str], tuple[Version, ...]]  # (layer, gradient) -> what a microbatch has written there
    apart: tuple[int, str] | None = None  # the last layer, and its last gradient, where it is in a chunk of its own

    def version(self, position: int, name: str) -> Version:
        """Return the version of a buffer that a gradient of a layer is."""
        written = self.versions.get((position, name))
        return written[-1] if written else Version(position, name, "")

    def before(self, position: int, name: str) -> Version | None:
        """Return the version that the same microbatch has written before; None for its first one."""
        written = self.versions.get((position, name), ())
        return written[-2] if len(written) > 1 else None


def shared_weight(first: LayerNodes, last: LayerNodes, position: int, one_chunk: bool) -> SharedWeight | None:
    """Return the weight that the first and the last layer share, the latter at a position; None if there is none.

    The first layer has it as its largest one. `one_chunk` says that the two layers are in one chunk.
    """
    tied = [weight for weight in last.weights if weight.tied]
    if not tied or not first.weights:
        return None
    weight = max(first.weights, key=lambda one: one.bytes)
    groups = list(first.groups.values())
    number = next(number for number, weights in enumerate(groups) if weight in weights)
    gradients = [name for one in tied for name in one.gradients]
    (own, *_) = weight.gradients
    of_group, versions = f"gradients {number}", dict[tuple[int, str], tuple[Version, ...]]()
    for buffer, of_last, of_first in ((own, gradients, own), (of_group, [SHARED], of_group)):
        later = [(position, name) for name in of_last]
        if one_chunk:
            versions |= _written([*later, (0, of_first)], buffer)
        else:
            versions |= _written(later, buffer, _MARK * len(later)) | _written([(0, of_first)], buffer)
    group_bytes = sum(one.bytes for one in groups[number])
    apart = None if one_chunk else (position, gradients[-1])
    return SharedWeight(weight, number, group_bytes, frozenset(one.name for one in tied), versions, apart)


def _written(order: list[tuple[int, str]], buffer: str, last: str = "") -> dict[tuple[int, str], tuple[Version, ...]]:
    """Return the versions of a buffer up to each of those that write it in this order, with the suffix of the last."""
    suffixes = [*(_MARK * number for number in range(1, len(order))), last]
    every = [Version(0, buffer, suffix, last) for suffix in suffixes]
    return {key: tuple(every[: number + 1]) for number, key in enumerate(order)}
