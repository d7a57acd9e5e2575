"""The pages of docs/model: their sections, tables and blocks."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "model"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
TEXT = "\n".join(PAGES.values())

_SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections(page):
    """Return {heading: text} of a page, in order."""
    return dict(_SECTION.findall(PAGES[page]))


def blocks(page, kind):
    """Return the text of the fenced blocks of one kind."""
    return [text for found, text in _BLOCK.findall(PAGES[page]) if found == kind]


def rows(page, section):
    """Return the cells of the table rows of a section."""
    return [cells(line) for line in sections(page)[section].splitlines() if line.startswith("| ")]


def cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]
