"""The names of the files that come with dsx or are on DSX_PATH."""

from typing import Literal, get_args

from dsx.argument_types import one_text
from dsx.errors import UnknownNameError
from dsx.graph.library import layer_names, strategy_names
from dsx.spec.locate import names as names_of

Kind = Literal["models", "clusters", "strategies", "layers", "assumptions", "stacks", "frameworks"]


def names(kind: Kind) -> list[str]:
    """Return the names of models, clusters, strategies, layers, assumption sets, stacks or frameworks, sorted.

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
            raise UnknownNameError("kind of names", kind, get_args(Kind))
