"""The job as text, with which every answer begins: the model, the GPUs, and the sequences of a step."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dsx.printable import printable

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem


def step_text(global_batch_size: int, sequence_length: int) -> str:
    """Return "1,024 sequences of 8,192 tokens, 8,388,608 tokens a step"."""
    sequences = "1 sequence" if global_batch_size == 1 else f"{global_batch_size:,} sequences"
    return f"{sequences} of {sequence_length:,} tokens, {global_batch_size * sequence_length:,} tokens a step"


def steps_text(global_batch_sizes: Sequence[int], sequence_length: int) -> str:
    """Return the sequences and tokens of a step as a range, for batches of several sizes."""
    if len(global_batch_sizes) == 1:
        return step_text(global_batch_sizes[0], sequence_length)
    least, most = min(global_batch_sizes), max(global_batch_sizes)
    tokens = f"{least * sequence_length:,} to {most * sequence_length:,} tokens a step"
    return f"{least:,} to {most:,} sequences of {sequence_length:,} tokens, {tokens}"


def only_text(fix: Mapping[str, Sequence[object]], limit: Mapping[str, Sequence[object]]) -> str:
    """Return "only tp=4,8; limit pp>=2 pp<=16": what a search is restricted to; empty if it is to nothing."""
    fixed = " ".join(f"{name}={','.join(map(str, values))}" for name, values in fix.items())
    limits = " ".join(f"{name}{bound}" for name, bounds in limit.items() for bound in bounds)
    return "; ".join([*([f"only {fixed}"] if fixed else []), *([f"limit {limits}"] if limits else [])])


def job_text(problem: "Problem", num_gpus: int) -> str:
    """Return "MODEL on 512 x CLUSTER"."""
    return f"{printable(problem.model.name)} on {num_gpus} x {printable(problem.cluster.name)}"
