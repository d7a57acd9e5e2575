"""Blocks of a transformer (Vaswani et al., 2017), whose mixing of tokens is attention or a Fourier transform."""

import jax
import jax.numpy as jnp


def linear(inputs, outputs):
    """Return the shapes of a linear layer."""
    return {"w": jax.ShapeDtypeStruct((inputs, outputs), "float32"), "b": jax.ShapeDtypeStruct((outputs,), "float32")}


def norm(width):
    """Return the shapes of a layer norm."""
    return {name: jax.ShapeDtypeStruct((width,), "float32") for name in ("scale", "shift")}


def block(width, attention=True):
    """Return the shapes of a block."""
    mixing = {name: linear(width, width) for name in ("query", "key", "value", "out")} if attention else {}
    mlp = {"up": linear(width, 4 * width), "down": linear(4 * width, width)}
    return mixing | mlp | {"before": norm(width), "between": norm(width)}


def embedding(words, positions, width):
    """Return the shapes of the embeddings of words and positions."""
    return {
        "words": jax.ShapeDtypeStruct((words, width), "float32"),
        "positions": jax.ShapeDtypeStruct((positions, width), "float32"),
    }


def embed(params, tokens):
    """Return the embeddings [N, S, D] of tokens [N, S]."""
    return params["words"][tokens] + params["positions"][: tokens.shape[1]]


def apply(params, x):
    """Apply a linear layer."""
    return x @ params["w"] + params["b"]


def normalise(params, x):
    """Apply a layer norm."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * params["scale"] + params["shift"]


def attend(params, x, heads, causal):
    """Mix the tokens of [N, S, D] by attention."""
    batch, length, width = x.shape
    query, key, value = (
        apply(params[name], x).reshape(batch, length, heads, width // heads) for name in ("query", "key", "value")
    )
    scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) * (width // heads) ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), value)
    return apply(params["out"], mixed.reshape(batch, length, width))


def fourier(x):
    """Mix the tokens of [N, S, D] by a Fourier transform (Lee-Thorp et al., FNet, 2022)."""
    return jnp.fft.fft2(x, axes=(-2, -1)).real


def feed_forward(params, x):
    """Apply the two linear layers of a block."""
    return apply(params["down"], jax.nn.gelu(apply(params["up"], x)))


def cross_entropy(logits, labels):
    """Return the mean loss of logits [N, S, V] for labels [N, S]."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).mean()
