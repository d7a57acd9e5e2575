"""Plotly, which only reports need: it is an extra."""

from importlib.util import find_spec

from dsx.errors import InputError
from dsx.installed import install_text


def check_plotly() -> None:
    """Raise InputError if plotly is not installed; a report checks it before it reads anything."""
    if find_spec("plotly") is None:
        raise InputError(f"a report needs plotly, which is not installed: {install_text('[report]')}")


def plotly_script() -> str:
    """Return the whole of plotly.js, which the package brings along."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()
