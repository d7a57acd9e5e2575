"""Which values of `recompute` a layer tells apart, and which are of use."""

from notation.definitions import packaged

from dsx.cost.recomputation import modes_of, values_with_effect
from dsx.plans.choices import FULL_CODE, VALUES

DENSE, EXPERTS = "transformer gated", "transformer ffn=experts"
UNFUSED = "transformer core=unfused-attention-core"


def names(codes):
    return [VALUES[code] for code in codes]


def test_regions_that_a_layer_lacks_make_no_mode():
    groups = modes_of([packaged(DENSE, "1d")], range(len(VALUES)))
    assert [VALUES[group[0]] for group in groups] == ["none", "full", "norms", "feed-forward", "norms+feed-forward"]
    assert sorted(code for group in groups for code in group) == [*range(len(VALUES))]


def test_strategies_that_differ_in_their_regions_tell_more_values_apart():
    layers = [packaged(text, "1d") for text in (DENSE, UNFUSED)]
    both, plain = (modes_of(some, [0, 1, 2]) for some in (layers, layers[:1]))
    assert both == ((0,), (1,), (2,))
    assert plain == ((0, 1), (2,))


def test_a_model_has_the_regions_of_all_its_layers():
    found = names(values_with_effect([packaged(DENSE, "1d"), packaged(EXPERTS, "1d")]))
    assert len(found) == 2 * 2 * 3 + 1
    assert {"none", "full", "norms+feed-forward+experts", "expert-activation+feed-forward"} <= {*found}
    assert "selective" not in found
    assert "selective" in names(values_with_effect([packaged(UNFUSED, "1d")]))


def test_what_frees_nothing_is_of_no_use():
    """Norms whose results are kept gathered, as their reader took them: to compute them again frees nothing."""
    kept_gathered = packaged("transformer-2410.00273", "1d")
    assert names(values_with_effect([kept_gathered])) == ["none", "full"]
    assert VALUES[FULL_CODE] == "full"
