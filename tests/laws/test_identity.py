"""A candidate's id is its own, and the same whatever it is searched with and priced on."""

import numpy as np
from laws.spaces import candidates_of, hardware, on, problem_of
from validation.cases import STRATEGIES, reference_problem

from dsx.pricing.cuts import candidate_columns
from dsx.search.spaces import Space


def rows_of(problem, num_gpus, batches):
    space = Space(problem, num_gpus, batches)
    return candidate_columns(problem, space.keys, *candidates_of(space))


def by_name(problem, rows):
    """{all choices with the strategy by name: id}"""
    names = np.array(problem.strategies)[rows["strategy"]].tolist()
    others = [column.tolist() for name, column in rows.items() if name not in ("strategy", "candidate")]
    return dict(zip(zip(names, *others, strict=True), rows["candidate"].tolist(), strict=True))


def test_ids_are_unique():
    problem = reference_problem("gpt3_1T", "B200", 8, "summa")
    ids = rows_of(problem, (512, 768, 1024, 2048, 4096, 8192, 16384), (1536, 2048, 3072, 4096))["candidate"]
    assert len(ids) > 1_000_000
    assert len(np.unique(ids)) == len(ids)
    assert (ids >= 0).all()
    assert ids.dtype == np.int64


def test_ids_do_not_depend_on_the_cluster_or_on_what_else_is_searched():
    problem = problem_of("default")
    whole = by_name(problem, rows_of(problem, (12, 24), (24, 48)))
    assert len(set(whole.values())) == len(whole)
    slower = on(problem, hardware(matrix_flops=1e13, hbm_capacity=1e9))
    assert by_name(slower, rows_of(slower, (12, 24), (24, 48))) == whole
    larger = on(problem, hardware(fast_size=11))  # as many members of a domain have work as in one of 8, laid evenly
    found = by_name(larger, rows_of(larger, (12, 24), (24, 48)))
    both = found.keys() & whole.keys()
    assert both
    assert {plan: found[plan] for plan in both} == {plan: whole[plan] for plan in both}
    for strategy in STRATEGIES:  # alone, a strategy has another code
        alone = problem_of("default", (strategy,))
        part = by_name(alone, rows_of(alone, (24,), (48,)))
        assert part
        assert part.items() <= whole.items()
    backwards = problem_of("default", STRATEGIES[::-1])
    assert by_name(backwards, rows_of(backwards, (12, 24), (24, 48))) == whole


def test_ids_do_not_depend_on_the_assumptions_or_the_model():
    problem = problem_of("default")
    other = problem_of("paper-2410.00273")
    part = by_name(other, rows_of(other, (12,), (24,)))  # it has no uneven placements
    assert part
    assert part.items() <= by_name(problem, rows_of(problem, (12,), (24,))).items()


def test_known_ids():
    """Stored results join on these: a change of the hash makes them unreadable beside new ones."""
    problem = problem_of("default", ("1d",))
    rows = rows_of(problem, (1,), (2,))
    assert rows["microbatch_size"].tolist() == [1, 2]
    assert rows["candidate"].tolist() == [2240942466397288060, 2103322904243814203]
