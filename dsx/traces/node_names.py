"""Names nodes in messages."""

from dsx.traces.columns import RankTrace


def node_text(trace: RankTrace, row: int) -> str:
    """Return a node, by its row, for a message: its id and its name."""
    return f"node {trace.ids[row]} ({trace.names.of(row)!r})"
