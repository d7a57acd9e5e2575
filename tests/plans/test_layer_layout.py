"""Layer layouts: both texts, against the launcher's way of reading its own, and what is said of wrong ones."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.errors import PlanError
from dsx.plans.layer_layout import Chain, check_stages, layers_of_chunks, starts, text_of

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


def test_the_layout_of_its_documentation():
    layout = "Ettt|(tt|)*29,m|L"
    with pytest.raises(
        PlanError, match=r"position 15: m, a layer of multi-token prediction, is only directly before L"
    ):
        layers_of_chunks(layout, Chain(1, 61, 1, predictions=1))
    assert layers_of_chunks(layout.replace("m", ""), Chain(1, 61, 1)) == (4, *[2] * 29, 0, 1)


def test_a_prediction_is_part_of_the_last_chunk():
    """The layout of DeepSeek-V3 in Megatron-MoE-ModelZoo: m and L count as the one layer that the head is."""
    chain = Chain(1, 61, 1, predictions=1)
    assert layers_of_chunks("Et|(tt|)*30mL", chain) == (2, *[2] * 30, 1)
    with pytest.raises(
        PlanError, match=r"Et\|\(tt\|\)\*30L: has 0 m, but the model has 1 layer of multi-token predict"
    ):
        layers_of_chunks("Et|(tt|)*30L", chain)
    with pytest.raises(PlanError, match=r"position 12: has 1 m, but the model has 0 layers of multi-token prediction"):
        layers_of_chunks("Et|(tt|)*30mL", Chain(1, 61, 1))


def test_equal_chunks_may_be_listed_together():
    assert layers_of_chunks("4,2*3", Chain(1, 8, 1)) == layers_of_chunks("4,2,2,2", Chain(1, 8, 1)) == (4, 2, 2, 2)


def test_where_chunks_start():
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
