"""Time kernels one after the other, within a limit of time and of memory.

A multiply of moderate size is timed first. From its rate follows about how long a kernel will take, so that one that
would take longer than the time that is left is not begun.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from dsx.graph.derived import FORWARD
from dsx.measuring.cases import Case
from dsx.measuring.kernel_program import CONTRACT, VIEW, attention_of
from dsx.measuring.library import Library
from dsx.measuring.timing import Call, Timing, timed_briefly
from dsx.spec.operator_times import DTYPES

OUT_OF_TIME = "the time limit; the same command goes on"
_PROBE = 1024  # rows, columns and contracted size of the first multiply
_FEWEST_CALLS = 5  # of a kernel that is timed
_USABLE = 0.5  # share of the memory that a kernel may take
_SCORE_BYTES = 4  # of an element inside a kernel


@dataclass(frozen=True, slots=True)
class Outcome:
    """A kernel with its time, or why it has none."""

    case: Case
    timing: Timing | None
    why_not: str = ""


def outcomes(cases: Sequence[Case], library: Library, time_limit_s: float) -> Iterator[Outcome]:
    """Yield each kernel as soon as it is timed, or as it is clear that it will not be."""
    end = monotonic() + time_limit_s
    rate: float | None = None  # FLOP/s
    for case in cases:
        why_not = _why_not(case, library)
        if not why_not and rate is None:
            rate = _rate(library, case.dtype)
        left = end - monotonic()
        if not why_not and (left <= 0 or case.flops * _FEWEST_CALLS > left * (rate or float("inf"))):
            why_not = OUT_OF_TIME
        yield Outcome(case, None, why_not) if why_not else _timed(case, library)


def _timed(case: Case, library: Library) -> Outcome:
    try:
        return Outcome(case, timed_briefly(_call(case, library), library.wait))
    except (RuntimeError, NotImplementedError, ValueError, TypeError, MemoryError) as error:
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        return Outcome(case, None, f"{library.device} cannot run it: {cause}")


def _call(case: Case, library: Library) -> Call:
    if case.program is None:
        return library.multiply(*case.shape, case.dtype)
    make: Callable[..., Call] = library.forward if case.direction == FORWARD else library.backward
    return make(case.program, case.dtype)


def _rate(library: Library, dtype: str) -> float | None:
    """Return the FLOP/s of a multiply of moderate size; None if the library cannot run it."""
    try:
        taken = timed_briefly(library.multiply(_PROBE, _PROBE, _PROBE, 1, dtype), library.wait).median_s
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return None
    return 2.0 * _PROBE**3 / taken


def _why_not(case: Case, library: Library) -> str:
    """Return why a library cannot time a kernel; empty if it may."""
    if case.fault:
        return case.fault
    program = case.program
    attention = program is not None and attention_of(program) is not None
    if program is not None and not attention:
        kinds = dict.fromkeys(step.kind for step in program.steps if step.shape not in (VIEW, CONTRACT))
        if unknown := [kind for kind in kinds if not library.runs(kind)]:
            return f"no function for {', '.join(unknown)}"
    needed = _bytes(case, attention and library.accelerated)
    if needed > _USABLE * library.memory_bytes:
        return f"needs {needed / 1e9:.3g} GB of memory"
    return ""


def _bytes(case: Case, keeps_nothing_inside: bool) -> float:
    """Return about the bytes of arrays of a kernel; in the backward, each has a gradient too."""
    if case.program is None:
        return case.num_bytes
    program, width = case.program, DTYPES[case.dtype]
    crossing = [*program.inputs, *(program.values[position] for position in program.outputs)]
    inside = 0 if keeps_nothing_inside else sum(one.elements for one in program.results)
    return (width * sum(one.elements for one in crossing) + _SCORE_BYTES * inside) * (
        1 if case.direction == FORWARD else 2
    )
