"""Groups are counted before a sweep begins, and too many groups are refused."""

import pytest
from search.sweeps import feasible_rows, run, searched, study_of

from dsx.config.sweep_file import KeepPareto, KeepTop
from dsx.search import sweep as max_groups
from dsx.search.sweep import MAX_ROWS, Sweep, fault_of_groups, most_rows

PER = ["tp", "pp", "dp", "global_batch_size"]


@pytest.fixture(scope="module")
def study():
    problem, space, _ = searched()
    return study_of(problem, space)


def fault(study, keep, part_size=None):
    return fault_of_groups([study], Sweep([study], keep, "float32", part_size).parts, keep)


def test_ten_rows_of_a_hundred_thousand_groups_are_kept():
    assert MAX_ROWS // 10 >= 100_000


@pytest.mark.parametrize("keep", ["all", "feasible", KeepTop(top=2, per=PER), KeepTop(top=2)], ids=str)
def test_the_most_rows_bound_what_is_kept(study, keep):
    sweep, kept = Sweep([study], keep, "float32"), []
    sweep.run(range(len(sweep.parts)), lambda number, rows, counts: kept.append(len(rows["tp"])))
    assert sum(kept) <= most_rows([study], sweep.parts, keep) <= sweep.size
    assert keep != "all" or sum(kept) == most_rows([study], sweep.parts, keep)


def test_no_limit_without_groups(study, monkeypatch):
    monkeypatch.setattr(max_groups, "MAX_ROWS", 1)
    assert fault(study, "all") == fault(study, KeepPareto(pareto=["step_time_s"])) == ""


def test_groups_are_counted_exactly(study, monkeypatch):
    """The groups of the space at all three points, whether their plans fit or not; not all combinations of values."""
    first, last = study.space.blocks.first_candidate[[0, -1]].tolist()
    positions, choices = study.space.blocks.rows(first, last)
    columns = [study.space.keys["tp"][positions], *(choices[name] for name in PER[1:])]
    count = 3 * len(set(zip(*(column.tolist() for column in columns), strict=True)))
    monkeypatch.setattr(max_groups, "MAX_ROWS", 2 * count)
    keep = KeepTop(top=2, per=PER)
    assert fault(study, keep) == ""
    monkeypatch.setattr(max_groups, "MAX_ROWS", count - 1)
    one = KeepTop(top=1, per=PER)
    assert f"{count:,} groups of up to 1 rows exceed the limit of {count - 1:,} rows" in fault(study, one)
    rows, _ = run(Sweep([study], one, "float32"))[0]
    assert 0 < len(rows["tp"]) <= count
    assert feasible_rows()["tp"].size > len(rows["tp"])


def test_each_part_has_its_own_groups(study, monkeypatch):
    monkeypatch.setattr(max_groups, "MAX_ROWS", 5)
    message = fault(study, KeepTop(top=3), part_size=study.size // 4)
    assert "of up to 3 rows over " in message
    assert " parts exceed the limit of 5 rows (3 for each of 1 groups); name fewer columns in 'per'" in message


def test_a_top_beyond_all_candidates_is_all_of_them(study):
    assert fault(study, KeepTop(top=10**9)) == ""
