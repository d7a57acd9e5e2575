"""What the pictures of a report share: their titles, and a style that the page adapts to light and dark.

Plotly reads a few HTML tags in labels, so names are escaped. Colours of text and grid are set by the page
(assets/figures.js), which knows whether it is dark.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsx.printable import printable

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as PlotlyFigure

# Marks of lines and groups: colour-blind safe, and of different lightness (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a800")
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star", "pentagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class Picture:
    """A picture of the page."""

    identity: str  # of its element
    title: str
    about: str  # what it shows, a sentence or two
    figure: "PlotlyFigure"


def shown(text: object) -> str:
    """Return a name as Plotly shows it, with what it would take for a tag escaped."""
    return html.escape(printable(str(text)), quote=False)


def broken(label: str) -> str:
    """Return a label with a line for each of its parts, which would else take the width of a narrow page."""
    return shown(label).replace(", ", ",<br>")


def shown_all(texts: Sequence[object]) -> list[str]:
    """Return names as Plotly shows them."""
    return [shown(text) for text in texts]


def numbers(values: Any) -> NDArray[np.float64]:
    """Return values as float64, which Plotly writes as base64."""
    return np.ascontiguousarray(values, dtype=np.float64)


def blank(height: int, **layout: Any) -> "PlotlyFigure":
    """Return a figure without marks: transparent, of a height in pixels, its legend above."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        template=None,
        height=height,
        margin={"l": 64, "r": 16, "t": 16, "b": 56},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#8a94a0", "activecolor": "#d55e00"},
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    figure.update_xaxes(automargin=True, zeroline=False, title_standoff=8)
    figure.update_yaxes(automargin=True, zeroline=False, title_standoff=8)
    figure.update_layout(**layout)
    return figure
