"""The layer of arXiv 2410.00273: saved tensors, weights, collectives, work (FORMULAS 2.1-2.4, C2, C4-C7)."""

import pytest
from notation.definitions import AG, AR, BACKWARD, FORWARD, RS, collectives, number, saved, volumes, weights

from dsx.notation.library import load_definition, load_layer, load_operators
from dsx.notation.syntax import Settings
from dsx.notation.work import derive

B, L, E, H, F, W, MASK = 2, 4096, 1024, 16, 4096, 2, 1
N1, N2 = 4, 2
SIZES = {"b": B, "s": L, "e": E, "h": H, "g": H, "k": E // H, "f": F, "panels": 8}
DEGREES = {"1d": {"tp": N1}, "2d": {"tp": N1, "cp": N2}, "summa": {"tp": N1, "tp2": N2}}
TABLE = load_operators(["standard", "arxiv-2410.00273"])
ALL = pytest.mark.parametrize("strategy", DEGREES)


def paper(strategy):
    layer = load_layer("transformer-2410.00273", strategy, TABLE)
    return derive(layer, "stored", ["add"]), SIZES | DEGREES[strategy]


def rows_of(strategy):
    """b * lr: the rows of a multiply."""
    return B * L if strategy == "1d" else B * L // N2


@ALL
def test_saved_tensors(strategy):
    layer, sizes = paper(strategy)
    rows = rows_of(strategy)
    residual = rows * E // N1  # elements of x, r: over tp in rows (1d, 2d) or columns (summa, C2)
    # The input of a multiply is kept gathered under 1d and 2d, as it was produced under summa.
    gathered = residual if strategy == "summa" else rows * E
    heads, hidden = rows * E // N1, rows * F // N1
    statistics = W * (H // N1) * rows
    assert saved(layer, **sizes) == {
        "x": W * residual,  # first layernorm
        "n1": W * gathered,  # qkv
        # fused attention: q, k, v, result, softmax statistics, random state (the result once: C5)
        "q": W * heads,
        "kk": W * heads,
        "vv": W * heads,
        "o": W * heads,
        "p state 0": statistics,
        "p.2 state 0": statistics,
        "y.3 state 0": MASK * residual,  # vproj dropout
        "r": W * residual,  # second layernorm
        "n2": W * gathered,
        "z.2": W * hidden,
        "u.2 state 0": MASK * hidden,
        "u.2": W * hidden,
        "d.3 state 0": MASK * residual,
    }


@ALL
def test_weights(strategy):
    """2d: weights of the residual stream are whole on every rank; summa divides them by n1 (C2, C6)."""
    layer, sizes = paper(strategy)
    n2 = DEGREES[strategy].get("tp2", 1)
    vector = E // N1 if strategy == "summa" else E
    matrices = {"wqkv": 3 * E * E, "wo": E * E}
    matrices |= {"w1": E * F, "w2": F * E}
    vectors = ("gamma1", "beta1", "bo", "gamma2", "beta2", "b2")
    assert {name: size for name, (size, _, _) in weights(layer, **sizes).items()} == (
        {name: W * size // N1 // n2 for name, size in matrices.items()}
        | {name: W * vector for name in vectors}
        | {"b1": W * F // N1}
    )


def test_gradients_of_weights_are_partial_over_what_divides_the_tokens():
    def reduced(strategy, *names):
        layer, sizes = paper(strategy)
        return {weights(layer, **sizes)[name][1:] for name in names}

    matrices = ("wqkv", "wo", "w1", "w2", "b1")
    vectors = ("gamma1", "bo", "beta2", "b2")
    assert reduced("1d", *matrices) == {((), True)}
    assert reduced("1d", *vectors) == {(("tp",), True)}
    assert reduced("2d", *matrices) == {(("cp",), True)}
    assert reduced("2d", *vectors) == {(("tp", "cp"), True)}
    # Under summa a matrix is divided over tp2, so its gradient is reduced in the layer; the rest is not.
    assert reduced("summa", *matrices[:4]) == {((), True)}
    assert reduced("summa", matrices[4], *vectors) == {(("tp2",), True)}


@pytest.mark.parametrize("strategy", ["1d", "2d"])
def test_collectives(strategy):
    """Inputs are kept gathered here, so the backward regathers only K and V."""
    layer, sizes = paper(strategy)
    tokens, heads = W * rows_of(strategy) * E, W * B * L * E // N1
    cp = [(AG, "cp", heads)] * 2 if strategy == "2d" else []
    scattered = [(RS, "cp", heads)] * 2 if strategy == "2d" else []
    tp = [(AG, "tp", tokens)] * 2 + [(RS, "tp", tokens)] * 2
    assert volumes(layer, FORWARD, **sizes) == sorted(cp + tp)
    assert volumes(layer, BACKWARD, **sizes) == sorted(cp + scattered + tp)
    gathered = {tensor for kind, axis, tensor in collectives(layer, BACKWARD) if (kind, axis) == (AG, "tp")}
    assert gathered == {"d y", "d d"}


def test_summa_reduces_two_statistics_both_ways():
    """C7: w * 2 * b * (l // n2) over n1."""
    layer, sizes = paper("summa")
    for direction in (FORWARD, BACKWARD):
        assert [one for one in volumes(layer, direction, **sizes) if one[0] == AR] == [
            (AR, "tp", W * 2 * B * (L // N2))
        ] * 2


def work(strategy, name):
    layer, sizes = paper(strategy)
    (found,) = [kernel for kernel in layer.kernels if kernel.name == name]
    return [tuple(number(layer, value, **sizes) for value in (w.matrix, w.vector, w.bytes)) for w in found.work]


@pytest.mark.parametrize("strategy", ["1d", "2d"])
@pytest.mark.parametrize(
    ("name", "k", "n"), [("qkv", E, 3 * E // N1), ("y", E // N1, E), ("z", E, F // N1), ("d", F // N1, E)]
)
def test_work_of_multiplies(strategy, name, k, n):
    """FORMULAS 2.1."""
    r = rows_of(strategy)
    forward = (r * n * (2 * k - 1), 0, W * (r * k + r * n + k * n))
    backward = (r * k * (2 * n - 1) + k * n * (2 * r - 1), 0, W * (2 * k * n + 2 * r * k + 2 * r * n))
    assert work(strategy, name) == [forward, backward]


@pytest.mark.parametrize(("name", "k", "n"), [("qkv", E, 3 * E), ("y", E, E), ("z", E, F), ("d", F, E)])
def test_work_of_multiplies_in_panels(name, k, n):
    """FORMULAS 2.2: global k; the result is touched once per panel."""
    r, nl, panels = rows_of("summa"), n // N1, SIZES["panels"]
    forward = (2 * r * nl * k, 0, W * (r * k + k * nl + panels * r * nl))
    backward = (r * k * (2 * nl - 1) + k * nl * (2 * r - 1), 0, W * (2 * k * nl + 2 * panels * r * nl + 2 * r * k))
    assert work("summa", name) == [forward, backward]


@ALL
def test_work_of_vector_operators(strategy):
    """FORMULAS 2.4 with C2 and C6."""
    rows = rows_of(strategy)
    hidden, columns = rows * F // N1, F // N1
    r, c = (rows, E // N1) if strategy == "summa" else (rows // N1, E)
    s = r * c

    def bias(elements, width):
        return [(0, elements, W * (elements + width))] * 2

    def dropout(elements):
        return [(0, elements, 2 * W * elements + MASK * elements)] * 2

    norm = [(0, 9 * s, W * (2 * s + 2 * r + 2 * c)), (0, 8 * s + 4 * r * (c - 1), W * (5 * s + 2 * c))]
    assert work(strategy, "n1") == work(strategy, "n2") == norm
    assert work(strategy, "y.2") == work(strategy, "d.2") == bias(s, c)
    assert work(strategy, "y.3") == work(strategy, "d.3") == dropout(s)
    assert work(strategy, "z.2") == bias(hidden, columns)
    assert work(strategy, "u.2") == dropout(hidden)
    assert work(strategy, "u") == [(0, 8 * hidden, 2 * W * hidden), (0, 13 * hidden, 3 * W * hidden)]


@ALL
def test_options_of_models_change_nothing_and_operators_are_counted(strategy):
    definition = load_definition("transformer-2410.00273")
    stated = load_layer(definition.name, strategy, TABLE, chosen=Settings(frozenset(definition.options)))
    assert derive(stated).kernels == derive(load_layer(definition.name, strategy, TABLE)).kernels
    # The paper's; fused attention is one of them, views and residual additions are none.
    layer, _ = paper(strategy)
    assert sum(kernel.runs for kernel in layer.kernels) == 14
    for kernel in layer.kernels:
        if not kernel.runs:
            assert {*kernel.kinds} <= {"view", "add"}
            assert [(w.matrix, w.vector, w.bytes) for w in kernel.work] == [(0, 0, 0)] * 2
