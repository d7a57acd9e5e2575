"""The training step of a loss: its gradients, and an update of the parameters."""

import jax
import jax.numpy as jnp


def adam_step(loss, rate=1e-4, first=0.9, second=0.999, epsilon=1e-8):
    """Return step(params, state, *batch) -> (params, state, loss) of Adam (Kingma and Ba, 2015)."""

    def step(params, state, *batch):
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        count = state["count"] + 1
        means = jax.tree.map(lambda m, g: first * m + (1 - first) * g, state["means"], gradients)
        squares = jax.tree.map(lambda v, g: second * v + (1 - second) * g * g, state["squares"], gradients)
        steps = count.astype(jnp.float32)
        scale = rate * jnp.sqrt(1 - second**steps) / (1 - first**steps)
        params = jax.tree.map(lambda w, m, v: w - scale * m / (jnp.sqrt(v) + epsilon), params, means, squares)
        return params, {"count": count, "means": means, "squares": squares}, value

    return step


def adam_state(params):
    """Return the shapes of the state of Adam for parameters of some shapes."""
    return {"count": jax.ShapeDtypeStruct((), "int32"), "means": params, "squares": params}
