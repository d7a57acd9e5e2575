"""Layouts of layers over chunks of stages."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsx
from dsx.cost.stages import Stack, layers_between, stages, stages_between
from dsx.errors import PlanError
from dsx.plans.layer_layout import Chain, check_stages, even_chunks, given_chunks, layers_of_chunks, starts, text_of
from dsx.plans.violations import MEMORY
from dsx.pricing.cuts import boundaries_of
from dsx.schedules.order import FOLDED, IN_ROUNDS, MIRRORED, of_pipeline
from dsx.schedules.schedules import SCHEDULES

SMALL = Chain(1, 8, 1)


def read_as_launcher(layout):
    """The chunks of a layout as texts: commas out, then groups, then letters written out, as Megatron-core does."""
    text = layout.replace(",", "")
    for repeated in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(repeated, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


items = st.one_of(
    st.sampled_from(["t", "|", "t|", "tt", ",", "t,t"]),
    st.tuples(st.sampled_from("t|"), st.integers(0, 12)).map(lambda one: f"{one[0]}*{one[1]}"),
)
groups = st.tuples(st.lists(items, min_size=1, max_size=4), st.integers(0, 5)).map(
    lambda one: f"(t{''.join(one[0])})*{one[1]}"
)
layouts = st.lists(st.one_of(items, groups), max_size=6).map(lambda parts: f"E{''.join(parts)}L")


@given(layouts, st.integers(0, 1), st.integers(0, 1))
def test_a_layout_is_read_as_the_launcher_reads_it(layout, first, last):
    chunks = read_as_launcher(layout)
    chain = Chain(first, sum(chunk.count("t") for chunk in chunks), last)
    expected = [chunk.count("t") + first * chunk.count("E") + last * chunk.count("L") for chunk in chunks]
    assert [*layers_of_chunks(layout, chain)] == expected
    if sum(expected):
        assert layers_of_chunks(text_of(expected), chain) == tuple(expected)


def test_layouts_by_hand():
    layout = "Ettt|(tt|)*29,m|L"
    with pytest.raises(
        PlanError, match=r"position 15: m, a layer of multi-token prediction, is only directly before L"
    ):
        layers_of_chunks(layout, Chain(1, 61, 1, predictions=1))
    assert layers_of_chunks(layout.replace("m", ""), Chain(1, 61, 1)) == (4, *[2] * 29, 0, 1)
    # The layout of DeepSeek-V3 in Megatron-MoE-ModelZoo: m and L count as the one layer that the head is.
    chain = Chain(1, 61, 1, predictions=1)
    assert layers_of_chunks("Et|(tt|)*30mL", chain) == (2, *[2] * 30, 1)
    with pytest.raises(
        PlanError, match=r"Et\|\(tt\|\)\*30L: has 0 m, but the model has 1 layer of multi-token predict"
    ):
        layers_of_chunks("Et|(tt|)*30L", chain)
    with pytest.raises(PlanError, match=r"position 12: has 1 m, but the model has 0 layers of multi-token prediction"):
        layers_of_chunks("Et|(tt|)*30mL", Chain(1, 61, 1))
    # Equal chunks may be listed together.
    assert layers_of_chunks("4,2*3", Chain(1, 8, 1)) == layers_of_chunks("4,2,2,2", Chain(1, 8, 1)) == (4, 2, 2, 2)
    # Where chunks start.
    assert starts((4, 2, 3)) == [0, 4, 6, 9]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected E, the embedding, first, not an empty text"),
        ("tt|ttL", "position 1: expected E, the embedding, first, not 't'"),
        ("E", "position 1: expected L, the loss, last, not 'E'"),
        ("Et*8", "position 2: expected L, the loss, last, not 't'"),
        ("Et*4|Et*4L", "position 6: E, the embedding, is only first"),
        ("Et*4L|t*4L", "position 5: L, the loss, is only last"),
        ("Et*7L", "has 7 t, but the model has 8 layers between embedding and head"),
        ("et*8L", "position 1: 'e' is no layer, but E, t, m and L are, | and groups as in (tt|)*3; did you mean 'E'?"),
        ("Et*4|x*4L", "position 6: 'x' is no layer"),
        ("Et*4| t*4L", "position 6: ' ' is no layer"),
        ("Et*|L", "position 3: expected a number after *, as in t*3"),
        ("E*t", "position 2: expected a number"),
        ("E(tt|", "position 2: the group has no end; expected )"),
        ("E()*2L", "position 2: the group is empty"),
        ("E(tt|)tL", "position 6: expected * and a number after the group, as in (tt|)*3"),
        ("E((t)*2)*2L", "position 3: a group in a group; write out one of the two"),
        ("E)tL", "position 2: ')' is no layer"),
        ("E,t*8,m|L", "position 7: has 1 m, but the model has 0 layers of multi-token prediction"),
        ("Et*9999999|L", "position 2: repeats to more than 1,000,000 layers"),
        ("E(t*999999)*999999L", "position 2: repeats to more than 1,000,000 layers"),
        ("E" + "(t*9)*1" * 3 + "²L", "position 23: '²' is no layer"),
        ("9", "the chunks hold 9 layers, but the model has 10 layers, with embedding and head"),
        ("5,4,", "expected the layers of each chunk, as in 9,8,8,9, or a layout"),
        ("5.0,5", "expected the layers of each chunk"),
        ("5*,5", "expected the layers of each chunk"),
        ("5*999999,5*999999", "lists 1,999,998 chunks"),
        ("-5,15", "position 1: '-' is no layer"),
        ("5,5000000000", "expected the layers of each chunk"),
    ],
)
def test_what_is_no_layout(text, says):
    with pytest.raises(PlanError) as error:
        layers_of_chunks(text, SMALL)
    assert str(error.value).startswith(f"stage_layers={text}: ")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "says"),
    [
        ((5, 5), 2, 1, None),
        ((5, 0, 0, 5), 2, 2, None),  # a chunk may be empty
        ((5, 5), 3, 1, "has 2 chunks, but pp=3 needs 3"),
        ((10,), 2, 1, "has 1 chunk, but pp=2 needs 2"),
        ((4, 2, 2, 2), 2, 1, "has 4 chunks, but pp=2 needs 2; it is one of vpp=2"),
        ((5, 5), 2, 2, "has 2 chunks, but pp=2 * vpp=2 needs 4; it is one of vpp=1"),
        ((5, 0, 5), 3, 1, "stage 2 of 3 has no layer; every stage needs one"),
        ((5, 0, 5, 0), 2, 2, "stage 2 of 2 has no layer"),
    ],
)
def test_a_layout_has_a_chunk_for_each_round_of_each_stage(layers, pp, vpp, says):
    if says is None:
        check_stages(layers, text_of(layers), pp, vpp)
        return
    with pytest.raises(PlanError, match=re.escape(f"stage_layers={text_of(layers)}: {says}")):
        check_stages(layers, text_of(layers), pp, vpp)


LAYERS = [{"kind": "transformer", "count": 3}, {"kind": "transformer", "options": ["global_heads"], "count": 1}]
DIMENSIONS = {"e": 2048, "h": 16, "g": 8, "k": 128, "f": 8192, "gg": 2, "gk": 128}
MODEL = {"name": "differs", "source": "a test", "dimensions": DIMENSIONS, "default_sequence_length": 2048}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layers", [LAYERS, LAYERS[::-1]], ids=["usual first", "global first"])
@pytest.mark.parametrize(
    ("strategy", "degrees"), [("2d", {1, 2}), ("2d-gathered-qkv", {16}), ("2d-copied-kv", {8, 16})]
)
def test_every_layer_limits_the_degrees(layers, strategy, degrees):
    job = dsx.Job(MODEL | {"layers": layers}, "h100-nvs8", 16, 16)
    legal = set()
    for tp in (1, 2, 4, 8, 16):
        found = dsx.evaluate(job, tp=tp, dp=16 // tp, strategy=strategy)
        legal |= {tp} if {*found.reject} <= {MEMORY.name} else set()
    assert legal == degrees
    searched = dsx.best(job, 200, framework="any", strategy=strategy, fix="pp=1 cp=1 zero_stage=1 recompute=none")
    assert {int(tp) for tp in np.unique([plan["tp"] for plan in searched.plans])} == degrees


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


def test_cuts_of_alike_layers_and_by_hand():
    """Without embedding and head; where the chunks divide the layers."""
    for pp, vpp, times in itertools.product((1, 2, 3, 8), (1, 2, 3), (1, 4)):
        stack = Stack(((float(pp * vpp * times),),), ((DENSE,),))
        chunks = even_chunks(chain_of(stack), pp, vpp, IN_ROUNDS)
        for stage in stages(stack, np.array([float(pp)]), np.array([float(vpp)])).slowest:
            assert on_stage(stack, chunks, int(stage.position[0]), pp, IN_ROUNDS) == numbers(stage.layers)
    # Cuts by hand.
    ends = Chain(1, 22, 1)
    assert even_chunks(ends, 4, 1, IN_ROUNDS) == (range(6), range(6, 12), range(12, 18), range(18, 24))
    assert even_chunks(ends, 2, 1, IN_ROUNDS) == (range(12), range(12, 24))  # 11 body layers each
    assert even_chunks(ends, 2, 2, FOLDED) == even_chunks(ends, 4, 1, IN_ROUNDS)
    assert even_chunks(ends, 1, 1, FOLDED) == (range(24),)  # one stage has one chunk
    assert even_chunks(ends, 10, 1, MIRRORED)[-3:] == (range(21, 23), range(23, 23), range(23, 24))
    assert even_chunks(Chain(0, 6, 0), 4, 1, MIRRORED) == (range(2), range(2, 4), range(4, 6), range(6, 6))
    assert given_chunks([2, 0, 3]) == (range(2), range(2, 2), range(2, 5))


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
