"""Laws of many drawn plans, of which dsx says each time what is odd about them."""

import logging

import pytest


@pytest.fixture
def quiet():
    """Only errors are told."""
    log = logging.getLogger("dsx")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
