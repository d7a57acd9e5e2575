"""Sections that scripts write into documents, between `<!-- benchmarks/NAME.py -->` and `<!-- end -->`."""

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


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a Markdown table; the last `numbers` columns are aligned to the right."""
    rule = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows)) + "\n"
