"""What is seen of a breakdown, and the rows that it should show."""

import numpy as np
from results.frames import feasible

from dsx.pictures.breakdown import STACKS

LABELS = {part.label: column for stack in STACKS.values() for column, part in stack.parts.items()}


def fastest(df, columns):
    """The fastest row of each group, looked for in another way than plot does."""
    rows = [
        (feasible(group) if len(feasible(group)) else group).nsmallest(1, "step_time_s").iloc[0]
        for _, group in df.groupby(columns, observed=True)
    ]
    return rows


def stacks_of(ax):
    """Return {column: [bars] heights} of the parts, and check that each stands on the one below."""
    found, top = {}, 0.0
    for bars in ax.containers:
        if bars.get_label() in LABELS:
            np.testing.assert_allclose([bar.get_y() for bar in bars], top, rtol=1e-6)
            found[LABELS[bars.get_label()]] = np.array([bar.get_height() for bar in bars])
            top = top + found[LABELS[bars.get_label()]]
    return found


def headings(ax):
    """Return the headings of the table below the bars; a total stands above a bar."""
    return [text.get_text() for text in _own_texts(ax) if text.get_position()[1] <= 0]


def totals(ax):
    return [text for text in _own_texts(ax) if text.get_position()[1] > 0]


def _own_texts(ax):
    """Return the texts of an axis without those of its title."""
    return [text for text in ax.texts if text.get_gid() is None]
