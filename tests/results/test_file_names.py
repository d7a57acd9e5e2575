"""Which names are dsx's."""

import pytest

from dsx.results.folder import is_lock, is_of_run, is_of_set, is_passing, part_name, part_number, shard_lock


def test_names_and_numbers():
    assert part_name(7) == "part-00007.parquet"
    assert part_name(123456) == "part-123456.parquet"
    assert [part_number(part_name(n)) for n in (0, 7, 123456)] == [0, 7, 123456]


@pytest.mark.parametrize(
    "name",
    [
        "part-7.parquet",
        "part-000007.parquet",  # a second name for number 7
        "part-00007.parquet.bak",
        "manifest.json",
        "../part-00007.parquet",
        "part-00007.parquet\n",
        "part-\N{ARABIC-INDIC DIGIT ONE}0000.parquet",
        f"part-{'9' * 5000}.parquet",
    ],
)
def test_what_is_no_part(name):
    assert part_number(name) is None


@pytest.mark.parametrize(
    "name", ["manifest.json", "replaced.json", "merged.parquet", "part-00000.parquet", ".0a1b.partial", ".nfs00a1"]
)
def test_names_of_a_run(name):
    assert is_of_run(name)
    assert not is_lock(name)
    assert is_passing(name) == name.endswith("partial")
    assert is_of_set(name) == (name in ("manifest.json", "part-00000.parquet"))


@pytest.mark.parametrize("name", ["entry.lock", "run.lock", shard_lock((2, 8))])
def test_names_of_locks(name):
    assert is_lock(name)
    assert is_of_run(name)


@pytest.mark.parametrize("name", ["notes.txt", "poetry.lock", "shard-a-of-b.lock", ".partial", ".mine.partial", "sub"])
def test_names_of_others(name):
    assert not is_of_run(name)
