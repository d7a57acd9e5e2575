"""The distribution that this package was installed from: its name on a package index is not that of the import.

`[project].name` of pyproject.toml is the one place of the name. What is installed knows it as the distribution that has
this package's command.
"""

from importlib import metadata

COMMAND, MAIN = "dsx", "dsx.__main__:main"


def distribution() -> metadata.Distribution:
    """Return the distribution; raises PackageNotFoundError where none is installed."""
    for entry in metadata.entry_points(group="console_scripts", name=COMMAND):
        if entry.value == MAIN and entry.dist is not None:
            return entry.dist
    raise metadata.PackageNotFoundError(COMMAND)


def install_text(what: str) -> str:
    """Return the command that installs the distribution with `what`: "[place]", an extra, or ">=7.1.0"."""
    return f"pip install '{distribution().name}{what}'"
