"""AlexNet (Krizhevsky, Sutskever and Hinton, 2012), with the filters of images of 32 x 32 pixels."""

from functools import partial

import jax
from convolutions import cross_entropy, weights
from sgd import sgd_step

LAYERS = [(64, 3), "pool", (192, 3), "pool", (384, 3), (256, 3), (256, 3), "pool", 4096, 4096]


def alexnet(batch=512):
    """Return a training step and its shapes."""
    images, labels = jax.ShapeDtypeStruct((batch, 32, 32, 3), "float32"), jax.ShapeDtypeStruct((batch,), "int32")
    return sgd_step(partial(cross_entropy, LAYERS)), (weights(LAYERS), images, labels)
