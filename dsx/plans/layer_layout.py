"""A layer layout: how many layers each chunk of a pipeline has, as numbers or in the two texts that state it.

With v chunks per stage, chunk c of stage i is entry c * pp + i of a layout, c and i counted from 0. One text lists the
layers of each chunk, "21,20,20,21" or "21,20*2,21"; embedding and head are a layer each. The other is the launcher's,
"Et*20|t*20|...L" (Megatron-core 0.16.1, megatron/core/transformer/pipeline_parallel_layer_layout.py):

    layout := {item}                      commas are left out before a layout is read
    item   := piece ["*" number]
    piece  := "|" | letter | "(" item {item} ")"        groups do not nest, and are always repeated

`|` ends a chunk. The letters are E, the embedding; t, a layer of the body; m, a layer of multi-token prediction; L, the
loss, with the head before it. dsx prices m as a part of the head, so it stands directly before L and counts as no layer
of its own. A chunk may be empty, but no stage is.

`dsx.cost.stages` prices an even cut by the number of layers of few stages. Here is the same rule, layer by layer: a
chunk has ceil(layers / chunks) layers of the body. If the chunks do not divide the body, embedding and head count as a
layer each. The last chunks of a cut that does not divide either hold fewer layers, or only the head.

Chunks are in the order of a chain (`dsx.schedules.order`). With two chains, both have the same chunks. So the layers
of a pass (`dsx.schedules.order`) are those of its chunk modulo the chunks of a chain.
"""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from numbers import Integral
from string import digits
from typing import NamedTuple

from dsx.errors import PlanError, did_you_mean
from dsx.schedules.order import StageChunks, of_pipeline

LAYOUT = "stage_layers"  # the column of a plan

_EMBEDDING, _LAYER, _PREDICTION, _LOSS, _END = "EtmL|"
_LETTERS = (_EMBEDDING, _LAYER, _PREDICTION, _LOSS)
_LISTED = re.compile(r"[0-9]{1,9}(\*[0-9]{1,6})?(,[0-9]{1,9}(\*[0-9]{1,6})?)*")
_EXPECTED = "expected the layers of each chunk, as in 9,8,8,9"
_MOST = 1_000_000  # letters of a layout; more are surely a typing error


Layout = str | Sequence[int]  # either text, or the layers of each chunk


class Chain(NamedTuple):
    """The layers of a model that a layout divides."""

    first: int  # embedding
    body: int
    last: int  # head
    predictions: int = 0  # layers of multi-token prediction, which are part of the head

    @property
    def num_layers(self) -> int:
        """All of them; those of multi-token prediction count with the head."""
        return self.first + self.body + self.last


class _Letter(NamedTuple):
    letter: str
    position: int  # in the text, from 1


def layers_of_chunks(layout: Layout, chain: Chain) -> tuple[int, ...]:
    """Return the layers of each chunk of a layout, embedding and head counted.

    Raises PlanError, which names the position in a text, for one that is none, or whose layers are not the chain's.
    """
    if isinstance(layout, str) and not _LISTED.fullmatch(layout):
        if layout and layout[0] in digits:  # the launcher's layouts begin with a letter
            raise _fault(layout, f"{_EXPECTED}, or a layout, as in Et*8|t*8|t*8L")
        return _launched(layout, chain)
    layers = listed(layout)
    if sum(layers) != chain.num_layers:
        counted = ", with embedding and head" if chain.num_layers > chain.body else ""
        raise _fault(
            layout, f"the chunks hold {sum(layers):,} layers, but the model has {chain.num_layers:,} layers{counted}"
        )
    return layers


def listed(layout: object) -> tuple[int, ...]:
    """Return the layers of each chunk from their list, as a text or as numbers; raises PlanError for what is none."""
    if isinstance(layout, str) and _LISTED.fullmatch(layout):
        entries = [entry.partition("*") for entry in layout.split(",")]
        times = [int(count or 1) for _, _, count in entries]
        if sum(times) > _MOST:
            raise _fault(layout, f"lists {sum(times):,} chunks")
        return tuple(int(size) for (size, _, _), count in zip(entries, times, strict=True) for _ in range(count))
    if isinstance(layout, Sequence) and layout != "" and all(isinstance(size, Integral) for size in layout):
        return tuple(map(int, layout))
    raise _fault(str(layout), _EXPECTED)


def check_stages(layers: Sequence[int], layout: Layout, pp: int, vpp: int) -> None:
    """Raise PlanError unless a layout has a chunk for each of `vpp` rounds of `pp` stages, and each stage a layer."""
    if len(layers) != pp * vpp:
        needed = f"pp={pp} needs {pp}" if vpp == 1 else f"pp={pp} * vpp={vpp} needs {pp * vpp}"
        hint = f"; it is one of vpp={len(layers) // pp}" if len(layers) % pp == 0 else ""
        raise _fault(layout, f"has {len(layers)} chunk{'' if len(layers) == 1 else 's'}, but {needed}{hint}")
    for stage in range(pp):
        if not sum(layers[stage::pp]):
            raise _fault(layout, f"stage {stage + 1} of {pp} has no layer; every stage needs one")


def predicts(text: str) -> bool:
    """Return whether a layout in the launcher's text has a layer of multi-token prediction."""
    return _PREDICTION in text


def num_chunks(layers: Sequence[int], pp: int) -> int:
    """Return the chunks per stage that a layout implies; 1 if it fits no number of them."""
    return len(layers) // pp if len(layers) % pp == 0 else 1


def text_of(layers: Sequence[int]) -> str:
    """Return the layers of chunks as JSON and tables have them."""
    return ",".join(map(str, layers))


def starts(layers: Sequence[int]) -> list[int]:
    """Return the position in the chain at which each chunk starts, and its end."""
    return [*accumulate(layers, initial=0)]


def _launched(text: str, chain: Chain) -> tuple[int, ...]:
    letters = _unrolled(text)
    if not letters or letters[0].letter != _EMBEDDING:
        at = letters[0] if letters else None
        raise _fault(text, f"expected E, the embedding, first, not {_shown(at)}", at)
    if letters[-1].letter != _LOSS:
        raise _fault(text, f"expected L, the loss, last, not {_shown(letters[-1])}", letters[-1])
    for letter in letters[1:-1]:
        if letter.letter in (_EMBEDDING, _LOSS):
            where = "embedding, is only first" if letter.letter == _EMBEDDING else "loss, is only last"
            raise _fault(text, f"{letter.letter}, the {where}", letter)
    count, predictions = chain.predictions, [letter for letter in letters if letter.letter == _PREDICTION]
    if len(predictions) != count:
        counted = f"{count} layer{'' if count == 1 else 's'} of multi-token prediction"
        raise _fault(text, f"has {len(predictions)} m, but the model has {counted}", *predictions[count : count + 1])
    misplaced = [letter for letter in letters[: len(letters) - 1 - count] if letter.letter == _PREDICTION]
    if misplaced:
        why = "dsx prices it on the stage of the loss, whose projection it shares"
        raise _fault(text, f"m, a layer of multi-token prediction, is only directly before L: {why}", misplaced[0])
    body = sum(letter == _LAYER for letter, _ in letters)
    if body != chain.body:
        raise _fault(text, f"has {body:,} t, but the model has {chain.body:,} layers between embedding and head")
    worth = {_EMBEDDING: chain.first, _LAYER: 1, _PREDICTION: 0, _LOSS: chain.last}
    layers = [0]
    for letter, _ in letters:
        if letter == _END:
            layers.append(0)
        else:
            layers[-1] += worth[letter]
    return tuple(layers)


def _unrolled(text: str) -> list[_Letter]:
    """Return the letters of a layout one by one, repetitions written out."""
    kept = [_Letter(letter, position) for position, letter in enumerate(text, 1) if letter != ","]
    letters: list[_Letter] = []
    at = 0
    while at < len(kept):
        piece, start = [kept[at]], kept[at]
        at += 1
        if start.letter == "(":
            piece, at = _group(text, kept, at, start)
        else:
            _check_letter(text, start)
        times, at = _times(text, kept, at)
        if start.letter == "(" and times is None:
            raise _fault(text, "expected * and a number after the group, as in (tt|)*3", kept[at - 1])
        repeated = 1 if times is None else times
        if len(letters) + len(piece) * repeated > _MOST:
            raise _fault(text, f"repeats to more than {_MOST:,} layers", start)
        letters += piece * repeated
    return letters


def _group(text: str, kept: Sequence[_Letter], at: int, start: _Letter) -> tuple[list[_Letter], int]:
    """Return the letters of the group that begins at `at`, behind its bracket, and the place behind it."""
    piece: list[_Letter] = []
    while at < len(kept) and kept[at].letter != ")":
        letter = kept[at]
        if letter.letter == "(":
            raise _fault(text, "a group in a group; write out one of the two", letter)
        _check_letter(text, letter)
        times, at = _times(text, kept, at + 1)
        if times is not None and len(piece) + times > _MOST:
            raise _fault(text, f"repeats to more than {_MOST:,} layers", letter)
        piece += [letter] * (1 if times is None else times)
    if at == len(kept):
        raise _fault(text, "the group has no end; expected )", start)
    if not piece:
        raise _fault(text, "the group is empty", start)
    return piece, at + 1


def _times(text: str, kept: Sequence[_Letter], at: int) -> tuple[int | None, int]:
    """Return how often what stands before `at` is repeated, None if that is not said, and the place behind it."""
    if at == len(kept) or kept[at].letter != "*":
        return None, at
    end = at + 1
    while end < len(kept) and kept[end].letter in digits:
        end += 1
    if end == at + 1:
        raise _fault(text, "expected a number after *, as in t*3", kept[at])
    number = "".join(letter for letter, _ in kept[at + 1 : end])
    return int(number) if len(number) < len(str(_MOST)) else _MOST + 1, end


def _check_letter(text: str, at: _Letter) -> None:
    if at.letter not in (*_LETTERS, _END):
        hint = did_you_mean(at.letter, _LETTERS)
        raise _fault(text, f"{at.letter!r} is no layer, but E, t, m and L are, | and groups as in (tt|)*3{hint}", at)


def _shown(letter: _Letter | None) -> str:
    return "an empty text" if letter is None else repr(letter.letter)


def _fault(layout: Layout, message: str, at: _Letter | None = None) -> PlanError:
    where = f"position {at.position}: " if at else ""
    return PlanError(f"{LAYOUT}={layout if isinstance(layout, str) else text_of(layout)}: {where}{message}")


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
