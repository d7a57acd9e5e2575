"""The job as text, with which every answer begins: the model, the GPUs, and the sequences of a step."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsx.printable import printable
from dsx.units import counted

if TYPE_CHECKING:
    from dsx.pricing.problem import Problem


def step_text(global_batch_size: int, sequence_length: int) -> str:
    """Return "1,024 sequences of 8,192 tokens, 8,388,608 tokens a step"."""
    tokens = counted(global_batch_size * sequence_length, "token")
    return f"{counted(global_batch_size, 'sequence')} of {counted(sequence_length, 'token')}, {tokens} a step"


def steps_text(global_batch_sizes: Sequence[int], sequence_length: int) -> str:
    """Return the sequences and tokens of a step as a range, for batches of several sizes."""
    if len(global_batch_sizes) == 1:
        return step_text(global_batch_sizes[0], sequence_length)
    least, most = min(global_batch_sizes), max(global_batch_sizes)
    tokens = f"{least * sequence_length:,} to {most * sequence_length:,} tokens a step"
    return f"{least:,} to {most:,} sequences of {counted(sequence_length, 'token')}, {tokens}"


def only_text(fix: Mapping[str, Sequence[object]], limit: Mapping[str, Sequence[object]]) -> str:
    """Return "only tp=4,8; limit pp>=2 pp<=16": what a search is restricted to; empty if it is to nothing."""
    fixed = " ".join(f"{name}={','.join(map(str, values))}" for name, values in fix.items())
    limits = " ".join(f"{name}{bound}" for name, bounds in limit.items() for bound in bounds)
    return "; ".join([*([f"only {fixed}"] if fixed else []), *([f"limit {limits}"] if limits else [])])


def job_text(problem: "Problem", num_gpus: int) -> str:
    """Return "MODEL on 512 x CLUSTER", with what a GPU is where that is not plain."""
    return f"{printable(problem.model.name)} on {num_gpus} x {printable(problem.cluster.label)}"


def parameters_text(problem: "Problem") -> str:
    """Return "405.9 billion parameters"; in full below a million."""
    number = _parameters(problem)
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.4g} {word} parameters"
    return f"{number:,} parameters"


def job_data(problem: "Problem", num_gpus: int, global_batch_size: int) -> dict[str, Any]:
    """Return the job as plain data."""
    return {
        "model": problem.model.name,
        "parameters": _parameters(problem),
        "cluster": problem.cluster.name,
        "num_gpus": num_gpus,
        "global_batch_size": global_batch_size,
        "sequence_length": problem.sequence_length,
        "tokens_per_step": global_batch_size * problem.sequence_length,
    }


def _parameters(problem: "Problem") -> int:
    from dsx.graph.model import parameters

    return parameters(problem.models[0])
