"""Multiplies that stay in 16 bits where others run in fewer: those of the head and of the router."""

import numpy as np
import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.cluster_file import cluster_from_spec, load_cluster
from dsx.config.model_file import load_model
from dsx.cost.context import assumptions_from_spec
from dsx.cost.layer import layer_costs
from dsx.cost.layer_work import layer_work, multiply_shapes
from dsx.notation.model import build_model

CLUSTER = cluster_from_spec(load_cluster("h100-nvs8"))
AXES = ("tp", "tp2", "cp", "ep")
KEYS = {name: np.array([1.0]) for name in (*AXES, *(f"{axis}_nvs" for axis in AXES), "panels", "microbatch_size")}


def layers(model, dtype, *overrides):
    """The layers of a model and their costs, first to last."""
    assumed = load_assumptions("default", [("linear_dtype", dtype), *overrides])
    built = build_model(load_model(model), assumed, "1d")
    works = [layer_work(layer, built.dimensions, assumed, 4096.0, KEYS) for layer in built.kinds]
    numbers = assumptions_from_spec(assumed)
    return [(kind, layer_costs(work, CLUSTER, numbers)) for kind, work in zip(built.kinds, works, strict=True)]


@pytest.mark.parametrize("model", ["llama-3-8b", "gemma-3-12b"])  # the second has the embedding's table
def test_the_head_takes_as_long_in_8_bits_as_in_16(model):
    (_, wide), (_, eight) = layers(model, "bf16")[-1], layers(model, "fp8")[-1]
    assert float(eight.forward_s[0]) == float(wide.forward_s[0])
    assert float(eight.backward_s[0]) == float(wide.backward_s[0])
    assert float(eight.stash_bytes[0][0]) == float(wide.stash_bytes[0][0])
    _, all_in_8 = layers(model, "fp8", ("sixteen_bit_weights", "[]"))[-1]
    assert float(all_in_8.forward_s[0]) < float(eight.forward_s[0])


def test_of_an_expert_layer_the_router_alone_stays_in_16_bits():
    layer, _ = layers("mixtral-8x7b", "fp8")[1]
    wide = {layer.priced_kernels[shape.kernel].name for shape in multiply_shapes(layer) if shape.wide}
    assert wide == {"experts.scores"}
    assert any(shape.narrow for shape in multiply_shapes(layer))
