"""What is found for a small job, and a result set; none of them is to be changed."""

import pytest
from verbs.small import MODEL, SWEEP

import dsx


@pytest.fixture(scope="session")
def job():
    return dsx.Job(MODEL, "b200-nvs8", num_gpus=8, global_batch_size=32, assumptions="paper-2410.00273")


@pytest.fixture(scope="session")
def found(job):
    return dsx.best(job, top=20)


@pytest.fixture(scope="session")
def evaluated(job):
    return dsx.evaluate(job, tp=2, dp=4, tp_nvs=2, dp_nvs=4)


@pytest.fixture(scope="session")
def nothing(job):
    """The answer for a job that no plan fits."""
    return dsx.best(job.replace(set={"cluster.device.hbm_capacity": "1 kB"}))


@pytest.fixture(scope="session")
def swept():
    return dsx.sweep(SWEEP)


@pytest.fixture(scope="session")
def result_set(tmp_path_factory):
    """The folder of that sweep."""
    return dsx.sweep(SWEEP, tmp_path_factory.mktemp("swept") / "set").folder
