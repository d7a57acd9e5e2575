"""A training step of a small transformer in plain JAX, as one compiled function.

The layers are those of `data/layers/transformer.layer` with `rotary` and `gated`: RMS norms, grouped-query attention
with a causal mask, a gated feed-forward network; embedding and head are not tied. The optimizer is AdamW in float32.
Nothing is recomputed, and one microbatch is a step, so gradients are not accumulated.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_BASE = 1e4  # of the angles of rotary positions
_RATE, _BETA1, _BETA2, _DECAY, _TINY = 1e-4, 0.9, 0.95, 0.1, 1e-8

Tree = Any  # of arrays


class Sizes(NamedTuple):
    """The dimensions of a model, by the letters of a model file, and its layers."""

    e: int
    h: int
    g: int
    k: int
    f: int
    v: int
    layers: int


def weights_of(sizes: Sizes, dtype: str = "float32") -> Tree:
    """Return random weights; those of the layers are stacked."""
    e, h, g, k, f, v, layers = sizes
    shapes = {
        "table": (v, e), "gamma": (e,), "projection": (e, v),
        "layer": {
            "gamma1": (layers, e), "wqkv": (layers, e, (h + 2 * g) * k), "wo": (layers, h * k, e),
            "gamma2": (layers, e), "w1": (layers, e, f), "wup": (layers, e, f), "w2": (layers, f, e),
        },
    }  # fmt: skip
    leaves, tree = jax.tree.flatten(shapes, is_leaf=lambda one: isinstance(one, tuple))
    keys = jax.random.split(jax.random.key(0), len(leaves))
    made = [0.02 * jax.random.normal(key, shape, dtype) for key, shape in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, made)


def _norm(x: jax.Array, gamma: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-5) * gamma


def _rotary(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None, None] * _BASE ** (-jnp.arange(half) / half)
    left, right = x[..., :half], x[..., half:]
    cosines, sines = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([left * cosines - right * sines, right * cosines + left * sines], axis=-1)


def _layer(sizes: Sizes, x: jax.Array, w: Tree) -> jax.Array:
    b, s, _ = x.shape
    _, h, g, k, _, _, _ = sizes
    qkv = (_norm(x, w["gamma1"]) @ w["wqkv"]).reshape(b, s, h + 2 * g, k)
    q, keys, values = qkv[:, :, :h], qkv[:, :, h : h + g], qkv[:, :, h + g :]
    o = jax.nn.dot_product_attention(_rotary(q), _rotary(keys), values, is_causal=True)
    r = x + o.reshape(b, s, h * k) @ w["wo"]
    n = _norm(r, w["gamma2"])
    return r + (jax.nn.silu(n @ w["w1"]) * (n @ w["wup"])) @ w["w2"]


def loss(sizes: Sizes, weights: Tree, ids: jax.Array) -> jax.Array:
    """Return the mean cross entropy of the next token; `ids` are [b, s + 1]."""
    x = weights["table"][ids[:, :-1]]
    for number in range(sizes.layers):
        x = _layer(sizes, x, jax.tree.map(lambda stacked, n=number: stacked[n], weights["layer"]))
    logits = _norm(x, weights["gamma"]) @ weights["projection"]
    taken = jnp.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - taken).mean()


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def step(sizes: Sizes, weights: Tree, moments: tuple[Tree, Tree], ids: jax.Array) -> tuple[Tree, tuple[Tree, Tree]]:
    """Return the weights and the two moments of AdamW after one step."""
    gradients = jax.grad(partial(loss, sizes))(weights, ids)
    first = jax.tree.map(lambda m, d: _BETA1 * m + (1 - _BETA1) * d, moments[0], gradients)
    second = jax.tree.map(lambda m, d: _BETA2 * m + (1 - _BETA2) * d * d, moments[1], gradients)

    def updated(w: jax.Array, m: jax.Array, n: jax.Array) -> jax.Array:
        return w - _RATE * (m / (jnp.sqrt(n) + _TINY) + _DECAY * w)

    return jax.tree.map(updated, weights, first, second), (first, second)
