"""A layer layout in the words of Megatron-LM, which `dsx.space.layer_layout` reads: "Et|(t*2|)*30tL".

Its parser (megatron.core, PipelineParallelLayerLayout.parse_str_to_list) first writes out groups in brackets, then
single letters. Groups do not nest.
"""

from collections.abc import Sequence
from itertools import groupby

_LEAST = 3  # equal chunks in a row that are written as a group


def layout_text(body: Sequence[int], predictions: int = 0) -> str:
    """Return the layout of a pipeline whose chunks have so many layers of the body; empty for none.

    The layers of multi-token prediction are on the stage of the loss.
    """
    if not body:
        return ""
    last = len(body) - 1
    found = ["E", _letters(body[0]), "|" if last else ""]
    for size, chunks in groupby(body[1:last]):
        count = len([*chunks])
        piece = f"{_letters(size)}|"
        # A group needs a letter before its bar: "|*3" would end three chunks too.
        found.append(f"({piece})*{count}" if count >= _LEAST else piece * count)
    if last:
        found.append(_letters(body[last]))
    return "".join(found) + "m" * predictions + "L"


def _letters(size: int) -> str:
    return "t" if size == 1 else f"t*{size}" if size else ""
