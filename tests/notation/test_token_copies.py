"""Which tensors have several copies of each token, by the definition of a layer and its operator table."""

import pytest
from notation.definitions import BACKWARD, FORWARD, packaged

MIXTURE = "transformer rotary ffn=experts"


def copies(layer):
    """Return the copies of each all-to-all over ep; no other collective has any."""
    moved = [*layer.collectives(FORWARD), *layer.collectives(BACKWARD)]
    assert all(one.copies is None for one in moved if one.kind != "all-to-all" or one.axis != "ep")
    return [one.copies.stated for one in moved if one.kind == "all-to-all" and one.axis == "ep"]


def shown(stated):
    return [tuple(expr.name for expr in one) for one in stated]


@pytest.mark.parametrize("strategy", ["1d", "2d", "summa", "2d-expert-tp"])
def test_dispatch_and_combine_move_a_copy_for_each_choice(strategy):
    assert shown(copies(packaged(MIXTURE, strategy))) == [("topk",)] * 4


def test_copies_of_limited_and_biased_experts_and_none_of_heads():
    limited = packaged(f"{MIXTURE} limited", "1d")
    assert shown(copies(limited)) == [("topk", "ng", "tg")] * 4
    assert {"ng", "tg"} <= limited.letters
    assert not {"ng", "tg"} & packaged(MIXTURE, "1d").letters
    # Biased experts too.
    assert len(copies(packaged(f"{MIXTURE} expert_bias", "1d"))) == 4
    # An exchange of attention heads has no copies.
    layer = packaged("transformer rotary", "ulysses")
    moved = [one for one in layer.collectives(FORWARD) if one.kind == "all-to-all"]
    assert moved and all(one.copies is None for one in moved)
