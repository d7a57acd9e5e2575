"""Tables of any kind: what all of them have in common, beside what the tests of each kind say."""

import pytest

from dsx.config.csv_table import CsvFormat, read_csv, whole_number
from dsx.errors import OperatorTimesError

FORM = CsvFormat("a list begins", OperatorTimesError, ("name", "size"), ("colour",), comment="#")


@pytest.fixture
def read(tmp_path):
    def read(text):
        (tmp_path / "list.csv").write_text(text, encoding="utf-8")
        return read_csv(tmp_path / "list.csv", "list.csv", FORM)

    return read


def test_cells_come_by_column_with_their_place(read):
    table = read('\ufeff# mine\n\nsize, name ,other\n1,"a\nb",x\n 2 ,c,\n')
    assert (table.header.place, list(table.header.cells)) == ("list.csv:3", ["size", "name", "other"])
    assert [(row.line, row.place) for row in table.rows] == [(4, "list.csv:4"), (6, "list.csv:6")]
    assert table.rows[1].cells == {"size": "2", "name": "c", "other": ""}


def test_a_misspelt_column_is_refused(read):
    assert read("name,size,flavour\na,1,x\n").rows
    with pytest.raises(OperatorTimesError, match=r"^list\.csv:1: column 'color' is not known; did you mean 'colour'\?"):
        read("name,size,color\na,1,x\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n# nothing\n", "list.csv:1: is empty: a list begins with the names of its columns"),
        ("name,size\n", "list.csv: has no rows below its header"),
        ("name,size\na,1\nb\n", "list.csv:3: has 1 cell, but the header has 2 columns"),
        (
            ",".join(f"c{index}" for index in range(100_000)),
            "list.csv:1: has 100,000 columns; at most 1,000 are allowed",
        ),
        ("name,size\n" + "a,1\n" * 200_001, "list.csv:200002: has more than 200,000 rows, the limit for a table"),
        ('name,size\n"a,1\n', "list.csv: is not a CSV file in UTF-8: unexpected end of data"),
    ],
)
def test_what_is_no_table(read, text, says):
    with pytest.raises(OperatorTimesError) as error:
        read(text)
    assert str(error.value) == says


def test_a_whole_number_is_in_bounds():
    assert (whole_number("1e3"), whole_number("0", 0)) == (1000, 0)
    for text in ("0", "2.5", "3000000000"):
        with pytest.raises(ValueError, match="is not a whole number from 1 to 2147483647"):
            whole_number(text)


def test_a_line_without_end(tmp_path):
    path = tmp_path / "endless.csv"
    with path.open("wb") as file:
        file.truncate(60_000_000)
    with pytest.raises(OperatorTimesError, match="has more than 50,000,000 characters"):
        read_csv(path, "endless.csv", FORM)
