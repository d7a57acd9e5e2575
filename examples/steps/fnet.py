"""FNet (Lee-Thorp et al., 2022): BERT-base with a Fourier transform in place of attention, with Adam."""

import jax
from optimizers import adam_state, adam_step
from transformer import block, cross_entropy, embed, embedding, feed_forward, fourier, norm, normalise

WORDS, POSITIONS, WIDTH, LAYERS = 32000, 512, 768, 12


def loss(params, tokens, labels):
    """Return the mean loss of a batch of tokens [N, S]."""
    x = normalise(params["norm"], embed(params["embedding"], tokens))
    for number, own in enumerate(params["blocks"]):
        with jax.named_scope(f"block.{number}"):
            x = normalise(own["before"], x + fourier(x))
            x = normalise(own["between"], x + feed_forward(own, x))
    return cross_entropy(x @ params["embedding"]["words"].T, labels)


def fnet(batch=32, length=128):
    """Return a training step and its shapes."""
    params = {
        "embedding": embedding(WORDS, POSITIONS, WIDTH),
        "norm": norm(WIDTH),
        "blocks": [block(WIDTH, attention=False) for _ in range(LAYERS)],
    }
    tokens = jax.ShapeDtypeStruct((batch, length), "int32")
    return adam_step(loss), (params, adam_state(params), tokens, tokens)
