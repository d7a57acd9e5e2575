"""What gathers behind scatters outlast, beside a list of the collectives that run with each pass of a chunk."""

import numpy as np
import pytest

from dsx.cost.reduction import Queued, of_embedding, outlasting

GATHER, SCATTER = 0.6, 1.1
FORWARD, WEIGHTS = 1.0, 0.9
BACKWARD = 1.4 + WEIGHTS
OF_EMBEDDING = (0.8, 0.7, 0.1, 0.2, 0.1)
APART = np.array([True])


def queued(*seconds):
    return Queued(*(np.array([value]) for value in seconds))


def body(scatter=SCATTER, weights=WEIGHTS):
    return queued(GATHER, scatter, FORWARD, BACKWARD, weights)


def of_chunk(layers, apart=None, layer=None):
    """The seconds of all body layers of a chunk."""
    late = outlasting(layer or body(), np.array([1.0 / layers]), apart)
    return [layers * np.asarray(seconds).item() for seconds in late]


def beyond(collectives_s, pass_s):
    return sum(max(seconds - pass_s, 0.0) for seconds in collectives_s)


def close(values):
    return pytest.approx(values, abs=1e-12)


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_first_forward_waits_for_the_last_scatter(layers):
    forward = beyond([GATHER + SCATTER] + [GATHER] * (layers - 1), FORWARD)
    backward = beyond([GATHER] + [GATHER + SCATTER] * (layers - 1), BACKWARD)
    assert of_chunk(layers) == close([forward, backward, backward])
    assert forward > 0.0


def test_passes_hide_their_own_collectives_in_no_part_longer_than_the_backward():
    found = [np.asarray(seconds).item() for seconds in outlasting(body(), np.zeros(1), APART)]
    weights = beyond([SCATTER], WEIGHTS)
    assert found == close([beyond([GATHER], FORWARD), beyond([GATHER], BACKWARD - WEIGHTS) + weights, weights])
    # No part of a backward is longer than all of it.
    longer = of_chunk(3, APART, body(weights=2.0 * BACKWARD))
    assert longer == of_chunk(3, APART, body(weights=BACKWARD))


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_parts_of_a_backward_each_hide_their_own_collectives(layers):
    of_weights = [[GATHER], [0.0, GATHER + SCATTER]][layers > 1]
    of_weights = of_weights[:1] + [SCATTER] * (layers - 2) + of_weights[1:]
    inputs = beyond([GATHER] * (layers - 1), BACKWARD - WEIGHTS)
    weights = beyond(of_weights, WEIGHTS)
    forward, backward, put_off = of_chunk(layers, APART)
    assert [forward, backward, put_off] == close([of_chunk(layers)[0], inputs + weights, weights])
    assert of_chunk(layers, np.array([False])) == of_chunk(layers)


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("scatter", [0.2, GATHER])
def test_the_embedding_comes_first_in_place_of_its_neighbour(layers, scatter):
    layer, ends = body(scatter), np.array([1.0 / layers])
    gathered, scattered, *own = OF_EMBEDDING
    forward = beyond([scattered + GATHER], own[0]) + beyond([GATHER] * layers, FORWARD)
    backward = beyond([gathered + scatter + gathered], own[1])
    backward += beyond([GATHER] + [GATHER + scatter] * (layers - 1), BACKWARD)
    backward -= beyond([GATHER + scatter], BACKWARD) - beyond([scatter], BACKWARD)
    found = of_embedding(queued(*OF_EMBEDDING), layer, ends, None)
    assert [of_all(found, place, of_chunk(layers, None, layer)) for place in (0, 1)] == close([forward, backward])
    found = of_embedding(queued(*OF_EMBEDDING), layer, ends, APART)
    weights = beyond([gathered + scatter], own[2]) + beyond([scatter] * (layers - 1), WEIGHTS)
    assert of_all(found, 2, of_chunk(layers, APART, layer)) == close(weights)


def of_all(embedding, place, others):
    return np.asarray(embedding[place]).item() + others[place]
