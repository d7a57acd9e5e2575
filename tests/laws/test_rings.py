"""Ring attention: its hops by hand, and in replays of traces, inside a node and over several."""

import pytest
from replays import MODELS, OVERLAPS_OF, drawn_ring, replayed

import dsx

TOLERANCE = 0.03
GPUS = 16
TOKENS, MICROBATCH = 32768, 4


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.sampled(0, 20)
@pytest.mark.parametrize("overlaps", OVERLAPS_OF)
@pytest.mark.parametrize("seed", range(40))
def test_a_ring_is_as_long_as_in_a_replay(seed, overlaps, tmp_path):
    found = replayed(seed, overlaps, tmp_path / "trace", drawn_ring)
    if found is None:
        return  # a draw that breaks rules
    assert abs(found.time) <= TOLERANCE, found


def priced(plan, strategy="2d-ring", cluster="h100-nvs8", **settings):
    changes = [*MODELS["llama-3-8b"], *(f"{name}={value}" for name, value in settings.items())]
    job = dsx.Job("llama-3-8b", cluster, GPUS, MICROBATCH, TOKENS, set=changes)
    return dsx.evaluate(job, f"{plan} microbatch_size={MICROBATCH}", strategy=strategy).costs


def test_a_ring_takes_its_hops_over_one_nic_or_hides_behind_attention():
    """Each hop outlasts the attention beside it, so with half of the bandwidth each takes so much longer."""
    fast, slow = (priced("cp=16 nvs.cp=8", **{"cluster.network.net.bandwidth": f"{b} GB/s"}) for b in (50, 25))
    block = MICROBATCH * TOKENS / 16 * 8 * 128 * 2  # bytes of keys: 8 heads of 128 in BF16
    num_blocks = 8 * 15 * (2 + 4)  # of eight layers; the backward passes on their gradients too
    longer = num_blocks * block * (1 / 25e9 - 1 / 50e9) / 0.8
    assert slow["cp_comm_s"] - fast["cp_comm_s"] == pytest.approx(longer, rel=1e-9)
    assert fast["cp_comm_s"] > 0.5 * longer
    # A ring inside a node hides behind attention.
    assert priced("cp=8 tp=2 nvs.cp=8")["cp_comm_s"] == 0.0


@pytest.mark.parametrize("share", [1, 2, 4])
def test_more_ranks_in_a_node_make_no_hop_over_the_edge_faster(share):
    """One rank of a node sends out of it, however many others the ring has there."""
    one, other = priced(f"cp=16 nvs.cp={share}"), priced("cp=16 nvs.cp=8")
    assert one["cp_comm_s"] == pytest.approx(other["cp_comm_s"], rel=1e-9)
