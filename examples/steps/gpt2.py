"""GPT-2 (Radford et al., 2019), the smallest one: predicts the next word, with Adam."""

import jax
from optimizers import adam_state, adam_step
from transformer import attend, block, cross_entropy, embed, embedding, feed_forward, norm, normalise

WORDS, POSITIONS, WIDTH, HEADS, LAYERS = 50257, 1024, 768, 12, 12


def loss(params, tokens):
    """Return the mean loss of a batch of tokens [N, S]."""
    x = embed(params["embedding"], tokens[:, :-1])
    for number, own in enumerate(params["blocks"]):
        with jax.named_scope(f"block.{number}"):
            x = x + attend(own, normalise(own["before"], x), HEADS, causal=True)
            x = x + feed_forward(own, normalise(own["between"], x))
    return cross_entropy(normalise(params["norm"], x) @ params["embedding"]["words"].T, tokens[:, 1:])


def gpt2(batch=8, length=1024):
    """Return a training step and its shapes."""
    params = {
        "embedding": embedding(WORDS, POSITIONS, WIDTH),
        "blocks": [block(WIDTH) for _ in range(LAYERS)],
        "norm": norm(WIDTH),
    }
    return adam_step(loss), (params, adam_state(params), jax.ShapeDtypeStruct((batch, length + 1), "int32"))
