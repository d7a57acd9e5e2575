"""Sections that scripts write into documents.

Their places are between `<!-- benchmarks/NAME.py -->` and `<!-- end -->`, which the document must have; or, in one that
another script writes too, between `<!-- NAME: written by benchmarks/NAME.py -->` and `<!-- end of NAME -->`.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_END = "<!-- end -->"
_LEAST = 0.9  # of a ratio that is written down, so that small steps that each look like noise do not add up


def write_section(document: Path, script: str, text: str, part: str = "") -> None:
    """Replace the section of a script in a document, or that of a `part`; the document must have exactly one."""
    begin = f"<!-- benchmarks/{script}.py{part and f' {part}'} -->"
    before, found, rest = document.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(_END)
    if not found or not ended:
        raise ValueError(f"{document}: has no section from {begin} to {_END}")
    document.write_text(f"{before}{begin}\n{text.strip()}\n\n{_END}{after}", encoding="utf-8")


def ratios(document: Path, script: str, column: str) -> dict[str, float]:
    """Return the numbers in a column of the tables in the section of a script, by the first column of each row."""
    begin = f"<!-- benchmarks/{script}.py -->"
    found: dict[str, float] = {}
    head: list[str] = []
    for line in document.read_text(encoding="utf-8").partition(begin)[2].partition(_END)[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not head:
            head = cells
        elif not cells:
            head = []
        elif column in head and cells[head.index(column)] and not cells[0].startswith("-"):
            found[cells[0].strip("`")] = float(cells[head.index(column)])
    return found


def check_speeds(written: Mapping[str, float], measured: Mapping[str, float]) -> None:
    """Exit if a speed is below `_LEAST` of the one that is written down, or if none is."""
    if not written or not {*written} <= {*measured}:
        sys.exit(f"no speeds of {', '.join(measured)} are written down, but of {', '.join(written) or 'none'}")
    slower = [
        f"{name}: {measured[name] / speed:.2f}" for name, speed in written.items() if measured[name] < _LEAST * speed
    ]
    if slower:
        sys.exit("\n".join([f"slower than {_LEAST:g} of what is written down:", *slower]))
    print(f"all {len(written)} speeds are at least {_LEAST:g} of those written down")


def put_section(document: Path, title: str, script: str, text: str) -> None:
    """Replace the section of a script in a document that another script writes, or append it under a title."""
    first, last = f"<!-- {script}: written by benchmarks/{script}.py -->", f"<!-- end of {script} -->"
    old = document.read_text(encoding="utf-8") if document.exists() else ""
    if first not in old:
        old = f"{old.rstrip()}\n\n## {title}\n\n{first}\n{last}\n"
    before, _, rest = old.partition(first)
    document.write_text(f"{before}{first}\n{text}\n{last}{rest.partition(last)[2]}", encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a Markdown table; the last `numbers` columns are aligned to the right."""
    rule = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows)) + "\n"
