"""The how-to of measured runs says what the code does: columns, defaults, words."""

import re
from pathlib import Path

from dsx.runs.complete import DEFAULTS
from dsx.runs.table import COLUMNS, REQUIRED
from dsx.schedules.schedules import SCHEDULES

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "measured-runs.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def table(section):
    rows = [line.strip("|").split("|") for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_every_column_is_listed_and_the_required_ones_are_bold():
    names = [name for row in table("Columns") for name in re.findall(r"\w+", row[0])]
    bold = [name for row in table("Columns") for part in re.findall(r"\*\*(.*?)\*\*", row[0]) for name in part.split()]
    assert sorted(names) == sorted(COLUMNS)
    assert sorted(bold) == sorted(REQUIRED)


def test_every_default_is_stated():
    stated = {row[0].strip("`"): row[1] for row in table("Missing values")}
    assert stated == {column: default.rule for column, default in DEFAULTS.items()}
    assert [*stated] == [*DEFAULTS]


def test_schedules_are_named():
    for schedule in SCHEDULES:
        assert f"`{schedule.name}`" in SECTIONS["Columns"]
