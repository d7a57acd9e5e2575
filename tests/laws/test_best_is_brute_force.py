"""The best of a sweep are those that the oracle finds by pricing every candidate: the first k, by groups, with ties."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.spaces import SYSTEM
from oracles.formulas import price
from oracles.space import enumerate_candidates
from validation.cases import CONFIG, STRATEGIES, configs_of, problem_for

from dsx.search.spaces import Space
from dsx.search.sweep import search_of
from dsx.search.tiles import tiles

MODEL = {"l": 2048, "e": 2048, "h": 16, "f": 8192, "depth": 12}
GPUS, BATCHES = (8, 12), (12, 16)
COLUMN = {"tp": "n1", "pp": "np", "dp": "nd", "microbatch_size": "bm", "panels": "nb", "tp_nvs": "t1", "pp_nvs": "tp"}
PER = [
    (),
    ("tp",), ("strategy",), ("panels", "microbatch_size"),  # of the key
    ("pp",), ("num_gpus", "global_batch_size"), ("pp_nvs", "dp"),  # of the choices
    ("tp", "pp"), ("strategy", "num_gpus", "tp_nvs"), ("global_batch_size", "tp", "dp"),  # of both
]  # fmt: skip

SYSTEMS = {
    "two tiers": SYSTEM | {"hbm_capacity": 8e9},
    # Which members share a domain does not matter, so most step times occur several times.
    "one tier": SYSTEM | {"fast_bandwidth": 5e10, "fast_latency": 5e-6, "hbm_capacity": 8e9},
}


@cache
def problem_and_space(name):
    problem = problem_for(MODEL, SYSTEMS[name], *STRATEGIES)
    space = Space(problem, GPUS, BATCHES)
    return problem, space, space.table(problem)


@cache
def brute_force(name):
    """Every candidate that fits, as (group columns, configuration, step time)."""
    found = []
    for strategy in STRATEGIES:
        for num_gpus in GPUS:
            for batch in BATCHES:
                for config in enumerate_candidates(MODEL, 8, strategy, num_gpus, batch):
                    priced = price(MODEL, SYSTEMS[name], strategy, config, batch)
                    if priced["fits"]:
                        columns = {column: config[ours] for column, ours in COLUMN.items()}
                        columns |= {"strategy": strategy, "num_gpus": num_gpus, "global_batch_size": batch}
                        identity = (strategy, num_gpus, batch, *(config[part] for part in CONFIG))
                        found.append((columns, identity, priced["step_time"]))
    return found


def groups_of(name, per):
    """{group: its (step time, identity), fastest first}"""
    groups = {}
    for columns, identity, time in brute_force(name):
        groups.setdefault(tuple(columns[column] for column in per), []).append((time, identity))
    return {group: sorted(members) for group, members in groups.items()}


def found_groups(problem, rows, per):
    """The rows of a search in the form of `groups_of`; they must come sorted by group and step time."""
    groups, order = {}, []
    for row in range(len(rows["candidate"])):
        strategy = problem.strategies[rows["strategy"][row]]
        (config,) = configs_of(strategy, {n: c[row : row + 1] for n, c in rows.items()})
        identity = (strategy, int(rows["num_gpus"][row]), int(rows["global_batch_size"][row]), *config)
        group = tuple(strategy if column == "strategy" else int(rows[column][row]) for column in per)
        groups.setdefault(group, []).append((float(rows["step_time_s"][row]), identity))
        order.append((*(int(rows[column][row]) for column in per), float(rows["step_time_s"][row])))
    assert order == sorted(order)
    return groups


def compare(found, expected, top):
    assert found.keys() == expected.keys()
    for group, members in expected.items():
        wanted = members[:top]
        assert [time for time, _ in found[group]] == pytest.approx([time for time, _ in wanted], rel=1e-12), group
        # Ties for the last place may be resolved in any way; each row is what the oracle says it is.
        times = dict((identity, time) for time, identity in members)
        identities = [identity for _, identity in found[group]]
        assert len(set(identities)) == len(identities)
        for time, identity in found[group]:
            assert times[identity] == pytest.approx(time, rel=1e-12), identity
        last = wanted[-1][0]
        assert {i for t, i in wanted if t < last * (1 - 1e-9)} <= set(identities)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("per", PER, ids=lambda per: "-".join(per) or "all")
@pytest.mark.parametrize("name", SYSTEMS)
def test_best(name, per):
    problem, space, table = problem_and_space(name)
    for top in (1, 3, 10):
        rows, counts = search_of(problem, space, table).best(top, per)
        assert counts.feasible == len(brute_force(name))
        assert (rows["reject"] == 0).all()
        compare(found_groups(problem, rows, per), groups_of(name, per), top)


@settings(max_examples=20)
@given(
    top=st.integers(1, 40),
    per=st.lists(st.sampled_from([*COLUMN, "strategy", "num_gpus", "global_batch_size"]), max_size=4, unique=True),
    name=st.sampled_from(sorted(SYSTEMS)),
)
def test_best_of_any_groups(top, per, name):
    problem, space, table = problem_and_space(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "_CHUNK", 500)
        rows, _ = search_of(problem, space, table).best(top, per)
    compare(found_groups(problem, rows, per), groups_of(name, per), top)


def test_there_are_ties():
    times = sorted(time for _, _, time in brute_force("one tier"))
    ties = sum(later - sooner < 1e-12 * later for sooner, later in pairwise(times))
    assert ties > len(times) / 3
