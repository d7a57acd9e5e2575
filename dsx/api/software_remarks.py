"""What is said of software: a framework that a set does not price, and words of a run table that no stack names."""

from collections.abc import Mapping

from dsx.errors import InputError
from dsx.remarks import warn
from dsx.runs.software import known_stacks, software_of
from dsx.spec.assumptions import AssumptionsSpec
from dsx.units import counted

_SHOWN = 3  # remarks on software of run tables


def other_software(framework: str, assumptions: AssumptionsSpec) -> list[str]:
    """Return what to say once of a framework whose plans are priced with the stack of another one.

    Nothing is said where the set names no stack, or where no stack is of the framework.
    """
    try:
        stacks = known_stacks()
    except InputError:  # a text of the user's own that is no stack is no reason to refuse a search
        return []
    assumed = next((stack for stack in stacks if stack.name == assumptions.stack), None)
    own = software_of(framework, None, None, stacks)
    if assumed is None or own is None or own.unknown is not None:
        return []
    if any(framework in word or word in framework for word in assumed.software.words):
        return []
    return [
        f"plans of {framework} are priced with the software of {assumed.name}: "
        f"--set assumptions.stack={own.stack.name} prices its own"
    ]


def warn_of_unknown(remarks: Mapping[str, int]) -> None:
    """Warn of software that no stack names; `remarks` has the number of rows of each."""
    for said, number in [*remarks.items()][:_SHOWN]:
        warn(f"{said} ({counted(number, 'row')})")
    if len(remarks) > _SHOWN:
        rows = sum([*remarks.values()][_SHOWN:])
        warn(f"and {len(remarks) - _SHOWN} more names of software are not known ({counted(rows, 'row')})")
