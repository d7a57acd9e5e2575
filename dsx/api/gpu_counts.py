"""The numbers of GPUs that a training run is compared on, where none are given.

They are powers of two, from the first with which the run could be done in time if every GPU ran at the peak of its data
sheet: no plan on fewer meets the deadline. Numbers between them are left to the user: they rarely divide a batch, and
then cost more.
"""

import math

from dsx.errors import InputError
from dsx.pricing.problem import Problem
from dsx.spec.cluster import DeviceSpec, peak_flops
from dsx.units import LARGEST_COUNT, counted

_LONGEST_DAYS = 180.0  # of a run without a deadline, at the peak of its GPUs
_COUNTS = 5  # a plan reaches a third to half of the peak, so the first or second is in time
_DAY = 86400.0


def least_gpus(problem: Problem, device: DeviceSpec, train_tokens: float, days: float) -> int:
    """Return the fewest GPUs that could train so many tokens in so many days at the peak of their data sheet."""
    peak = peak_flops(device, problem.assumptions_spec.linear_dtype)
    flops = 3.0 * problem.workload.forward_flops * train_tokens / problem.sequence_length
    return max(1, math.ceil(flops / (peak * days * _DAY)))


def powers_of_two(problem: Problem, device: DeviceSpec, train_tokens: float, days: float | None) -> list[int]:
    """Return the numbers of GPUs for a run of so many tokens that is done in so many days, if that is stated.

    Raises InputError for a run that is too large for any number of GPUs.
    """
    longest = days or _LONGEST_DAYS
    least = least_gpus(problem, device, train_tokens, longest)
    if least << _COUNTS > LARGEST_COUNT:
        limit = "a later deadline" if days else f"a deadline (without one it is {counted(longest, 'day')})"
        raise InputError(
            f"--train-tokens {train_tokens:g}: in {counted(longest, 'day')} at the peak of their data sheet they need "
            f"{least:,} GPUs; state fewer tokens, {limit}, or the numbers of GPUs"
        )
    first = max(problem.cluster.network.nvs.size, 1 << (least - 1).bit_length())
    first = 1 << (first.bit_length() - 1)
    return [first << step for step in range(_COUNTS)]
