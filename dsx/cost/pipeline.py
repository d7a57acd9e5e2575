"""The pipeline: sending between stages, and the bubble, of an even cut under 1F1B.

A step of m microbatches over pp stages takes (m + pp - 1) times the slowest stage's microbatch, sends
included (Narayanan et al., SC21; arXiv 2410.00273, section 3).
"""

from typing import Any, NamedTuple


class Pipeline(NamedTuple):
    """The pipeline parts of a step, in seconds."""

    busy_microbatches: Any  # microbatches of work that a stage does
    pp_comm_s: Any
    bubble_s: Any


def one_f_one_b(stage_s: Any, send_s: Any, stages: Any, num_microbatches: Any) -> Pipeline:
    """Return the pipeline parts for a stage of `stage_s` and sends of `send_s` per microbatch."""
    return Pipeline(
        busy_microbatches=num_microbatches,
        pp_comm_s=num_microbatches * send_s,
        bubble_s=(stages - 1.0) * (stage_s + send_s),
    )
