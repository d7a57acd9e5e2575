"""Matrix-multiply FLOPs of one token, from the layer definitions of a model.

Published FLOP/s count the multiplies with weights of layers and head, and attention without a mask. The layer
definitions include shared experts, latent attention and first dense layers, so these counts do too. They count every
expert that a token visits. They leave out embedding lookups and everything else that is not a multiply.
"""

import functools
from dataclasses import dataclass

from dsx.graph.derived import FORWARD, DerivedLayer
from dsx.graph.expressions import evaluate, product
from dsx.graph.library import strategy_names
from dsx.graph.model import Model, build_model, unsharded
from dsx.graph.multiplies import Multiply
from dsx.spec.assumptions import load_assumptions
from dsx.spec.model import LayerKind, ModelSpec, layer_count

_ASSUMPTIONS = "default"  # it gives each layer kind its definition: measured FLOP/s must not depend on the set in use


@dataclass(frozen=True, slots=True)
class TokenFlops:
    """Forward FLOPs of one token."""

    layers: float  # multiplies with weights of all layers but the head
    head: float
    attention: float  # multiplies of two activations, without a mask


def token_flops(spec: ModelSpec, sequence_length: int) -> TokenFlops:
    """Return the forward FLOPs of one token in sequences of `sequence_length` tokens."""
    return _token_flops(*_key(spec), sequence_length)


@functools.lru_cache(maxsize=1024)
def _token_flops(
    name: str, kinds: tuple[tuple[LayerKind, int], ...], dimensions: tuple[tuple[str, int], ...], sequence_length: int
) -> TokenFlops:
    model = _model(name, kinds, dimensions)
    layers = head = attention = 0.0
    for place, (layer, count) in enumerate(model.layers):
        values = unsharded(layer, model.dimensions, sequence_length)
        for multiply in _forward(layer):
            shape = (multiply.rows, multiply.columns, multiply.contracted, multiply.batch)
            flops = 2.0 * count * float(evaluate(product(shape), values)) / sequence_length
            if not multiply.linear:
                attention += flops
            elif place < len(model.layers) - model.trailing:
                layers += flops
            else:
                head += flops
    return TokenFlops(layers, head, attention)


def model_of_layers(spec: ModelSpec) -> Model:
    """Return the layers of a model under an arbitrary strategy, to read what no strategy changes."""
    return _model(*_key(spec))


def _key(spec: ModelSpec) -> tuple[str, tuple[tuple[LayerKind, int], ...], tuple[tuple[str, int], ...]]:
    """Return what makes the model of a spec."""
    return spec.name, tuple((entry.layer, entry.count) for entry in spec.sequence), tuple(spec.dimensions.items())


@functools.lru_cache(maxsize=256)
def _model(name: str, layers: tuple[tuple[LayerKind, int], ...], dimensions: tuple[tuple[str, int], ...]) -> Model:
    entries = [layer_count(kind, count) for kind, count in layers]
    spec = ModelSpec.model_construct(name=name, default_sequence_length=1, dimensions=dict(dimensions), layers=entries)
    return build_model(spec, load_assumptions(_ASSUMPTIONS), strategy_names()[0])


def _forward(layer: DerivedLayer) -> list[Multiply]:
    return [multiply for kernel in layer.kernels for multiply in kernel.work[FORWARD].multiplies]
