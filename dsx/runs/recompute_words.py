"""Words of frameworks for what is recomputed, and what of dsx is nearest to each: data/runs/recompute-words.yaml.

A policy that keeps named tensors is read as the regions that it recomputes, or as a share of the layers that keep
everything.

Not modelled: policies that keep, offload or recompute each tensor on its own.
"""

from functools import cache

from pydantic import TypeAdapter

from dsx.spec.load import Spec
from dsx.spec.locate import packaged_data
from dsx.spec.value_types import Share
from dsx.spec.yaml_text import load_document

SHARDED_RECIPE = "selective op"  # what recipes of fully sharded data parallelism with fused attention call selective


class RecomputeWord(Spec):
    """What a word means: the value of `recompute`, the layers that keep everything, and what the host keeps."""

    recompute: str | None  # None: it names no value
    stored_share: Share = 0.0  # of the layers of a stage
    offload: str = "none"
    source: str


@cache
def recompute_words() -> dict[str, RecomputeWord]:
    """Return the words in lower case with their meanings; SpecError or a validation error for a faulty file."""
    data = load_document(packaged_data() / "runs" / "recompute-words.yaml").data
    return TypeAdapter(dict[str, RecomputeWord]).validate_python(data)
