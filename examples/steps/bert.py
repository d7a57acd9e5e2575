"""BERT-base (Devlin et al., 2019): predicts the words of all positions, with Adam."""

import jax
from optimizers import adam_state, adam_step
from transformer import apply, attend, block, cross_entropy, embed, embedding, feed_forward, linear, norm, normalise

WORDS, POSITIONS, WIDTH, HEADS, LAYERS = 30522, 512, 768, 12, 12


def loss(params, tokens, labels):
    """Return the mean loss of a batch of tokens [N, S]."""
    x = normalise(params["norm"], embed(params["embedding"], tokens))
    for number, own in enumerate(params["blocks"]):
        with jax.named_scope(f"block.{number}"):
            x = normalise(own["before"], x + attend(own, x, HEADS, causal=False))
            x = normalise(own["between"], x + feed_forward(own, x))
    x = normalise(params["transform_norm"], jax.nn.gelu(apply(params["transform"], x)))
    return cross_entropy(x @ params["embedding"]["words"].T, labels)


def bert_base(batch=32, length=128):
    """Return a training step and its shapes."""
    params = {
        "embedding": embedding(WORDS, POSITIONS, WIDTH),
        "norm": norm(WIDTH),
        "blocks": [block(WIDTH) for _ in range(LAYERS)],
        "transform": linear(WIDTH, WIDTH),
        "transform_norm": norm(WIDTH),
    }
    tokens = jax.ShapeDtypeStruct((batch, length), "int32")
    return adam_step(loss), (params, adam_state(params), tokens, tokens)
