"""Networks of convolutions on images of 32 x 32, as lists of layers; batches are normalised (Ioffe, Szegedy, 2015)."""

import jax
import jax.numpy as jnp
from jax import lax


def weights(layers, channels=3, size=32, classes=10):
    """Return the shapes of the weights; a layer is a pool, (channels, window) or a number of neurons."""
    found, neurons = [], None
    for layer in (*layers, classes):
        if layer == "pool":
            size //= 2
        elif isinstance(layer, tuple):
            out, window = layer
            found.append(_weight((window, window, channels, out)) | {"scale": _vector(out), "shift": _vector(out)})
            channels = out
        else:
            found.append(_weight((neurons or channels * size * size, layer)))
            neurons = layer
    return found


def _weight(shape):
    return {"w": jax.ShapeDtypeStruct(shape, "float32"), "b": _vector(shape[-1])}


def _vector(size):
    return jax.ShapeDtypeStruct((size,), "float32")


def normalise(params, x):
    """Normalise each channel of [N, H, W, C] over a batch."""
    centred = x - x.mean(axis=(0, 1, 2))
    return centred * lax.rsqrt((centred**2).mean(axis=(0, 1, 2)) + 1e-5) * params["scale"] + params["shift"]


def cross_entropy(layers, params, images, labels):
    """Return the mean loss of a batch, images [N, 32, 32, 3] and labels [N]."""
    x, rest = images, iter(params)
    for layer in layers:
        if layer == "pool":
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            continue
        own = next(rest)
        if isinstance(layer, tuple):
            x = lax.conv_general_dilated(x, own["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(normalise(own, x + own["b"]))
        else:
            x = jax.nn.relu(x.reshape(len(x), -1) @ own["w"] + own["b"])
    last = next(rest)
    logits = jax.nn.log_softmax(x @ last["w"] + last["b"])
    return -jnp.take_along_axis(logits, labels[:, None], axis=1).mean()
