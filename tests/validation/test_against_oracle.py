"""dsx against the independent oracle where the reference has no numbers: all candidates, and every price."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.formulas import price, system_from_inputs
from oracles.space import enumerate_candidates
from validation.cases import CONFIG, INPUTS, STRATEGIES, configs_of, priced_space, problem_for

REL = 1e-12

MODELS = {
    "narrow": {"l": 4096, "e": 1024, "h": 16, "f": 4096, "depth": 24},  # its multiplies are bound by memory
    "odd-length": {"l": 3001, "e": 3072, "h": 24, "f": 12288, "depth": 30},  # no degree divides the sequence
    "thirds": {"l": 6144, "e": 6912, "h": 54, "f": 20736, "depth": 36},  # degrees with factors 3 and 9
    "wide": {"l": 2048, "e": 18432, "h": 144, "f": 73728, "depth": 96},
}
# Model, GPU, size of the fast domain, GPUs, batch; neither size of domain divides all of its GPU counts.
CASES = [
    ("narrow", "A100", 4, 128, 256), ("narrow", "B200", 72, 384, 384), ("odd-length", "H200", 8, 96, 96),
    ("odd-length", "B200-next", 72, 144, 72), ("thirds", "B200", 72, 1152, 288), ("thirds", "H200", 6, 324, 162),
    ("wide", "B200", 8, 384, 1536), ("wide", "B200-next", 72, 1152, 1536),
]  # fmt: skip
_PRICED = 2000  # candidates of a case that the oracle prices


def compare(model, system, strategy, num_gpus, batch, most=_PRICED):
    """All candidates are the oracle's, and `most` of them, evenly chosen, have its step time, memory and verdict."""
    expected = enumerate_candidates(model, system["fast_size"], strategy, num_gpus, batch)
    rows = priced_space(problem_for(model, system, strategy), [num_gpus], [batch])
    found = configs_of(strategy, rows)
    assert sorted(found) == sorted(tuple(config[name] for name in CONFIG) for config in expected)

    chosen = np.linspace(0, len(found) - 1, min(most, len(found))).astype(int)
    prices = [
        price(model, system, strategy, dict(zip(CONFIG, found[row], strict=True)), batch) for row in chosen.tolist()
    ]
    np.testing.assert_allclose(rows["step_time_s"][chosen], [one["step_time"] for one in prices], rtol=REL)
    np.testing.assert_allclose(rows["peak_bytes"][chosen], [one["memory"]["total"] for one in prices], rtol=REL)
    fits = rows["peak_bytes"] <= system["hbm_capacity"]
    np.testing.assert_array_equal(fits[chosen], [one["fits"] for one in prices])
    return rows


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_other_models_and_systems(case, strategy):
    name, gpu, fast_size, num_gpus, batch = case
    system = system_from_inputs(INPUTS["systems"][gpu], fast_size)
    compare(MODELS[name], system, strategy, num_gpus, batch)


models = st.builds(
    lambda h, q, widths, length, depth: {"l": length, "e": h * q, "h": h, "f": widths * h * q, "depth": depth},
    h=st.sampled_from([6, 8, 10, 12, 16, 18, 24]),
    q=st.sampled_from([43, 64, 80, 128, 192]),
    widths=st.integers(1, 5),
    length=st.integers(256, 5000),
    depth=st.sampled_from([1, 6, 12, 20, 36]),
)
systems = st.builds(
    lambda fast, slow, **others: others | {"fast_bandwidth": fast * slow, "slow_bandwidth": slow},
    fast=st.floats(0.5, 20),
    slow=st.floats(1e9, 4e11),
    matrix_flops=st.floats(1e13, 1e16),
    vector_flops=st.floats(1e12, 1e15),
    hbm_bandwidth=st.floats(1e10, 1e13),
    hbm_capacity=st.floats(1e9, 1e12),
    fast_latency=st.floats(0, 1e-4),
    slow_latency=st.floats(0, 1e-4),
    fast_size=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 72]),
)


@settings(max_examples=20)
@given(
    model=models,
    system=systems,
    strategy=st.sampled_from(STRATEGIES),
    num_gpus=st.sampled_from([1, 6, 8, 12, 16, 18, 24, 36, 48, 96]),
    batch=st.sampled_from([1, 6, 16, 24, 60, 96]),
)
def test_any_model_on_any_system(model, system, strategy, num_gpus, batch):
    compare(model, system, strategy, num_gpus, batch, most=100)
