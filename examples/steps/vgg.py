"""VGG16 (Simonyan and Zisserman, 2015), on images of 32 x 32 pixels."""

from functools import partial

import jax
from convolutions import cross_entropy, weights
from sgd import sgd_step

BLOCKS = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]  # channels, convolutions
LAYERS = [layer for channels, count in BLOCKS for layer in (*[(channels, 3)] * count, "pool")] + [4096, 4096]


def vgg16(batch=512):
    """Return a training step and its shapes."""
    images, labels = jax.ShapeDtypeStruct((batch, 32, 32, 3), "float32"), jax.ShapeDtypeStruct((batch,), "int32")
    return sgd_step(partial(cross_entropy, LAYERS)), (weights(LAYERS), images, labels)
