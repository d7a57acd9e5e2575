"""The number of parameters of a model."""

from dsx.api.inputs import file_of
from dsx.api.job import DEFAULT_ASSUMPTIONS
from dsx.graph.model import build_model, layer_check
from dsx.graph.model import parameters as parameters_of
from dsx.spec.assumptions import load_assumptions
from dsx.spec.load import Given
from dsx.spec.model import load_model


def parameters(model: Given, assumptions: Given = DEFAULT_ASSUMPTIONS) -> int:
    """Return the number of parameters of a model, counted from its layer definitions.

        dsx.parameters("llama-3-8b")        # 8030261248

    Args:
        model: a name, a path, the content of a model file, or a `ModelSpec`.
        assumptions: the assumption set, which has the default strategy and sets options of layers.

    Raises UnknownNameError for an unknown name, SpecError for an invalid file.
    """
    assumed, near = load_assumptions(assumptions), file_of(model)
    spec = load_model(model, check=layer_check(near, assumed))
    return parameters_of(build_model(spec, assumed, assumed.default_strategy, near))
