"""Replays the passes of a pipeline, event by event: the referee of the closed forms."""

from dsx.space.passes import Pair
from dsx.space.stage_chunks import IN_ROUNDS


def replay(orders, seconds, send_s=0.0, holds=IN_ROUNDS, hidden=lambda forward, backward: 0.0):
    """Return when the last pass ends.

    Every stage runs its passes in their order, each as soon as what it needs is there; sends take `send_s` and hold up
    no one else. `seconds(kind, chunk)` is how long a pass takes, and `hidden(forward chunk, backward chunk)` what a
    pair of passes saves. `holds` says which stage has which chunk.
    """
    num_stages = len(orders)
    items = [[passes_of(item) for item in order] for order in orders]
    num_chunks = max(done.chunk for order in items for passes in order for done in passes) + 1
    chains = holds.chains(num_stages, num_chunks // num_stages // holds.num_chains)
    stage_of = [stage for chain in chains for stage in chain]
    ends, at, clock = {}, [0] * num_stages, [0.0] * num_stages
    left = sum(map(len, items))
    while left:
        before = left
        for stage, order in enumerate(items):
            while at[stage] < len(order):
                passes = order[at[stage]]
                ready, lasts = clock[stage], -hidden(*(done.chunk for done in passes)) if len(passes) > 1 else 0.0
                for done in passes:
                    assert stage_of[done.chunk] == stage
                    needed = _needed(*done, len(chains[0]))
                    if needed is not None:
                        if needed not in ends:
                            break
                        ready = max(ready, ends[needed] + send_s * (stage_of[needed[2]] != stage))
                    lasts += seconds(done.kind, done.chunk)
                else:
                    clock[stage] = ready + lasts
                    for kind, microbatch, chunk in passes:
                        # A whole backward has the gradients of its inputs too.
                        ends["inputs" if kind == "backward" else kind, microbatch, chunk] = clock[stage]
                    at[stage] += 1
                    left -= 1
                    continue
                break
        if left == before:
            raise AssertionError(f"the stages wait for each other, after {at} passes")
    return max(clock)


def passes_of(item):
    """Return the one or two passes of an entry of an order."""
    return tuple(item) if isinstance(item, Pair) else (item,)


def _needed(kind, microbatch, chunk, length):
    """Return the pass whose result a pass takes, in chains of `length` chunks; None if it begins with data."""
    if kind == "forward":
        return ("forward", microbatch, chunk - 1) if chunk % length else None
    if kind == "weights":
        return ("inputs", microbatch, chunk)
    return ("forward", microbatch, chunk) if chunk % length == length - 1 else ("inputs", microbatch, chunk + 1)
