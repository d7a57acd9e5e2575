"""``dsx list``: the names of files that come with dsx or are on DSX_PATH; and the parameters of a model."""

from typing import Literal, get_args, get_type_hints

from dsx.config.assumption_set import load_assumptions
from dsx.config.load import Given
from dsx.config.model_file import load_model
from dsx.config.search_path import names as names_of
from dsx.errors import UnknownNameError, one_text
from dsx.notation.library import layer_names, strategy_names
from dsx.notation.model import build_model, layer_check
from dsx.notation.model import parameters as parameters_of
from dsx.verbs.job import DEFAULT_ASSUMPTIONS, file_of


def names(
    kind: Literal["models", "clusters", "strategies", "layers", "assumptions", "stacks", "frameworks"],
) -> list[str]:
    """List models, clusters, layers, strategies or other files.

    The names are sorted.

        dsx.names("clusters")

    The user's files on DSX_PATH are included. Raises UnknownNameError for an unknown kind.
    """
    one_text("kind", kind, "models")
    match kind:
        case "strategies":
            return list(strategy_names())
        case "layers":
            return list(layer_names())
        case "models" | "clusters" | "assumptions" | "stacks" | "frameworks":
            return names_of(kind, ".yaml")
        case _:
            raise UnknownNameError("kind of names", kind, get_args(get_type_hints(names)["kind"]))


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
