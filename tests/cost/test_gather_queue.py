"""What gathers behind scatters outlast, beside a list of the collectives that run with each pass of a chunk."""

import numpy as np
import pytest

from dsx.cost.gather_queue import Collectives, outlasting

GATHER, SCATTER = 0.6, 1.1
FORWARD, WEIGHTS = 1.0, 0.9
BACKWARD = 1.4 + WEIGHTS


def found(layers, apart=None, weights=WEIGHTS):
    """The seconds of all layers of a chunk."""
    gather, scatter, forward, backward, of_weights, ends = (
        np.array([value]) for value in (GATHER, SCATTER, FORWARD, BACKWARD, weights, 1.0 / layers)
    )
    late = outlasting(Collectives(gather, scatter), forward, backward, of_weights, ends, apart)
    return [layers * np.asarray(seconds).item() for seconds in late]


def beyond(collectives_s, pass_s):
    return sum(max(seconds - pass_s, 0.0) for seconds in collectives_s)


def close(values):
    return pytest.approx(values, abs=1e-12)


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_first_forward_waits_for_the_last_scatter(layers):
    forward = beyond([GATHER + SCATTER] + [GATHER] * (layers - 1), FORWARD)
    backward = beyond([GATHER] + [GATHER + SCATTER] * (layers - 1), BACKWARD)
    assert found(layers) == close([forward, backward, backward])
    assert forward > 0.0


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_parts_of_a_backward_each_hide_their_own_collectives(layers):
    of_weights = [[GATHER], [0.0, GATHER + SCATTER]][layers > 1]
    of_weights = of_weights[:1] + [SCATTER] * (layers - 2) + of_weights[1:]
    inputs = beyond([GATHER] * (layers - 1), BACKWARD - WEIGHTS)
    weights = beyond(of_weights, WEIGHTS)
    forward, backward, put_off = found(layers, np.array([True]))
    assert [forward, backward, put_off] == close([found(layers)[0], inputs + weights, weights])
    assert found(layers, np.array([False])) == found(layers)


def test_no_part_of_a_backward_is_longer_than_all_of_it():
    longer = found(3, np.array([True]), weights=2.0 * BACKWARD)
    assert longer == found(3, np.array([True]), weights=BACKWARD)
