"""Groups are counted before a sweep begins: as many as it would keep, and too many are refused."""

import pytest
from search.sweeps import feasible_rows, run, searched, study_of

from dsx.search import most_groups
from dsx.search.most_groups import MOST_ROWS, fault_of_groups
from dsx.search.sweep import Sweep
from dsx.spec.keep import KeepPareto, KeepTop

PER = ["tp", "pp", "dp", "global_batch_size"]


@pytest.fixture(scope="module")
def study():
    problem, space, _ = searched()
    return study_of(problem, space)


def fault(study, keep, part_size=None):
    return fault_of_groups([study], Sweep([study], keep, "float32", part_size).parts, keep)


def test_ten_rows_of_a_hundred_thousand_groups_are_kept():
    assert MOST_ROWS // 10 >= 100_000


def test_what_is_not_grouped_has_no_bound(study, monkeypatch):
    monkeypatch.setattr(most_groups, "MOST_ROWS", 1)
    assert fault(study, "all") == fault(study, KeepPareto(pareto=["step_time_s"])) == ""


def test_groups_are_those_that_there_are(study, monkeypatch):
    """As many as the space has at all three points, whether they fit or not, and not as many as their values say."""
    first, last = study.space.blocks.first_candidate[[0, -1]].tolist()
    positions, choices = study.space.blocks.rows(first, last)
    columns = [study.space.keys["tp"][positions], *(choices[name] for name in PER[1:])]
    count = 3 * len(set(zip(*(column.tolist() for column in columns), strict=True)))
    monkeypatch.setattr(most_groups, "MOST_ROWS", 2 * count)
    keep = KeepTop(top=2, per=PER)
    assert fault(study, keep) == ""
    monkeypatch.setattr(most_groups, "MOST_ROWS", count - 1)
    one = KeepTop(top=1, per=PER)
    assert f"{count:,} groups of up to 1 rows, and at most {count - 1:,} rows are kept" in fault(study, one)
    rows, _ = run(Sweep([study], one, "float32"))[0]
    assert 0 < len(rows["tp"]) <= count
    assert feasible_rows()["tp"].size > len(rows["tp"])


def test_parts_count_by_themselves(study, monkeypatch):
    monkeypatch.setattr(most_groups, "MOST_ROWS", 5)
    said = fault(study, KeepTop(top=3), part_size=study.size // 4)
    assert "of up to 3 rows over " in said
    assert " parts, and at most 5 rows are kept (3 of each of 1); name fewer columns in 'per'" in said


def test_a_top_beyond_all_candidates_is_all_of_them(study):
    assert fault(study, KeepTop(top=10**9)) == ""
