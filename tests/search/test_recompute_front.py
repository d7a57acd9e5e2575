"""Values of `recompute` that others dominate are not needed, and the bounds of a search know the others."""

from dataclasses import replace

import numpy as np
import pytest
from laws.spaces import problem_with

from dsx.cost.layer import BY_MODE
from dsx.plans.choices import VALUES
from dsx.search.bounds import best_cuts
from dsx.search.spaces import PricedSpace, Space, of_values, undominated
from dsx.search.sweep import search_of

SIZES = {
    "e": 1024, "h": 8, "rq": 256, "rkv": 128, "nope": 64, "rope": 32, "kv": 64, "f": 4096, "fx": 512, "fs": 512,
    "x": 8, "topk": 2, "v": 50000, "capacity_percent": 100,
}  # fmt: skip
LATENT = {"kind": "transformer", "attention": "latent-attention"}
BODY = [{**LATENT, "options": ["gated"], "count": 2}, {**LATENT, "options": ["shared"], "ffn": "experts", "count": 4}]
LAYERS = [{"kind": "embedding"}, *BODY, {"kind": "head"}]
FEW = {
    "zero_stage": [1], "zero_replicas": [1], "vpp": [1], "schedule": ["1f1b"], "ep": [1, 2], "stored_layers": [0, 2],
    "offload": ["none"],
}  # fmt: skip


def source_of(partition="even", capacity=80e9, opened=FEW):
    made = problem_with(LAYERS, SIZES, ["1d"], options={"partition": partition}, hbm_capacity=capacity)
    problem = made.searching(opened)
    space = Space(problem, [8], [16], opened)
    return PricedSpace(problem, space, space.table(problem), "float64")


def scaled(layer, value, factor):
    """The costs of a kind that takes and keeps `factor` times as much under a value; and the row of the value."""
    row = layer.modes.index(next(codes for codes in layer.modes if VALUES.index(value) in codes))
    of_modes = np.where(np.arange(len(layer.modes)) == row, factor, 1.0)[:, None]
    without = tuple(replace(passes, recompute_s=of_modes * passes.recompute_s) for passes in layer.without)
    return replace(layer, without=without, **{name: of_modes * getattr(layer, name) for name in BY_MODE}), row


def with_dominated(source, value):
    """The costs of all kinds, where layers with experts take and keep twice as much under a value."""
    *first, layer, head = source.table
    changed, row = scaled(layer, value, 2.0)
    return (*first, changed, head), changed.stash_bytes[0, row]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.7, 1.0])
def test_the_fastest_plan_has_no_dominated_value(share):
    whole = source_of()
    least = search_of(whole.problem, whole.space, whole.table).best(1)[0]
    source = source_of(capacity=float(share * least["peak_bytes"][0]))
    table, _ = with_dominated(source, "shared-experts")
    values = undominated(source.problem, table)
    problem = source.problem.searching({"recompute": [VALUES[code] for code in values]})
    space, reduced = source.space.searching(problem), of_values(table, values)
    assert space.size < source.space.size
    assert len(reduced[2].modes) < len(table[2].modes)
    expected, found = (
        search_of(*searched).best(1)[0]["step_time_s"]
        for searched in ((source.problem, source.space, table), (problem, space, reduced))
    )
    assert len(found) == 1
    assert found.tolist() == expected.tolist()


def test_what_dominates_with_and_without_effects():
    source = source_of()
    norms = VALUES.index("norms")
    assert norms in undominated(source.problem, source.table)
    table, kept_bytes = with_dominated(source, "norms")
    assert norms not in undominated(source.problem, table)
    kept_bytes[-1] = 0.0  # one key at which it keeps less is enough
    assert norms in undominated(source.problem, table)
    # Few values have their passes without effects.
    source = source_of()
    values = [VALUES.index(name) for name in ("norms", "experts", "full")]
    for every, few in zip(source.table, of_values(source.table, values), strict=True):
        rows = [row for row, codes in enumerate(every.modes) if codes in few.modes]
        assert len(few.without) == len(every.without) > 0
        for passes, found in zip(every.without, few.without, strict=True):
            assert found.recompute_s.tolist() == passes.recompute_s[:, rows].tolist()
    # A value that loses an effect dominates none that has it.
    source = source_of()
    embedding, *layers, head = source.table
    free = [scaled(layer, "experts", 0.0)[0] for layer in layers]
    kept = undominated(source.problem, (embedding, *free, head))
    assert VALUES.index("latent-up-projection") in kept  # a step that recomputes experts has no CUDA graphs
    assert VALUES.index("feed-forward") not in kept


@pytest.mark.sampled(3)
@pytest.mark.parametrize("share", [0.4, 0.7, 1.0])
def test_bounds_of_all_recomputations_find_the_best_of_all(share):
    whole = source_of("optimal")
    least = search_of(whole.problem, whole.space, whole.table).best(1)[0]
    source = source_of("optimal", float(share * least["peak_bytes"][0]))
    expected, counts = search_of(source.problem, source.space, source.table).best(5)
    found, bounds = best_cuts(source, 5)
    np.testing.assert_allclose(found["step_time_s"], expected["step_time_s"], rtol=1e-12)
    assert not found["reject"].any()
    assert bounds.candidates == counts.candidates
