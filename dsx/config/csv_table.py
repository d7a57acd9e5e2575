"""Strict reading of a CSV file with named columns: a misspelt optional column would otherwise count as missing.

Columns may come in any order. Unknown columns are allowed, unless their name resembles that of a missing optional
column. A quoted cell may span lines, so errors name a row by its first line. Each kind of table interprets the cells
itself.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dsx.errors import InputError, did_you_mean, nearest_names
from dsx.units import LARGEST_COUNT, WHOLE_NUMBER, parse_number

if TYPE_CHECKING:
    from _csv import Reader

# The largest packaged table has 50 columns and 2,882 rows; one of its rows takes two kilobytes of memory.
_MOST_COLUMNS, _MOST_ROWS = 1_000, 200_000
_LONGEST = 50_000_000  # characters; the largest packaged table has a million


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """The format of a kind of table."""

    subject: str  # of messages, with its verb: "a run table begins"
    error: type[InputError]  # raised for a fault of the file
    required: tuple[str, ...]
    optional: tuple[str, ...]
    comment: str = ""  # prefix of comment lines; "" for no comments
    hint: str = ""  # appended to the error of a missing column
    # Other name of a column -> the column, which is read in its place.
    also_called: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CsvRow:
    """The stripped cells of a row, by column."""

    line: int  # of the file, from 1
    place: str  # "file:line"
    cells: dict[str, str]


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A header and the rows below it, at least one."""

    header: CsvRow
    rows: tuple[CsvRow, ...]


def read_csv(path: Path, called: str, form: CsvFormat) -> CsvTable:
    """Return the table at `path`, which messages call `called`.

    Columns have the names of `form`, whichever of their names the file gives them. Raises the error of `form`, with
    file and line, for a file that is not CSV in UTF-8, a header with a missing,
    repeated or misspelt column, a row with more or fewer cells than the header, and a table without rows.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise form.error(f"{called}: has more than {_LONGEST:,} characters, the limit for a table")
        header, *rows = _rows(csv.reader(io.StringIO(text, newline=""), strict=True), called, form)
    except OSError as error:
        raise form.error(f"{called}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise form.error(f"{called}: is not a CSV file in UTF-8: {error}") from None
    if not rows:
        raise form.error(f"{called}: has no rows below its header")
    return CsvTable(header, tuple(rows))


def whole_number(text: str, least: int = 1) -> int:
    """Return a cell as a whole number from `least`; raises SpecError for no number, ValueError for any other number."""
    value = parse_number(text, WHOLE_NUMBER)
    if value != int(value) or not least <= value <= LARGEST_COUNT:
        raise ValueError(f"{text!r} is not a whole number from {least} to {LARGEST_COUNT}")
    return int(value)


def _rows(reader: "Reader", called: str, form: CsvFormat) -> Iterator[CsvRow]:
    """Yield the header, then the rows; blank lines and comments are left out."""

    def lines_of() -> Iterator[tuple[int, list[str]]]:
        """Yield (first line, cells) of each row."""
        line = 1
        for cells in reader:
            first_line, line = line, reader.line_num + 1
            commented = form.comment and cells and cells[0].lstrip().startswith(form.comment)
            if any(cell.strip() for cell in cells) and not commented:
                yield first_line, cells

    lines = lines_of()
    begin, names = next(lines, (1, []))
    titles = [name.strip() for name in names]
    header = [form.also_called.get(name, name) for name in titles]
    for name, column in form.also_called.items():
        if name in titles and column in titles:
            raise form.error(f"{called}:{begin}: has {column!r} and {name!r}, which are the same column: keep one")
    _check_header(header, f"{called}:{begin}", form)
    yield CsvRow(begin, f"{called}:{begin}", dict(zip(header, header, strict=True)))
    for number, (first_line, cells) in enumerate(lines, 1):
        if number > _MOST_ROWS:
            raise form.error(f"{called}:{first_line}: has more than {_MOST_ROWS:,} rows, the limit for a table")
        place = f"{called}:{first_line}"
        if len(cells) != len(header):
            count = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
            raise form.error(f"{place}: has {count}, but the header has {len(header)} columns")
        yield CsvRow(first_line, place, {name: cell.strip() for name, cell in zip(header, cells, strict=True)})


def _check_header(header: list[str], place: str, form: CsvFormat) -> None:
    if not any(header):
        raise form.error(f"{place}: is empty: {form.subject} with the names of its columns")
    if len(header) > _MOST_COLUMNS:
        raise form.error(f"{place}: has {len(header):,} columns; at most {_MOST_COLUMNS:,} are allowed")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise form.error(f"{place}: has the column {twice[0]!r} twice")
    columns = (*form.required, *form.optional)
    unknown = [name for name in header if name not in columns]
    missing = [name for name in form.required if name not in header]
    if missing:
        lacking = ", ".join(f"{name!r}{did_you_mean(name, unknown)}" for name in missing)
        raise form.error(f"{place}: lacks the column{'s' if len(missing) > 1 else ''} {lacking}{form.hint}")
    absent = [name for name in form.optional if name not in header]
    for name in unknown:
        if near := nearest_names(name.lower(), absent, cutoff=0.8):
            raise form.error(f"{place}: column {name!r} is not known; did you mean {near[0]!r}?")
