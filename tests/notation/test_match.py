"""The matching table row by row: which collective, over which axis, in which order, of which volume."""

import pytest
from notation.definitions import read

from dsx.notation.expressions import evaluate
from dsx.notation.sharded_layer import Distribution, Unmatchable, match

AG, RS, AR, A2A = "all-gather", "reduce-scatter", "all-reduce", "all-to-all"
SIZES = {"b": 2, "s": 96, "e": 40, "tp": 4, "tp2": 5, "cp": 2, "ep": 3, "dp": 7}
B, S, E, TP, CP = 2, 96, 40, 4, 2


def distribution(text):
    tensor = read(f"layer a\ny{text} = f(x)").body[0].outputs[0]
    return Distribution(tensor.dims, tensor.partial)


def matched(have, want):
    return [(m.kind, m.axis, evaluate(m.elements, SIZES)) for m in match(distribution(have), distribution(want))]


@pytest.mark.parametrize(
    ("have", "want", "transfers"),
    [
        # replicated
        ("[b, s, e]", "[b, s, e]", []),
        ("[b, s, e]", "[b, s/tp, e]", []),
        ("[b, s, e]", "[b, s/cp/tp, e]", []),
        # divided
        ("[b, s/tp, e]", "[b, s, e]", [(AG, "tp", B * S * E)]),
        ("[b, s/tp, e]", "[b, s/tp, e]", []),
        ("[b, s/tp, e]", "[b, s, e/tp]", [(A2A, "tp", B * (S // TP) * E)]),
        # partial
        ("[b, s, e @tp]", "[b, s, e]", [(AR, "tp", B * S * E)]),
        ("[b, s, e @tp]", "[b, s/tp, e]", [(RS, "tp", B * S * E)]),
        ("[b, s, e @tp]", "[b, s, e @tp]", []),
        # another axis stays where it is
        ("[b, s/cp, e]", "[b, s/cp, e/tp]", []),
        ("[b, s/cp, e/tp]", "[b, s/cp, e]", [(AG, "tp", B * (S // CP) * E)]),
        ("[b, s/cp, e @tp]", "[b, s/cp/tp, e]", [(RS, "tp", B * (S // CP) * E)]),
        ("[b, s/cp/tp, e]", "[b, s/cp, e/tp]", [(A2A, "tp", B * (S // CP // TP) * E)]),
        ("[b, s/cp, e/tp]", "[b, s/cp/tp, e]", [(A2A, "tp", B * (S // CP) * (E // TP))]),
        ("[b, s, e @tp @cp]", "[b, s, e @cp]", [(AR, "tp", B * S * E)]),
        ("[b, s, e @tp @cp]", "[b, s/tp, e @cp]", [(RS, "tp", B * S * E)]),
    ],
)
def test_table(have, want, transfers):
    assert matched(have, want) == transfers


@pytest.mark.parametrize(
    ("have", "want", "transfers"),
    [
        # gathers: innermost axis first, each of what it makes
        ("[b, s/cp/tp, e]", "[b, s, e]", [(AG, "tp", B * S // CP * E), (AG, "cp", B * S * E)]),
        ("[b, s/tp/cp, e]", "[b, s, e]", [(AG, "cp", B * S // TP * E), (AG, "tp", B * S * E)]),
        # scatters: outermost first, each of what it takes
        ("[b, s, e @tp @cp]", "[b, s/cp/tp, e]", [(RS, "cp", B * S * E), (RS, "tp", B * S // CP * E)]),
        ("[b, s, e @tp @cp]", "[b, s/tp/cp, e]", [(RS, "tp", B * S * E), (RS, "cp", B * S // TP * E)]),
        # what shrinks the tensor comes before what makes it grow
        ("[b, s/cp, e @tp]", "[b, s, e/tp]", [(RS, "tp", B * S // CP * E), (AG, "cp", B * S * E // TP)]),
        ("[b, s/cp, e @tp]", "[b, s, e]", [(AR, "tp", B * S // CP * E), (AG, "cp", B * S * E)]),
        # a slice costs nothing and comes first, whichever dimension it is on
        ("[b, s, e @tp]", "[b, s/cp, e/tp]", [(RS, "tp", B * S // CP * E)]),
        ("[b, s, e @tp]", "[b, s/tp, e/cp]", [(RS, "tp", B * S * E // CP)]),
        ("[b, s/tp, e]", "[b, s/cp, e/tp]", [(A2A, "tp", B * S // TP * E)]),
        # a scatter shrinks what is exchanged afterwards, whichever dimension it is on
        ("[b, s/tp, e @cp]", "[b, s/cp, e/tp]", [(A2A, "tp", B * S // TP * E), (RS, "cp", B * S * E // TP)]),
        ("[b, s/ep, e @tp]", "[b/ep, s, e/tp]", [(RS, "tp", B * S // 3 * E), (A2A, "ep", B * S // 3 * E // TP)]),
        # a dimension is cleared before it is divided anew
        ("[b, s/cp, e @tp]", "[b, s/tp, e]", [(AG, "cp", B * S * E), (RS, "tp", B * S * E)]),
        # what is not innermost has to be uncovered first
        ("[b, s/cp/tp, e]", "[b, s, e/cp]", [(AG, "tp", B * S // CP * E), (A2A, "cp", B * S // CP * E)]),
    ],
)
def test_order_and_volumes(have, want, transfers):
    assert matched(have, want) == transfers


@pytest.mark.parametrize(
    ("have", "want", "words"),
    [
        ("[b, s, e]", "[b, s, e @tp]", "partial sum over tp"),
        ("[b, s/tp, e]", "[b, s, e @tp]", "partial sum over tp"),
        ("[b, s, e @tp]", "[b, s, e @tp @cp]", "partial sum over cp"),
        ("[b, s/cp/tp, e]", "[b, s/tp/cp, e]", "order their ranks differently"),
        ("[b, s/cp/tp, e]", "[b, s/tp, e]", "order their ranks differently"),
        ("[b, s/tp, e]", "[b, s/cp/tp, e]", "order their ranks differently"),
        ("[b, s/tp, e @cp]", "[b, s/cp/tp, e]", "order their ranks differently"),
        ("[b, s, e]", "[b, e, s]", "different dimensions"),
        ("[b, s, e]", "[b, s]", "different dimensions"),
    ],
)
def test_what_no_collective_does(have, want, words):
    with pytest.raises(Unmatchable, match=words):
        matched(have, want)


def test_a_local_size_is_one_floor_of_all_axes():
    (transfer,) = match(distribution("[b, s/cp/tp @dp]"), distribution("[b, s/cp/tp]"))
    assert evaluate(transfer.elements, {"b": 3, "s": 29, "cp": 2, "tp": 4}) == 3 * (29 // 8)
    assert evaluate(transfer.elements, {"b": 3, "s": 31, "cp": 2, "tp": 4}) == 9
