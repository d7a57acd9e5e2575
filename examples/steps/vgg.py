"""VGG16 (Simonyan and Zisserman, 2015), on images of 32 x 32 pixels, with Adam."""

from functools import partial

import jax
from convolutions import cross_entropy, weights
from optimizers import adam_state, adam_step

BLOCKS = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]  # channels, convolutions
LAYERS = [layer for channels, count in BLOCKS for layer in (*[(channels, 3)] * count, "pool")] + [4096, 4096]


def vgg16(batch=512):
    """Return a training step and its shapes."""
    images, labels = jax.ShapeDtypeStruct((batch, 32, 32, 3), "float32"), jax.ShapeDtypeStruct((batch,), "int32")
    params = weights(LAYERS)
    return adam_step(partial(cross_entropy, LAYERS)), (params, adam_state(params), images, labels)
