"""Blocks against plain loops over all choices that go with a key."""

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans.tables import BOUNDS, EXPERT_AXES, bounds, key_tables, only

from dsx.plans.blocks import Blocks
from dsx.plans.choices import CHOICE_COLUMNS, CODES, KEY_COLUMNS, PLACEMENT_COLUMNS
from dsx.plans.experts import share_of_row
from dsx.plans.rules import may_lie_unevenly


def divisors(number):
    return [one for one in range(1, number + 1) if number % one == 0]


AXES = ("tp", "tp2", "cp")


def room(here, suffix=""):
    """The ranks of a replica that ep nests in."""
    return math.prod(here[f"{axis}{suffix}"] for axis in AXES if axis not in EXPERT_AXES[here["strategy"]])


def used_of_a_domain(number, size):
    return max(one for one in divisors(number) if one <= size)


def by_loops(keys, given):
    """Every (key, *choice) by the rules alone, once per occurrence of the key."""
    found = Counter()
    for key in range(len(keys["tp"])):
        here = {name: int(column[key]) for name, column in keys.items()}
        ranks = here["tp"] * here["tp2"] * here["cp"]
        share = here["tp_nvs"] * here["tp2_nvs"] * here["cp_nvs"]
        for num_gpus in given.num_gpus:
            for pp in divisors(given.limits.num_layers):
                if num_gpus % (ranks * pp):
                    continue
                dp = num_gpus // (ranks * pp)
                if room(here) * dp % here["ep"]:
                    continue
                for pp_nvs in divisors(pp):
                    for dp_nvs in divisors(dp):
                        if share * pp_nvs * dp_nvs != used_of_a_domain(num_gpus, given.limits.nvs_size):
                            continue
                        if math.gcd(here["ep"], room(here, "_nvs") * dp_nvs) != here["ep_nvs"]:
                            continue
                        for batch in given.global_batch_size:
                            microbatches, left = divmod(batch, dp * here["microbatch_size"])
                            if left:
                                continue
                            holders = room(here) * dp // here["ep"]  # ranks with the same experts
                            for settings in settings_of(given, pp, dp, microbatches, holders):
                                found[(key, num_gpus, pp, dp, pp_nvs, dp_nvs, *settings, batch, microbatches)] += 1
    return found


def settings_of(given, pp, dp, microbatches, holders):
    """Every (vpp, zero_stage, recompute, schedule, zero_replicas, stored_layers, offload, order) of a pipeline."""
    searched = given.searched
    for vpp in searched.vpp or divisors(given.limits.num_layers):
        if vpp > 1 and (pp == 1 or given.limits.num_layers % (pp * vpp)):
            continue
        for zero, recompute, schedule in product(searched.zero_stage, searched.recompute, searched.schedule):
            if pp == 1 and schedule != searched.schedule[0]:
                continue
            if pp > 1 and not runs(CODES["schedule"][schedule], pp, vpp, microbatches):
                continue
            replicas = searched.zero_replicas or range(1, dp + 1)
            replicas = [n for n in replicas if dp % n == 0 and holders % n == 0 and (zero or n == 1)]
            fewer = (given.limits.num_layers - 1) // pp
            stored = [n for n in searched.stored_layers or range(fewer + 1) if n <= (fewer if recompute else 0)]
            for others in product(replicas, stored, searched.offload, searched.order):
                yield vpp, zero, recompute, schedule, *others


def runs(schedule, pp, vpp, microbatches):
    if schedule == "1f1b":
        return vpp == 1 or microbatches % pp == 0
    if schedule == "zb-v":
        return vpp == 2 and microbatches >= 2 * pp
    if schedule == "dualpipe":
        return vpp == 1 and pp % 2 == 0 and microbatches % 2 == 0 and microbatches >= 2 * pp
    return vpp == 1 and microbatches >= {"zb-h1": pp, "gpipe": 2}.get(schedule, 1)


def tuples(positions, choices):
    assert tuple(choices) == CHOICE_COLUMNS
    return list(zip(positions.tolist(), *(column.tolist() for column in choices.values()), strict=True))


def rows(blocks, start=0, stop=None):
    """Rows of blocks as (key, *choice)."""
    return tuples(*blocks.rows(start, blocks.size if stop is None else stop))


@given(keys=key_tables(), given_bounds=BOUNDS)
def test_rows_are_what_the_rules_allow(keys, given_bounds):
    blocks = Blocks(keys, given_bounds)
    assert Counter(rows(blocks)) == by_loops(keys, given_bounds)


@given(keys=key_tables(), given_bounds=BOUNDS, data=st.data())
def test_any_range_of_rows_and_any_candidates(keys, given_bounds, data):
    blocks = Blocks(keys, given_bounds)
    whole = rows(blocks)
    assert len(whole) == blocks.size
    for _ in range(5):
        start = data.draw(st.integers(0, blocks.size))
        stop = data.draw(st.integers(start, blocks.size))
        assert rows(blocks, start, stop) == whole[start:stop]
    # Any candidates.
    wanted = data.draw(st.lists(st.integers(0, blocks.size - 1), max_size=20)) if blocks.size else []
    assert tuples(*blocks.rows_at(np.array(wanted, dtype=np.int64))) == [whole[at] for at in wanted]


def test_every_range_of_a_few_blocks():
    keys = {
        name: np.array([1, 2, 2, 2, 1]) if name in ("tp", "microbatch_size") else np.ones(5, int)
        for name in KEY_COLUMNS
    }
    blocks = Blocks(keys, bounds([4, 8], [4, 8], num_layers=2))
    whole = rows(blocks)
    assert len(blocks) == 2
    assert 20 < len(whole) < 60
    for start in range(len(whole) + 1):
        for stop in range(start, len(whole) + 1):
            assert rows(blocks, start, stop) == whole[start:stop]


@given(keys=key_tables(), given_bounds=BOUNDS)
def test_a_block_is_all_that_fits_together(keys, given_bounds):
    blocks = Blocks(keys, given_bounds)
    assert blocks.first_key[0] == blocks.first_candidate[0] == 0
    assert (blocks.first_key[-1], blocks.first_candidate[-1]) == (len(blocks.keys), blocks.size)
    num_keys = np.diff(blocks.first_key)
    np.testing.assert_array_equal(np.diff(blocks.first_candidate), num_keys * blocks.num_choices)
    assert (num_keys > 0).all()
    assert (blocks.num_choices > 0).all()
    assert len(set(blocks.keys.tolist())) == len(blocks.keys)
    classes, even = [], not any(may_lie_unevenly(number, given_bounds.limits) for number in given_bounds.num_gpus)
    for block in range(len(blocks)):
        here = blocks.keys[blocks.first_key[block] : blocks.first_key[block + 1]]
        assert (keys["microbatch_size"][here] == blocks.microbatch_size[block]).all()
        of_keys = [{name: int(column[key]) for name, column in keys.items()} for key in here]
        found = set()
        for one in of_keys:
            ranks, share = (math.prod(one[f"{axis}{suffix}"] for axis in AXES) for suffix in ("", "_nvs"))
            # How many replicas an ep group needs, and how many parts of those in a domain it spans there.
            inside = math.gcd(one["ep"], room(one, "_nvs"))
            needed = one["ep"] // math.gcd(one["ep"], room(one))
            size, axes = given_bounds.limits.nvs_size, EXPERT_AXES[one["strategy"]]
            in_row = not even and one["ep_nvs"] == share_of_row(one, axes, size)
            found.add((ranks, share, needed, one["ep"] // inside, one["ep_nvs"] // inside, bool(in_row)))
        assert len(found) == 1
        classes.append((*found.pop(), int(blocks.microbatch_size[block])))
    assert len(set(classes)) == len(classes)


@given(keys=key_tables(), given_bounds=BOUNDS, data=st.data())
def test_segments_are_the_choices_of_their_blocks(keys, given_bounds, data):
    """In order they are the choices that each key of a block has in its rows."""
    blocks = Blocks(keys, given_bounds)
    low = data.draw(st.integers(0, len(blocks)))
    high = data.draw(st.integers(low, len(blocks)))
    segments = blocks.segments(low, high)
    assert (segments.length > 0).all()
    assert (np.diff(segments.block) >= 0).all()
    assert set(segments.block.tolist()) == set(range(low, high))
    made = tuples(np.repeat(segments.block, segments.length), blocks.choices(segments))
    expected = []
    for block in range(low, high):
        first, count = int(blocks.first_candidate[block]), int(blocks.num_choices[block])
        for key in range(blocks.first_key[block + 1] - blocks.first_key[block]):
            one_key = rows(blocks, first + key * count, first + (key + 1) * count)
            assert {row[0] for row in one_key} == {int(blocks.keys[blocks.first_key[block] + key])}
            assert [row[1:] for row in one_key] == [row[1:] for row in rows(blocks, first, first + count)]
        expected += [(block, *row[1:]) for row in rows(blocks, first, first + count)]
    assert made == expected

    per_choice = segments.per_choice()
    assert (per_choice.length == 1).all()
    assert tuples(per_choice.block, blocks.choices(per_choice)) == made
    backwards = segments.take(np.arange(len(segments.block))[::-1])
    again = tuples(np.repeat(backwards.block, backwards.length), blocks.choices(backwards))
    assert Counter(again) == Counter(made)
    assert [row[0] for row in again] == [row[0] for row in made[::-1]]
    at = blocks.choices_at(
        np.repeat(segments.placement, segments.length),
        blocks.batches[segments.positions()],
        blocks.microbatch_size[np.repeat(segments.block, segments.length)],
    )
    assert tuples(np.repeat(segments.block, segments.length), at) == made


@pytest.mark.sampled(8)
@pytest.mark.parametrize("column", CHOICE_COLUMNS)
@given(keys=key_tables(), given_bounds=BOUNDS, values=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]), max_size=4))
def test_a_filter_keeps_the_rows_it_keeps(column, keys, given_bounds, values):
    whole = rows(Blocks(keys, given_bounds))
    kept = rows(Blocks(keys, bounds_with(given_bounds, only(**{column: values}))))
    at = 1 + CHOICE_COLUMNS.index(column)
    assert kept == [row for row in whole if row[at] in values]


def bounds_with(given_bounds, keep_choices):
    return replace(given_bounds, keep_choices=keep_choices)


@given(keys=key_tables(), given_bounds=BOUNDS)
def test_filters_hold_together(keys, given_bounds):
    wanted = {"num_gpus": [4, 8, 12], "pp": [1, 2], "num_microbatches": [1, 2, 3, 4], "dp_nvs": [1, 2]}
    at = {column: 1 + CHOICE_COLUMNS.index(column) for column in wanted}
    whole = rows(Blocks(keys, given_bounds))
    kept = rows(Blocks(keys, bounds_with(given_bounds, only(**wanted))))
    assert kept == [row for row in whole if all(row[at[column]] in values for column, values in wanted.items())]


@pytest.mark.parametrize(
    ("keys", "given_bounds"),
    [
        (0, bounds([8], [8])),  # no key
        (3, bounds([8], [8], keep_choices=only(dp=[3]))),
        (3, bounds([8], [7])),  # no batch that eight replicas divide
    ],
)
def test_no_candidate(keys, given_bounds):
    blocks = Blocks({name: np.ones(keys, dtype=np.int64) for name in KEY_COLUMNS}, given_bounds)
    assert (len(blocks), blocks.size, len(blocks.keys)) == (0, 0, 0)
    assert rows(blocks) == []
    segments = blocks.segments(0, 0)
    assert len(segments.block) == 0
    assert [len(column) for column in blocks.choices(segments).values()] == [0] * len(CHOICE_COLUMNS)
    assert len(blocks.choices(segments.per_choice())["pp"]) == 0


def test_what_blocks_share_is_stored_once():
    """Batch sizes and placements grow neither with the keys nor with microbatch sizes that divide the same batches."""
    keys = {name: np.ones(600, dtype=np.int64) for name in KEY_COLUMNS}
    keys["microbatch_size"] = np.arange(600) % 3 + 1
    few = {name: column[:3] for name, column in keys.items()}
    wide = bounds([64], range(1, 513), num_layers=8)
    many, some = Blocks(keys, wide), Blocks(few, wide)
    assert many.size == 200 * some.size
    np.testing.assert_array_equal(many.placements, some.placements)
    np.testing.assert_array_equal(many.batches, some.batches)
    assert many.placements.shape == (len(PLACEMENT_COLUMNS), 4)
