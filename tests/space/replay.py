"""Replays the passes of a pipeline, event by event: the referee of the closed forms."""

from dsx.space.passes import stage_of


def replay(orders, seconds, send_s=0.0):
    """Return when the last pass ends.

    Every stage runs its passes in their order, each as soon as what it needs is there; sends take `send_s` and hold up
    no one else. `seconds(kind, chunk)` is how long a pass takes.
    """
    num_stages = len(orders)
    last_chunk = max(done.chunk for order in orders for done in order)
    ends, at, clock = {}, [0] * num_stages, [0.0] * num_stages
    left = sum(map(len, orders))
    while left:
        before = left
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                kind, microbatch, chunk = this = order[at[stage]]
                needed = _needed(kind, microbatch, chunk, last_chunk)
                if needed is not None and needed not in ends:
                    break
                sent = needed is not None and stage_of(needed[2], num_stages) != stage
                ready = 0.0 if needed is None else ends[needed] + send_s * sent
                clock[stage] = ends[this] = max(clock[stage], ready) + seconds(kind, chunk)
                at[stage] += 1
                left -= 1
        if left == before:
            raise AssertionError(f"the stages wait for each other, after {at} passes")
    return max(clock)


def _needed(kind, microbatch, chunk, last_chunk):
    """Return the pass whose result a pass takes; None if it begins with data."""
    if kind == "forward":
        return ("forward", microbatch, chunk - 1) if chunk else None
    if kind == "weights":
        return ("backward", microbatch, chunk)
    return ("forward", microbatch, chunk) if chunk == last_chunk else ("backward", microbatch, chunk + 1)
