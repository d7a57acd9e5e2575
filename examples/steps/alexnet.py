"""AlexNet (Krizhevsky, Sutskever and Hinton, 2012), with the small filters for images of 32 x 32 pixels, and Adam."""

from functools import partial

import jax
from convolutions import cross_entropy, weights
from optimizers import adam_state, adam_step

LAYERS = [(96, 3), "pool", (256, 3), "pool", (384, 3), (384, 3), (256, 3), "pool", 4096, 4096]


def alexnet(batch=512):
    """Return a training step and its shapes."""
    images, labels = jax.ShapeDtypeStruct((batch, 32, 32, 3), "float32"), jax.ShapeDtypeStruct((batch,), "int32")
    params = weights(LAYERS)
    return adam_step(partial(cross_entropy, LAYERS)), (params, adam_state(params), images, labels)
