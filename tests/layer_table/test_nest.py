"""The instances of the artifact of another search: the benchmark prices plans as the search does."""

import pytest


@pytest.fixture
def nest(benchmark_script):
    return benchmark_script("nest")


@pytest.mark.slow
@pytest.mark.parametrize("as_artifact", [True, False])
def test_neither_a_network_agnostic_plan_nor_an_even_cut_is_better(nest, as_artifact):
    """`run` itself checks that the price of the best plan equals its step time in the search."""
    file = nest.DATA / "mixtral_tpuv4_mbs1_ep4_cp1.json"
    row = nest.run(file, "tpuv4_fatTree", True, as_artifact, 256)
    assert row.plan.startswith("16 stages x 4 replicas")
    assert row.loss("agnostic") == pytest.approx(0.0, abs=1e-9)
    assert 0 <= row.loss("even") < 0.01


def test_claims_that_dsx_runs_name_instances(nest):
    names = [file.stem for file in nest.DATA.glob("*_mbs*.json")]
    for claim in nest.CLAIMS:
        assert bool(claim.instances) != bool(claim.reason)
        assert not claim.instances or any(claim.instances in name for name in names)
