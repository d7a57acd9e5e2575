"""The seconds of a pipeline whose stages run their passes in a fixed order, from the waves that pass along the stages.

A stage that never waits runs all its passes in one go. Where a microbatch comes from a neighbour too late for that, the
whole stage as well could have begun later. A wave is one pass of one microbatch on stage after stage. If it is known
how much a stage runs before its pass of a wave, the wave delays the beginnings of the stages by a running maximum, and
a few waves in turn give the seconds of a step. These are a bound below the longest path through all passes, and equal
to it unless it follows other waves.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dsx.space.critical_path import PipelineView


class Wave(NamedTuple):
    """One pass on one stage, seconds; the passes of a wave go from stage to stage, to later or to earlier ones."""

    start: Any  # what the stage runs before
    own: Any
    before: Any  # the passes of the wave on all earlier stages, with their sends


def to_later(begins: Sequence[Any], wave: Sequence[Wave], pipe: PipelineView, xp: Any) -> list[Any]:
    """Return when the stages begin behind a wave to later stages; without it they begin at `begins`."""
    leaves = [begin + own.start - own.before for begin, own in zip(begins, wave, strict=True)]
    comes = [time + own.before for time, own in zip(pipe.of_earlier(leaves), wave, strict=True)]
    return _delayed(begins, wave, comes, xp)


def to_earlier(begins: Sequence[Any], wave: Sequence[Wave], pipe: PipelineView, xp: Any) -> list[Any]:
    """Return when the stages begin behind a wave to earlier stages; without it they begin at `begins`."""
    passed = [own.before + own.own for own in wave]
    leaves = [begin + own.start + there for begin, own, there in zip(begins, wave, passed, strict=True)]
    comes = [time - there for time, there in zip(pipe.of_later(leaves), passed, strict=True)]
    return _delayed(begins, wave, comes, xp)


def _delayed(begins: Sequence[Any], wave: Sequence[Wave], comes: Sequence[Any], xp: Any) -> list[Any]:
    return [xp.maximum(begin, time - own.start) for begin, own, time in zip(begins, wave, comes, strict=True)]
