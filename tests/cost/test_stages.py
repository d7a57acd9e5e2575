"""Stages of an even cut against a plain count of the layers of each chunk, and stages between boundaries."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.cost.stages import Stack, even_first, layers_between, stages, stages_between

EMBEDDING, DENSE, EXPERTS, HEAD = range(4)


def stack(dense, experts, with_embedding=True):
    """A model of dense layers first, then layers with experts."""
    return Stack(
        counts=((float(dense),), (float(experts),)),
        segments=((DENSE,), (EXPERTS,)),
        first=(EMBEDDING,) if with_embedding else (),
        last=(HEAD,) if with_embedding else (),
    )


def numbers(layers):
    return {kind: float(count[0]) for kind, count in layers.items()}


def cut(made, pp, vpp):
    """The stages that may be the slowest: the layers of each kind, as dictionaries."""
    found = stages(made, np.asarray([float(pp)]), np.asarray([float(vpp)])).slowest
    return [(int(stage.position[0]), numbers(stage.layers)) for stage in found]


def by_counting(dense, experts, pp, vpp, with_embedding):
    """The layers of each chunk, laid out one by one."""
    layers = [DENSE] * dense + [EXPERTS] * experts
    if with_embedding and len(layers) % (pp * vpp):
        layers = [EMBEDDING, *layers, HEAD]
    size = len(layers) // (pp * vpp)
    chunks = [{kind: 0 for kind in range(4)} for _ in range(pp * vpp)]
    for position, kind in enumerate(layers):
        chunks[position // size][kind] += 1
    if with_embedding:
        chunks[0][EMBEDDING], chunks[-1][HEAD] = 1, 1
    return chunks


def together(chunks):
    """All layers of some chunks."""
    return {kind: sum(chunk[kind] for chunk in chunks) for kind in range(4)}


@st.composite
def cuts(draw):
    pp, vpp = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.sampled_from([1, 2, 3]))
    with_embedding = draw(st.booleans())
    total = pp * vpp * draw(st.integers(1, 6)) - 2 * (with_embedding and draw(st.booleans()))
    total = total if total > 1 else total + pp * vpp
    return draw(st.integers(1, max(1, total - 1))), total, pp, vpp, with_embedding


@settings(max_examples=25)
@given(cuts())
def test_the_priced_stages_are_stages_of_the_model(drawn):
    dense, total, pp, vpp, with_embedding = drawn
    if dense >= total:
        return
    chunks = by_counting(dense, total - dense, pp, vpp, with_embedding)
    expected = [together(chunks[index::pp]) for index in range(pp)]
    found = cut(stack(dense, total - dense, with_embedding), pp, vpp)
    for index, layers in found:
        assert {kind: layers.get(kind, 0.0) for kind in range(4)} == pytest.approx(expected[index])
    # With one chunk per stage, the slowest stage is among them, whatever the layers cost.
    if vpp == 1:
        random = np.random.default_rng(total)
        for cost in random.uniform(0, 1, (5, 4)):
            slowest = max(sum(cost[kind] * count for kind, count in stage.items()) for stage in expected)
            priced = max(sum(cost[kind] * count for kind, count in layers.items()) for _, layers in found)
            assert priced == pytest.approx(slowest)


@settings(max_examples=25)
@given(cuts())
def test_the_chunks_around_a_stage(drawn):
    dense, total, pp, vpp, with_embedding = drawn
    if dense >= total:
        return
    chunks = by_counting(dense, total - dense, pp, vpp, with_embedding)
    made = stack(dense, total - dense, with_embedding)
    for stage in stages(made, np.asarray([float(pp)]), np.asarray([float(vpp)])).slowest:
        index, final = int(stage.position[0]), (vpp - 1) * pp
        around = [chunks[index : index + 1], chunks[final + index : final + index + 1]]
        around += [chunks[:index], chunks[final + index + 1 :]]
        for found, expected in zip(stage.around, around, strict=True):
            assert {kind: 0.0 for kind in range(4)} | numbers(found) == pytest.approx(together(expected))


def test_even_cuts_with_and_without_embedding_and_head():
    made = Stack(counts=((12.0,),), segments=((0,),))
    assert cut(made, 4, 1) == [(0, {0: 3.0}), (3, {0: 3.0})]
    assert len(stages(made, np.asarray([4.0]), np.asarray([1.0])).largest) == 1
    assert made.uniform
    # Embedding and head count as layers where the body does not divide.
    body = Stack(counts=((22.0,),), segments=((1,),), first=(0,), last=(2,))
    stages_of_8 = dict(cut(body, 8, 1))
    assert stages_of_8[0] == {1: 2.0, 0: 1.0, 2: 0.0}
    assert stages_of_8[1] == {1: 3.0, 0: 0.0, 2: 0.0}
    assert stages_of_8[7] == {1: 2.0, 0: 0.0, 2: 1.0}
    assert dict(cut(body, 2, 1))[0] == {1: 11.0, 0: 1.0, 2: 0.0}
    # 60 layers, embedding and head on 8 stages are 8 a stage, 6 on the last one.
    body = Stack(counts=((60.0,),), segments=((1,),), first=(0,), last=(2,))
    found = dict(cut(body, 8, 1))
    assert [found[index][1] for index in (0, 1, 7)] == [7.0, 8.0, 5.0]
    assert found[0][1] + 6 * found[1][1] + found[7][1] == 60.0


@pytest.mark.parametrize("pp", [1, 2, 11])
def test_the_second_stage_is_left_out_if_every_pipeline_divides_the_body(pp):
    body = Stack(counts=((22.0,),), segments=((1,),), first=(0,), last=(2,))
    dividing = Stack(counts=((22.0,),), segments=((1,),), first=(0,), last=(2,), divided=True)
    kept, (first, last, *others) = cut(dividing, pp, 1), cut(body, pp, 1)
    assert kept == [first, last]
    assert all(other[1][1] <= first[1][1] and other[1][1] <= last[1][1] for other in others)
    # Borders between kinds may be anywhere.
    borders = Stack(counts=((4.0,), (18.0,)), segments=((1,), (2,)), divided=True)
    assert len(cut(borders, pp, 1)) == 7


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (11, 1), (2, 11), (11, 2)])
def test_stages_that_all_hold_the_same_body_are_those_of_any_cut(pp, vpp):
    body = Stack(counts=((16.0, 6.0),), segments=((1, 3),), first=(0,), last=(2,))
    sizes = np.asarray([float(pp)]), np.asarray([float(vpp)])
    senders = [np.asarray([float(index)]) for index in range(pp - 1)]
    found = stages(replace(body, divided=True), *sizes, senders=senders).slowest
    known = {float(stage.position[0]): stage for stage in stages(body, *sizes, senders=senders).slowest}
    assert len(found) == 2 + len(senders)
    for stage in found:
        other = known[float(stage.position[0])]
        pairs = zip((stage.layers, *stage.chunks_around), (other.layers, *other.chunks_around), strict=True)
        for layers, others in pairs:
            for kind, count in others.items():
                np.testing.assert_array_equal(np.broadcast_to(layers.get(kind, 0.0), (1,)), count)


def test_kinds_that_alternate_are_mixed_evenly():
    made = Stack(counts=((6.0, 2.0),), segments=((0, 1),))
    assert cut(made, 4, 1) == [(0, {0: 1.5, 1: 0.5}), (3, {0: 1.5, 1: 0.5})]
    assert made.totals() == {0: 6.0, 1: 2.0}
    # Alternating kinds have the same mix between any boundaries.
    assert {kind: float(layers) for kind, layers in layers_between(made, 3.0, 5.0).items()} == {0: 1.5, 1: 0.5}


def test_stages_hold_the_layers_between_their_boundaries():
    made = stack(2, 3)  # embedding, two dense layers, three with experts, head
    found = stages_between(made, np.asarray([[0.0, 1.0, 4.0, 6.0, 7.0, 7.0]]), np.asarray(4.0))
    assert found.position.tolist() == [0, 1, 2, 3, 4]
    held = {kind: layers.tolist() for kind, layers in found.layers.items()}
    assert held == {EMBEDDING: [1, 0, 0, 0, 0], DENSE: [0, 2, 0, 0, 0], EXPERTS: [0, 1, 2, 0, 0], HEAD: [0, 0, 0, 1, 0]}
    # A plan with fewer rounds than others has empty ones.
    made = stack(2, 3)
    two, one = [[0.0, 1.0, 2.0], [2.0, 4.0, 7.0]], [[0.0, 3.0, 7.0], [7.0, 7.0, 7.0]]
    both = stages_between(made, np.stack([two, one], axis=-1), np.full(2, 2.0))
    for plan, alone in enumerate((two, one[:1])):
        expected = stages_between(made, np.asarray(alone)[..., None], np.full(1, 2.0))
        around = zip(both.chunks_around, expected.chunks_around, strict=True)
        for found, wanted in ((both.layers, expected.layers), *around):
            for kind, layers in wanted.items():
                of_plan = np.broadcast_to(found[kind], (2, 2))[:, plan]
                assert of_plan.tolist() == np.broadcast_to(layers, (2, 1))[:, 0].tolist()


@pytest.mark.parametrize(("pp", "first"), [(2, {0: 1.0, 1: 11.0, 2: 0.0}), (5, {0: 1.0, 1: 3.8, 2: 0.0})])
def test_the_share_of_a_first_stage(pp, first):
    """If pp does not divide the layers, embedding and head count as layers, as in an even cut."""
    body = Stack(counts=((22.0,),), segments=((1,),), first=(0,), last=(2,))
    found = even_first(body, np.asarray(float(pp)), np.asarray(1.0))
    assert {kind: float(layers) for kind, layers in found.layers.items()} == pytest.approx(first)
    alike = Stack(counts=((22.0,),), segments=((1,),))
    assert float(even_first(alike, np.asarray(float(pp)), np.asarray(1.0)).layers[1]) == pytest.approx(22 / pp)
