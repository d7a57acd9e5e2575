"""A report of a small sweep whose names are markup."""

import pytest
from pictures.html.pages import parsed
from verbs.small import MODEL, SWEEP

import dsx

NAME = "</script><script>alert(1)</script><b>&amp;"


@pytest.fixture(scope="session")
def result_set(tmp_path_factory):
    """The folder of the sweep; not to be changed."""
    model = MODEL | {"name": NAME, "source": "<img src=x onerror=alert(2)>"}
    sweep = SWEEP | {"model": model, "strategy": "1d", "limit": {"tp": "<=4"}}
    return dsx.sweep(sweep, tmp_path_factory.mktemp("reported") / "set").folder


@pytest.fixture(scope="session")
def report(result_set):
    return dsx.report(result_set)


@pytest.fixture(scope="session")
def page(report):
    return parsed(report.html)
