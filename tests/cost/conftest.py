import jax
import pytest
import shapes


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def shapes_checked():
    """As annotations state them."""
    with shapes.checking():
        yield
