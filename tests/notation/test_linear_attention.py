"""A gated delta net: work, collectives and kept tensors, reasoned out by hand; its chunked form in numbers."""

import numpy as np
import pytest
from notation.definitions import A2A, AG, AR, BACKWARD, FORWARD, RS, kernel, number, packaged, saved, volumes, weights

W, B, S, E = 2, 2, 512, 256
LG, LH, LK, LV, CONV, C = 8, 16, 32, 48, 4, 64
SIZES = {
    "b": B, "s": S, "e": E, "h": 16, "g": 8, "k": 16, "f": 1024, "v": 4096, "lg": LG, "lh": LH, "lk": LK, "lv": LV,
    "conv": CONV, "chunk": C,
}  # fmt: skip
TP, CP = 4, 2
LINEAR = "transformer gated attention=gated-delta-net"
NAME = "gated-delta-net"


def test_the_multiplies_of_a_chunk():
    """Of n elements each: n products and n - 1 sums. A triangle of n by n is inverted by n^3 / 3 FLOPs."""
    layer = packaged(LINEAR, "2d")
    chunks, heads = B * S // C, LH // LG
    squares = C * C * (2 * LK - 1)  # keys by keys, and queries by keys: once for a key head
    of_key_head = 2 * squares
    of_value_head = (
        C**3 / 3
        + C * (LK + LV + LV) * (2 * C - 1)  # corrected keys and values, and what queries read inside the chunk
        + LK * LV * (2 * C - 1)  # the state that a chunk adds
        + 2 * C * LV * (2 * LK - 1)  # what keys and queries read of the state before
    )
    kernels = [kernel(layer, f"{NAME}.{name}") for name in ("corrections", "delta")]
    found = sum(number(layer, one.work[FORWARD].matrix, **SIZES) for one in kernels)
    assert found == pytest.approx(chunks * LG * (of_key_head + heads * of_value_head), rel=1e-9)


def test_work_grows_with_the_sequence_and_not_with_its_square():
    layer = packaged(LINEAR, "2d")
    core = kernel(layer, f"{NAME}.delta")
    for amount in (core.work[FORWARD].matrix, core.work[FORWARD].bytes, core.work[BACKWARD].matrix):
        assert number(layer, amount, **SIZES | {"s": 8 * S}) == 8 * number(layer, amount, **SIZES)
    # As in flash-linear-attention: q, k, v, decay, strength and the inverse; states are made again in the backward.
    kept = saved(packaged(LINEAR, "1d"), **SIZES)
    assert kept[f"{NAME}.t"] == W * B * S * LH * C
    states = W * B * S // C * LH * LK * LV
    assert states not in kept.values()
    core = kernel(packaged(LINEAR, "1d"), f"{NAME}.delta")
    crossing = W * B * S * (2 * LG * LK + 2 * LH * LV + 2 * LH + LH * C)
    assert number(packaged(LINEAR, "1d"), core.work[FORWARD].bytes, **SIZES) == crossing + 2 * states
    # Tensor parallelism is that of attention.
    layer, sizes = packaged(LINEAR, "1d"), SIZES | {"tp": TP}
    tokens = W * B * S * E
    assert volumes(layer, FORWARD, **sizes) == sorted([(AG, "tp", tokens), (RS, "tp", tokens)] * 2)
    assert not [one for one in volumes(packaged(LINEAR, "2d"), FORWARD, **sizes) if one[0] == AR]
    width = 2 * (LG * LK + LH * LV + LH)
    assert weights(layer, **sizes)[f"{NAME}.win"] == (W * E * width // TP, (), True)


@pytest.mark.parametrize("strategy", ["2d", "2d-ring", "ulysses"])
def test_context_parallelism_changes_positions_to_heads_and_back(strategy):
    layer, sizes = packaged(LINEAR, strategy), SIZES | {"tp": TP, "cp": CP}
    a_head = W * B * (S // CP) // TP
    moved = [a_head * LG * LK] * 2 + [a_head * LH * LV] * 2 + [a_head * LH] * 2  # q, k; v, result; decay, strength
    expected = sorted((A2A, "cp", size) for size in moved)
    assert [one for one in volumes(layer, FORWARD, **sizes) if one[1] == "cp"] == expected
    assert [one for one in volumes(layer, BACKWARD, **sizes) if one[1] == "cp"] == expected


def test_the_chunked_form_is_the_recurrence():
    """The steps of the definition, with the state before each chunk, against S <- a (S - b k k'S) + b k v'."""
    random = np.random.default_rng(5)
    chunk, keys, values = 8, 6, 5
    length = 4 * chunk
    q, k = (random.normal(size=(length, keys)) for _ in range(2))
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    v, strength = random.normal(size=(length, values)), random.uniform(size=length)
    decay = np.log(random.uniform(0.5, 1, size=length))
    state, expected = np.zeros((keys, values)), []
    for i in range(length):
        state = np.exp(decay[i]) * state
        state = state + strength[i] * np.outer(k[i], v[i] - k[i] @ state)
        expected.append(q[i] @ state)
    state, found = np.zeros((keys, values)), []
    for first in range(0, length, chunk):
        part = slice(first, first + chunk)
        total = np.cumsum(decay[part])
        between = np.exp(total[:, None] - total[None])
        corrections = np.tril(between * (k[part] @ k[part].T) * strength[part][:, None], -1)
        inverse = np.linalg.inv(np.eye(chunk) + corrections)
        w = inverse @ (k[part] * (strength[part] * np.exp(total))[:, None])
        new = inverse @ (v[part] * strength[part][:, None]) - w @ state
        found.append((q[part] * np.exp(total)[:, None]) @ state + np.tril(between * (q[part] @ k[part].T)) @ new)
        state = np.exp(total[-1]) * state + (k[part] * np.exp(total[-1] - total)[:, None]).T @ new
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-9)
