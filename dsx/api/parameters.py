"""How many parameters a model has."""

from dsx.api.inputs import file_of
from dsx.api.job import DEFAULT_ASSUMPTIONS
from dsx.graph.model import build_model, layer_check
from dsx.graph.model import parameters as parameters_of
from dsx.spec.assumptions import load_assumptions
from dsx.spec.load import Given
from dsx.spec.model import load_model


def parameters(model: Given, assumptions: Given = DEFAULT_ASSUMPTIONS) -> int:
    """Return how many parameters a model has, as its layer definitions count them.

        dsx.parameters("llama-3-8b")        # 8030261248

    Args:
        model: a name, a path, the content of a model file, or a `ModelSpec`.
        assumptions: the assumption set, which says which layers the model is made of.

    Raises UnknownNameError or SpecError for what cannot be used.
    """
    believed, beside = load_assumptions(assumptions), file_of(model)
    spec = load_model(model, check=layer_check(beside))
    return parameters_of(build_model(spec, believed, believed.default_strategy, beside))
