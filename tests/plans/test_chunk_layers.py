"""The layers of each chunk in whole numbers against the stages that are priced."""

import itertools

import numpy as np
import pytest

from dsx.cost.stages import Stack, layers_between, stages, stages_between
from dsx.plans.layer_layout import Chain, even_chunks, given_chunks
from dsx.pricing.cuts import boundaries_of
from dsx.schedules.order import FOLDED, IN_ROUNDS, MIRRORED, of_pipeline
from dsx.schedules.schedules import SCHEDULES

EMBEDDING, DENSE, EXPERTS, HEAD = range(4)
HOLDS = [*dict.fromkeys(schedule.holds for schedule in SCHEDULES)]
# The first body layers, and the others; embedding and head.
STACKS = [
    (Stack(((float(dense),), (float(experts),)), ((DENSE,), (EXPERTS,)), first, last), dense + experts)
    for dense, experts in ((1, 1), (3, 8), (1, 21), (4, 20), (13, 48))
    for first, last in (((EMBEDDING,), (HEAD,)), ((EMBEDDING,), ()), ((), ()))
]


def chain_of(stack):
    return Chain(len(stack.first), int(stack.num_body_layers), len(stack.last))


def counted(stack, chunks):
    """How many layers of each kind some chunks hold."""
    parts = [layers_between(stack, float(chunk.start), float(chunk.stop)) for chunk in chunks]
    return {kind: float(sum(part[kind] for part in parts)) for kind in stack.totals()}


def on_stage(stack, chunks, stage, num_stages, holds):
    """The layers of a stage: of its chunks in all chains."""
    chains = holds.chains(num_stages, len(chunks) // num_stages)
    held = [chunk for chain in chains for chunk, at in zip(chunks, chain, strict=True) if at == stage]
    return counted(stack, held)


def numbers(layers, index=0):
    return {kind: float(np.ravel(count)[index if np.size(count) > 1 else 0]) for kind, count in layers.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("holds", HOLDS, ids=lambda holds: {IN_ROUNDS: "rounds", FOLDED: "v"}.get(holds, "mirrored"))
def test_chunks_hold_what_is_priced(holds):
    for (stack, body), pp in itertools.product(STACKS, (1, 2, 3, 4, 6, 8)):
        if holds is MIRRORED and pp > 1 and pp % 2:
            continue
        for vpp in (1, 2, 3) if holds is IN_ROUNDS else (2 if holds is FOLDED and pp > 1 else 1,):
            chunks = even_chunks(chain_of(stack), pp, vpp, holds)
            assert [chunk.start for chunk in chunks[1:]] == [chunk.stop for chunk in chunks[:-1]]
            assert chunks[0].start == 0 and chunks[-1].stop == body + len(stack.embedding_and_head)
            priced = stages(stack, np.array([float(pp)]), np.array([float(vpp)]), holds, every_end=True)
            for stage in (*priced.largest, *priced.slowest):
                at = int(stage.position[0])
                assert on_stage(stack, chunks, at, pp, of_pipeline(holds, pp)) == pytest.approx(numbers(stage.layers))
                if pp > 1:
                    check_around(stack, stage, chunks, at, holds.last(at, pp, vpp))


def check_around(stack, stage, chunks, first, last):
    around = (chunks[first : first + 1], chunks[last : last + 1], chunks[:first], chunks[last + 1 :])
    for found, expected in zip(stage.around, around, strict=True):
        assert numbers(found) == pytest.approx(counted(stack, expected))


def test_layers_that_are_all_alike():
    """Without embedding and head; where the chunks divide the layers."""
    for pp, vpp, times in itertools.product((1, 2, 3, 8), (1, 2, 3), (1, 4)):
        stack = Stack(((float(pp * vpp * times),),), ((DENSE,),))
        chunks = even_chunks(chain_of(stack), pp, vpp, IN_ROUNDS)
        for stage in stages(stack, np.array([float(pp)]), np.array([float(vpp)])).slowest:
            assert on_stage(stack, chunks, int(stage.position[0]), pp, IN_ROUNDS) == numbers(stage.layers)


@pytest.mark.parametrize(("holds", "rounds"), [(IN_ROUNDS, 1), (IN_ROUNDS, 3), (FOLDED, 2), (MIRRORED, 1)])
def test_chunks_of_a_layout_hold_what_is_priced(holds, rounds):
    random = np.random.default_rng(rounds)
    for (stack, body), pp in itertools.product(STACKS, (2, 4)):
        total = body + len(stack.embedding_and_head)
        ends = np.sort(random.integers(0, total + 1, pp * rounds - 1)).tolist()
        layers = np.diff([0, *ends, total]).tolist()
        chunks = given_chunks(layers)
        assert [len(chunk) for chunk in chunks] == layers
        boundaries = boundaries_of(layers, pp)[..., None].astype(float)
        priced = stages_between(stack, boundaries, np.array([float(pp)]), holds)
        for stage in range(pp):
            assert on_stage(stack, chunks, stage, pp, holds) == pytest.approx(numbers(priced.layers, stage))


def test_cuts_by_hand():
    ends = Chain(1, 22, 1)
    assert even_chunks(ends, 4, 1, IN_ROUNDS) == (range(6), range(6, 12), range(12, 18), range(18, 24))
    assert even_chunks(ends, 2, 1, IN_ROUNDS) == (range(12), range(12, 24))  # 11 body layers each
    assert even_chunks(ends, 2, 2, FOLDED) == even_chunks(ends, 4, 1, IN_ROUNDS)
    assert even_chunks(ends, 1, 1, FOLDED) == (range(24),)  # one stage has one chunk
    assert even_chunks(ends, 10, 1, MIRRORED)[-3:] == (range(21, 23), range(23, 23), range(23, 24))
    assert even_chunks(Chain(0, 6, 0), 4, 1, MIRRORED) == (range(2), range(2, 4), range(4, 6), range(6, 6))
    assert given_chunks([2, 0, 3]) == (range(2), range(2, 2), range(2, 5))
