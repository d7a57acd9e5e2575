"""What is said of software that a run table names, and no stack does."""

from collections.abc import Mapping

from dsx.remarks import warn
from dsx.units import counted

_SHOWN = 3  # remarks on software of run tables


def warn_of_unknown(remarks: Mapping[str, int]) -> None:
    """Warn of software that no stack names; `remarks` has the number of rows of each."""
    for said, number in [*remarks.items()][:_SHOWN]:
        warn(f"{said} ({counted(number, 'row')})")
    if len(remarks) > _SHOWN:
        rows = sum([*remarks.values()][_SHOWN:])
        warn(f"and {len(remarks) - _SHOWN} more names of software are not known ({counted(rows, 'row')})")
