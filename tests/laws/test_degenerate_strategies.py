"""Strategies that differ in an axis of one rank are one: they take the same seconds and hold the same bytes."""

import pytest

import dsx

MODELS = {
    "llama-3-8b": ["model.layers.1.count=2", "model.dimensions.v=32000"],
    "mixtral-8x7b": ["model.layers.1.count=2"],
    "mamba2-2.7b": ["model.layers.1.count=2"],
}
# Degrees, and the strategies that they make one.
ALIKE = [
    ("dp=8", ["1d", "2d", "2d-ring", "ulysses", "1d-no-sp", "2d-no-sp", "2d-expert-tp"]),
    ("tp=2 dp=4", ["1d", "2d", "2d-ring", "ulysses"]),
    ("tp=2 dp=4", ["1d-no-sp", "2d-no-sp"]),
    ("cp=2 dp=4", ["2d", "2d-no-sp"]),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("degrees", "strategies"), ALIKE)
def test_an_axis_of_one_rank_tells_no_strategies_apart(degrees, strategies, model, recompute):
    job = dsx.Job(model, "h100-nvs8", 8, 8, 2048, set=MODELS[model])
    first, *others = (
        dsx.evaluate(job, f"{degrees} recompute={recompute}", strategy=strategy).costs for strategy in strategies
    )
    for other in others:
        assert other == pytest.approx(first, rel=1e-12, nan_ok=True)
