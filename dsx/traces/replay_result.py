"""What a replay found: for each rank, where the time of its step went."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The time of one rank's step, seconds; the parts add up to `step_s`.

    A part besides `compute_s` is time in which the compute stream is held or waits.
    """

    rank: int
    step_s: float  # until the end of its last node
    compute_s: float  # of its kernels
    comm_s: Mapping[str, float]  # by mesh axis, exposed: held by collectives, or waiting for them and their ranks
    send_s: float  # held by sends
    bubble_s: float  # waiting for receives
    offload_s: float  # held by transfers to the host and back, or waiting for them
    host_s: float  # waiting for the host to issue what is next


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The times of all replayed ranks."""

    ranks: tuple[RankTimes, ...]  # by rank
    num_nodes: int  # of all files

    @property
    def step_time_s(self) -> float:
        """Seconds of the step: those of the slowest rank."""
        return max((rank.step_s for rank in self.ranks), default=0.0)
