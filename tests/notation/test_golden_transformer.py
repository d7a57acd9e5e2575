"""Tables I and II of arXiv 2410.00273: the collectives of a transformer layer, forward and derived backward.

Numbers are those of the formulas, written out: b samples of l tokens, hidden size e, h heads, feed-forward
size f, n1 = tp, n2 = cp (tp2 under summa), W bytes per element.
"""

from collections import Counter

import pytest
from notation.definitions import AG, AR, BACKWARD, FORWARD, RS, STANDARD, collectives, derived, number, volumes, weights
from notation.design import MLP_BLOCK, STRATEGIES, SUMMA, TRANSFORMER, TWO_D

from dsx.notation.library import load_layer
from dsx.notation.work import derive

B, L, E, H, K, F, W = 2, 4096, 1024, 16, 64, 4096, 2
N1, N2, PANELS = 4, 2, 8
SIZES = {"b": B, "s": L, "e": E, "h": H, "g": H, "k": K, "f": F}

TOKENS = W * B * (L // N2) * E  # activations of one cp rank, gathered over tp
HEADS = W * B * L * E // N1  # K or V of all positions, heads of one tp rank


def packaged(strategy):
    return derive(load_layer("transformer", strategy, STANDARD))


def test_1d_and_2d():
    layer, sizes = packaged("2d"), SIZES | {"tp": N1, "cp": N2}
    assert volumes(layer, FORWARD, **sizes) == sorted(
        [(AG, "tp", TOKENS)] * 2 + [(RS, "tp", TOKENS)] * 2 + [(AG, "cp", HEADS)] * 2
    )
    # What was gathered is regathered, the gradients of the two results are gathered, those of the four
    # gathered ones scattered: over tp six all-gathers and four reduce-scatters in all.
    assert volumes(layer, BACKWARD, **sizes) == sorted(
        [(AG, "tp", TOKENS)] * 4 + [(RS, "tp", TOKENS)] * 2 + [(AG, "cp", HEADS)] * 2 + [(RS, "cp", HEADS)] * 2
    )
    # 1d.
    layer, sizes = packaged("1d"), SIZES | {"tp": N1}
    tokens = W * B * L * E
    assert volumes(layer, FORWARD, **sizes) == [(AG, "tp", tokens)] * 2 + [(RS, "tp", tokens)] * 2
    assert volumes(layer, BACKWARD, **sizes) == [(AG, "tp", tokens)] * 4 + [(RS, "tp", tokens)] * 2
    # Grouped keys and values are smaller.
    layer = packaged("2d")
    sizes = SIZES | {"g": 4, "tp": N1, "cp": N2}
    heads = W * B * L * (4 * K) // N1
    assert [v for kind, axis, v in volumes(layer, FORWARD, **sizes) if axis == "cp"] == [heads, heads]


FORWARD_2D = Counter(
    {
        (AG, "tp", "n1"): 1,
        (AG, "tp", "n2"): 1,
        (AG, "cp", "kk"): 1,
        (AG, "cp", "vv"): 1,
        (RS, "tp", "y"): 1,
        (RS, "tp", "d"): 1,
    }
)
BACKWARD_2D = Counter(
    {(AG, "tp", name): 1 for name in ("n1", "n2", "d y", "d d")}
    | {(AG, "cp", name): 1 for name in ("kk", "vv")}
    | {(RS, "tp", name): 1 for name in ("d n1", "d n2")}
    | {(RS, "cp", name): 1 for name in ("d kk", "d vv")}
)


def test_the_layer_printed_in_the_design_gives_the_collectives_stated_under_it():
    layer = derived(TRANSFORMER)
    assert collectives(layer, FORWARD) == FORWARD_2D
    assert collectives(layer, BACKWARD) == BACKWARD_2D
    sizes = SIZES | {"tp": N1, "cp": N2}
    assert {v for kind, axis, v in volumes(layer, FORWARD, **sizes) if axis == "tp"} == {TOKENS}
    assert {v for kind, axis, v in volumes(layer, BACKWARD, **sizes) if axis == "cp"} == {HEADS}
    # Its weights are reduced over what divides the tokens.
    assert weights(derived(TRANSFORMER), **sizes) == {
        "g1": (W * E, ("tp", "cp"), True),
        "wqkv": (W * E * 3 * E // N1, ("cp",), True),
        "wo": (W * E * E // N1, ("cp",), True),
        "g2": (W * E, ("tp", "cp"), True),
        "w1": (W * E * F // N1, ("cp",), True),
        "w2": (W * E * F // N1, ("cp",), True),
    }


def test_the_block_printed_in_the_design():
    two_d = derived(MLP_BLOCK, strategy=TWO_D)
    assert collectives(two_d, FORWARD) == {(AG, "tp", "n"): 1, (RS, "tp", "d"): 1}
    summa = derived(MLP_BLOCK.replace("$wf]      =", "$wf @*] ="), strategy=f"{SUMMA}\nrequire panels >= 1 why")
    sizes = {"b": B, "s": L, "e": E, "f": F, "tp": N1, "tp2": N2, "panels": PANELS}
    rows = B * L // N2
    assert volumes(summa, FORWARD, **sizes) == sorted(
        [
            (AR, "tp", W * rows),  # the norm's row statistics
            ("broadcast", "tp", W * rows * E),
            ("broadcast", "tp2", W * E * F // N1),
            ("broadcast", "tp", W * rows * F),
            ("broadcast", "tp2", W * F * E // N1),
        ]
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_panels_in_the_strategy_panels_are_plain_gathers(strategy):
    layer = derived(MLP_BLOCK.replace("$wf]      =", "$wf @*] ="), strategy=strategy)
    kinds = {kind for direction in (FORWARD, BACKWARD) for kind, _, _ in collectives(layer, direction)}
    assert kinds <= {AG, RS, AR}
    assert not layer.panelled


def multiplies():
    """The four multiplies of a layer: global contracted and result dimension (FORMULAS 2.2)."""
    attention = {"self-attention.qkv": (E, 3 * E), "self-attention.output": (E, E)}
    return attention | {"feed-forward.z": (E, F), "feed-forward.output": (F, E)}


@pytest.mark.parametrize("name", multiplies())
def test_summa_broadcasts_and_reduces_in_panels(name):
    layer = packaged("summa")
    sizes = SIZES | {"tp": N1, "tp2": N2, "panels": PANELS}
    inner, columns = multiplies()[name]
    x, w = W * B * (L // N2) * inner, W * inner * columns // N1
    (kernel,) = [kernel for kernel in layer.kernels if kernel.name == name]

    def sent(direction):
        panelled = [m for m in kernel.collectives[direction] if m.panelled]
        assert len(panelled) == len(kernel.collectives[direction])
        return sorted((m.kind, m.axis, number(layer, m.bytes, **sizes)) for m in panelled)

    assert sent(FORWARD) == [("broadcast", "tp", x), ("broadcast", "tp2", w)]
    assert sent(BACKWARD) == [
        ("broadcast", "tp", x),
        ("broadcast", "tp2", w),
        ("reduce", "tp", x),
        ("reduce", "tp2", w),
    ]


def test_the_rest_of_summa():
    """Row statistics of both norms over tp both ways (C7); K and V over tp2, gradients scattered."""
    layer = packaged("summa")
    sizes = SIZES | {"tp": N1, "tp2": N2, "panels": PANELS}

    def rest(direction):
        found = [m for m in layer.collectives(direction) if not m.panelled]
        return sorted((m.kind, m.axis, number(layer, m.bytes, **sizes)) for m in found)

    statistics = (AR, "tp", W * 1 * B * (L // N2))
    assert rest(FORWARD) == sorted([(AG, "tp2", HEADS)] * 2 + [statistics] * 2)
    assert rest(BACKWARD) == sorted([(AG, "tp2", HEADS)] * 2 + [(RS, "tp2", HEADS)] * 2 + [statistics] * 2)


@pytest.mark.parametrize("strategy", ["1d", "2d", "summa"])
def test_the_boundary_is_the_divided_residual_stream(strategy):
    layer = packaged(strategy)
    degrees = {"tp": N1, "cp": N2, "tp2": N2, "panels": PANELS}
    divided = N1 if strategy == "1d" else N1 * N2
    assert number(layer, layer.boundary_bytes, **SIZES, **degrees) == W * B * L * E // divided
