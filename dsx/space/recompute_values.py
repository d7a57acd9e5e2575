"""The values of the choice `recompute`: none, full, and every set of regions of a layer.

A set of regions is written with their names, joined with a plus: ``norms+expert-activation``. Core attention alone is
called ``selective``, which is what Megatron-LM's ``--recompute-granularity selective`` recomputes by default. A region
that is part of another one (`dsx.graph.regions.Region.within`) is recomputed with it, so no set has both.
"""

from itertools import chain, combinations

from dsx.errors import SpecError, did_you_mean
from dsx.graph.regions import BY_NAME, CORE_ATTENTION, REGIONS

NONE, SELECTIVE, FULL = "none", "selective", "full"
_SELECTIVE = frozenset({CORE_ATTENTION})
JOINED = "+"


def _sets() -> list[tuple[str, ...]]:
    names = tuple(BY_NAME)
    every = chain.from_iterable(combinations(names, count) for count in range(1, len(names) + 1))
    return [chosen for chosen in every if not any(BY_NAME[name].within in chosen for name in chosen)]


# The first three are those of launchers. The names of the others are in the order of the regions.
VALUES = (NONE, SELECTIVE, FULL, *(JOINED.join(chosen) for chosen in _sets() if set(chosen) != _SELECTIVE))
MAIN = VALUES[:3]
_REGIONS = {NONE: frozenset[str](), SELECTIVE: _SELECTIVE} | {
    value: frozenset(value.split(JOINED)) for value in VALUES[len(MAIN) :]
}
REGION_NAMES = tuple(BY_NAME)
NONE_CODE, FULL_CODE = VALUES.index(NONE), VALUES.index(FULL)


def regions_of(code: int) -> frozenset[str] | None:
    """Return the regions that a value recomputes, by its position in `VALUES`; None for the whole layer."""
    return _REGIONS.get(VALUES[code])


def value_of(text: str) -> str:
    """Return the value that a text stands for; regions may be in any order.

    Raises SpecError for a name that is no region, for a region that is there twice, and for a part of another region.
    """
    if text in VALUES:
        return text
    names = text.split(JOINED)
    for name in names:
        of = "" if name == text else f"{text!r}: "
        if name in MAIN:
            raise SpecError(f"recompute = {of}{name!r} stands alone (regions: {', '.join(BY_NAME)})")
        if name not in BY_NAME:
            raise SpecError(f"recompute = {of}{name!r} is not known{_hint(name)}")
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"recompute = {text!r}: {name!r} is there twice")
        if (whole := BY_NAME[name].within) in names:
            raise SpecError(
                f"recompute = {text!r}: {name!r} is a part of {whole!r}, which has it recomputed: leave it out"
            )
    return next(value for value, chosen in _REGIONS.items() if chosen == set(names))


def _hint(name: str) -> str:
    of_launcher = [region.name for region in REGIONS if region.megatron_lm == name]
    meant = f"; did you mean {of_launcher[0]!r}?" if of_launcher else did_you_mean(name, (*MAIN, *BY_NAME))
    return f"{meant} (known: {', '.join(MAIN)}, or names joined with {JOINED} of {', '.join(BY_NAME)})"
