"""Sections that scripts write into documents.

Their places are between `<!-- benchmarks/NAME.py -->` and `<!-- end -->`, which the document must have; or, in one that
another script writes too, between `<!-- NAME: written by benchmarks/NAME.py -->` and `<!-- end of NAME -->`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

_END = "<!-- end -->"


def write_section(document: Path, script: str, text: str, part: str = "") -> None:
    """Replace the section of a script in a document, or that of a `part`; the document must have exactly one."""
    begin = f"<!-- benchmarks/{script}.py{part and f' {part}'} -->"
    before, found, rest = document.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(_END)
    if not found or not ended:
        raise ValueError(f"{document}: has no section from {begin} to {_END}")
    document.write_text(f"{before}{begin}\n{text.strip()}\n\n{_END}{after}", encoding="utf-8")


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
