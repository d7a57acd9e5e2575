"""The names that come with dsx, or lie on DSX_PATH."""

from typing import Literal, get_args

from dsx.errors import UnknownNameError
from dsx.graph.library import layer_names, strategy_names
from dsx.spec.locate import names as names_of

Kind = Literal["models", "clusters", "strategies", "layers", "assumptions"]


def names(kind: Kind) -> list[str]:
    """Return the names of models, clusters, strategies, layers or assumption sets, sorted.

        dsx.names("clusters")

    Those of the user's files on DSX_PATH are among them. Raises UnknownNameError for another kind.
    """
    match kind:
        case "strategies":
            return list(strategy_names())
        case "layers":
            return list(layer_names())
        case "models" | "clusters" | "assumptions":
            return names_of(kind, ".yaml")
        case _:
            raise UnknownNameError("kind of names", kind, get_args(Kind))
