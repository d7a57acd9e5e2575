"""What would fit where no plan of a search does: other choices, more GPUs, or another batch.

One thing changes at a time, and each change is searched over the whole space, for its fastest plan that fits. GPUs are
doubled until one fits; the batch is doubled and halved. A change by a factor divides the memory of a GPU by no more, so
one that cannot be enough is not searched.
"""

import math
from collections.abc import Iterator

from dsx.api.beyond import Asked, spaces_for
from dsx.api.job import Job
from dsx.api.searched import Searched
from dsx.display.job_text import only_text
from dsx.display.layout import wrapped
from dsx.display.quantities import quantity, whole_plan_text
from dsx.errors import InputError
from dsx.printable import printable
from dsx.progress import Watch, progress
from dsx.search.fastest import fastest
from dsx.space.plan import Plan
from dsx.units import counted

_GPU_DOUBLINGS, _BATCH_DOUBLINGS = 6, 2
MOST_TIMES = 1 << _GPU_DOUBLINGS  # that the memory of a plan may be of a GPU's, for a change to help


def what_would_fit(found: Searched, asked: Asked, times: float, watch: Watch | None = None) -> str:
    """Return a line for each change with which a plan fits; empty if there is none among those that are tried.

    `times` is the least memory that a plan needs over what a GPU has.
    """
    ways = [*_changes(asked, times)] if times <= MOST_TIMES else []
    if not ways:
        return ""
    lines: list[str] = []
    done: set[str] = set()
    with progress(len(ways), "looking for what would fit", watch) as advance:
        for kind, said, changed in ways:
            if kind not in done and (fits := _fastest_that_fits(found, changed)) is not None:
                plan, peak_bytes = fits
                done.add(kind)
                of = f"{printable(plan['strategy'])}: {whole_plan_text(plan)}"
                lines.append(wrapped(f"{said}: {quantity('peak_bytes', peak_bytes)}, {of}", "  ", "  "))
            advance(1)
    return "\n".join(["what would fit, each with its fastest plan:", *lines]) if lines else ""


def _changes(asked: Asked, times: float) -> Iterator[tuple[str, str, Asked]]:
    """Yield the kind of each change, what it is in words, and the search with it; nearer ones of a kind come first."""
    job = asked.job
    gpus, batch, length = job.num_gpus, job.global_batch_size, job.sequence_length
    if asked.fix or asked.limit:
        yield (
            "choices",
            f"without {only_text(asked.fix, asked.limit).removeprefix('only ')}",
            asked._replace(fix={}, limit={}),
        )
    enough = math.ceil(math.log2(max(times, 2.0)))  # the first doubling that may be
    for number in (gpus << step for step in range(enough, _GPU_DOUBLINGS + 1)):
        yield "GPUs", counted(number, "GPU"), asked._replace(job=Job.of(job.inputs, number, batch, length))
    for step in range(enough, _BATCH_DOUBLINGS + 1):
        yield (
            "batch",
            f"a batch of {batch << step:,}",
            asked._replace(job=Job.of(job.inputs, gpus, batch << step, length)),
        )
        if batch % (1 << step) == 0:
            less = batch >> step
            yield "batch", f"a batch of {less:,}", asked._replace(job=Job.of(job.inputs, gpus, less, length))


def _fastest_that_fits(found: Searched, asked: Asked) -> tuple[Plan, float] | None:
    """Return the fastest plan of a search and its memory [bytes]; None if none fits."""
    try:
        spaces = spaces_for(found.framework, found, asked)
    except InputError:
        return None
    plans = fastest(spaces, 1).plans if spaces is not None and spaces.size else []
    return (plans[0]["plan"], plans[0]["peak_bytes"]) if plans else None
