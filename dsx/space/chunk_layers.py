"""The layers of each chunk of a pipeline in whole numbers, as positions in the chain of embedding, body and head.

`dsx.cost.stages` prices an even cut by the number of layers of few stages. Here is the same rule, layer by layer: a
chunk has ceil(layers / chunks) layers of the body. If the chunks do not divide the body, embedding and head count as a
layer each. The last chunks of a cut that does not divide either hold fewer layers, or only the head.

Chunks are in the order of a chain (`dsx.space.stage_chunks`). With two chains, both have the same chunks. So the layers
of a pass (`dsx.space.passes`) are those of its chunk modulo the chunks of a chain.
"""

from collections.abc import Sequence
from itertools import pairwise

from dsx.space.layer_layout import Chain, starts
from dsx.space.stage_chunks import StageChunks, of_pipeline


def even_chunks(chain: Chain, num_stages: int, num_chunks: int, holds: StageChunks) -> tuple[range, ...]:
    """Return the positions of the layers of each chunk of an even cut, with `num_chunks` chunks per stage.

    A model without embedding and head, in rounds, whose layers the chunks do not divide is no plan: `dsx.cost.stages`
    leaves its last layers out, and here the last chunks have fewer.
    """
    count = int(of_pipeline(holds, num_stages).count(num_stages, num_chunks))
    counted = 1 if chain.first and chain.last and chain.body % count else 0
    size = -(-(chain.body + 2 * counted) // count)

    def start(chunk: int) -> int:
        """Return where a chunk starts; the first one has the embedding, the last one the head."""
        if chunk in (0, count):
            return chain.num_layers if chunk else 0
        return chain.first + min(max(chunk * size - counted, 0), chain.body)

    return tuple(range(start(chunk), start(chunk + 1)) for chunk in range(count))


def given_chunks(layers: Sequence[int]) -> tuple[range, ...]:
    """Return the positions of the layers of each chunk from their numbers, in the order of a layer layout."""
    return tuple(range(start, stop) for start, stop in pairwise(starts(layers)))
