"""What a phase trains decides what its backward is: which tensors have gradients, what is saved, what is multiplied."""

from collections import Counter

import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.model_file import load_model
from dsx.errors import SpecError
from dsx.notation.expressions import evaluate
from dsx.notation.model import build_model, unsharded
from dsx.notation.phases import Phase
from dsx.notation.work import BACKWARD, FORWARD

DEFAULT = load_assumptions("default")
MODELS = ["llama-3-8b", "deepseek-v3", "qwen3-next-80b-a3b", "mamba2-2.7b", "vit-l-16"]
TRAINED = [("wo",), ("gamma*",), ("*head.*",), ("*embedding.*", "w*"), ()]


def built(model, *trained):
    return build_model(load_model(model, [("trained", [*trained])]), DEFAULT, DEFAULT.default_strategy)


def amount(model, expression_of, kind):
    values = unsharded(kind, model.dimensions, 512)
    return sum(evaluate(expression_of(kernel), values) for kernel in kind.kernels)


def reachable(layer, trained, constant_input):
    """The tensors that a trained weight reaches, by walking from each of them."""
    phase = Phase(trained, ("embedding.table", "table"))  # under the names of which a tied weight is trained
    reached = {name for name, tensor in layer.tensors.items() if tensor.weight and phase.trains(layer, name)}
    reached |= set() if constant_input else {name for name in layer.inputs if not layer.tensors[name].data}
    pending = [*reached]
    while pending:
        tensor = pending.pop()
        for op in layer.operators:
            if any(argument.tensor == tensor for argument in op.arguments):
                further = {*op.outputs} - reached
                reached |= further
                pending += further
    return reached


@pytest.mark.parametrize("model", MODELS)
def test_pre_training_has_a_gradient_of_all_but_data(model):
    plain = built(model, "*")
    for layer in plain.kinds:
        constant = {name for name, tensor in layer.tensors.items() if tensor.constant}
        assert {name for name in layer.tensors if layer.tensors[name].data} <= constant
        assert not any(weight.frozen for weight in layer.weights)
    assert [count for _, count in plain.layers] == [entry.count for entry in load_model(model).sequence]
    stated = built(model, "*.*")
    assert [layer.kernels for layer in stated.kinds] == [layer.kernels for layer in plain.kinds]


@pytest.mark.parametrize("trained", TRAINED, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_of_what_trained_weights_reach(model, trained):
    made, pre_trained = built(model, *trained), built(model, "*")
    constant_input = True
    for layer, count in made.layers:
        reached = reachable(layer, trained, constant_input)
        assert {name for name, tensor in layer.tensors.items() if not tensor.constant} == reached
        # Each contraction has a multiply back for each of its operands that is reached.
        expected = Counter(
            op.kind.name
            for op in layer.operators
            if op.kind.shape == "contract" and len(op.arguments) == 2
            for argument in op.arguments
            if argument.tensor in reached
        )
        multiplies = Counter(m.operator for kernel in layer.kernels for m in kernel.work[BACKWARD].multiplies)
        assert multiplies >= expected  # a fused kernel computes some of its forward once more
        fused = any(kernel.fused and kernel.work[BACKWARD].multiplies for kernel in layer.kernels)
        assert fused or multiplies == expected
        # The backward reads what is saved, and everything that it reads of the forward is saved or stored.
        saved = {saved.key for kernel in layer.kernels for saved in kernel.saved}
        read = {value.saved_as for node in layer.graph.backward for value in node.reads if not value.weight} - {None}
        assert saved == read
        if not reached:
            assert (layer.graph.backward, saved, layer.collectives(BACKWARD)) == ((), set(), [])
        # The forward is that of pre-training, and no part of the backward is more.
        same = next(other for other in pre_trained.kinds if other.name == layer.name)
        assert [kernel.work[FORWARD] for kernel in layer.kernels] == [kernel.work[FORWARD] for kernel in same.kernels]
        for part in (lambda k: k.work[BACKWARD].matrix, lambda k: k.saved_bytes, lambda k: k.gradient_flops):
            assert amount(made, part, layer) <= amount(pre_trained, part, same)
        constant_input = not reached & {*layer.outputs}
        assert count == 1 or not (constant_input is False and not reached & {*layer.inputs})


def test_only_the_first_trained_layer_has_no_gradient_of_its_input():
    """Adapters on the queries of every layer: all layers but the first pass a gradient on."""
    made = built("llama-3-8b", "wqkv")
    embedding, first, others, head = made.layers
    assert [count for _, count in made.layers] == [1, 1, 31, 1]
    assert embedding[0].graph.backward == ()
    assert embedding[0].graph.output_gradients == ()
    assert (first[0].graph.input_gradients, first[0].name) == ((), others[0].name)
    assert others[0].graph.input_gradients != ()
    assert head[0].graph.input_gradients != ()
    # The queries of the first layer need the gradient of their weight alone.
    of_queries = [
        [m for kernel in layer.kernels for m in kernel.work[BACKWARD].multiplies if m.of_weight]
        for layer in (first[0], others[0])
    ]
    assert [len(multiplies) for multiplies in of_queries] == [1, 1]
    assert [weight.name for weight in others[0].weights if not weight.frozen] == [
        name for name in others[0].tensors if name.endswith("wqkv")
    ]
    # Nothing of the last layers is trained: their backward only passes gradients on.
    assert all(weight.frozen for weight in head[0].weights)
    assert amount(made, lambda k: k.gradient_flops, head[0]) == amount(made, lambda k: k.work[FORWARD].matrix, head[0])


@pytest.mark.parametrize(
    ("pattern", "nearest"), [("wqq", "wqkv"), ("haed.*", "head.*"), ("self-atention.wo", "self-attention.wo")]
)
def test_a_pattern_that_names_no_weight(pattern, nearest):
    with pytest.raises(SpecError) as caught:
        built("llama-3-8b", "gamma1", pattern)
    message = f"trained: {pattern!r} names no weight of model 'llama-3-8b'; did you mean {nearest!r}?"
    assert str(caught.value).startswith(f"{message} (it has: embedding.table, transformer.gamma1, ")


@pytest.mark.parametrize(
    ("trained", "of_head"), [("table", ["projection"]), ("head.*", ["gamma"]), ("*", ["gamma", "projection"])]
)
def test_a_tied_weight_is_the_table_of_the_embedding(trained, of_head):
    made = built("gemma-3-12b", trained)
    head, _ = made.layers[-1]
    assert [weight.name for weight in head.weights if not weight.frozen] == of_head
    embedding, _ = made.layers[0]
    assert [weight.frozen for weight in embedding.weights] == ["projection" not in of_head]
    with pytest.raises(SpecError, match="names no weight"):
        built("gemma-3-12b", "projection")
