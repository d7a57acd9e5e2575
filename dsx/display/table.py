"""Tables as text."""

from collections.abc import Collection, Sequence

from dsx.printable import printable


def table(header: Sequence[str], rows: Sequence[Sequence[str]], text: Collection[int] = (0,)) -> str:
    """Return aligned columns, one line per row: columns at the positions `text` align left, the others right.

    A title may have several lines. The header is left out if all titles are empty.
    """
    titles = [title.split("\n") for title in header]
    height = max(map(len, titles), default=0) if any(header) else 0
    above = zip(*([""] * (height - len(lines)) + lines for lines in titles), strict=True) if height else ()
    cells = [*above, *([printable(cell) for cell in row] for row in rows)]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in text else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)
