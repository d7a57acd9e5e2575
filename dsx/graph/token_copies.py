"""The tensors of a layer that have several copies of each token: those between dispatch and combine.

An all-to-all of such a tensor need not move each copy over the network, since copies for one fast domain can be made
there. How many it must move depends on how a token chooses its experts, which the operator table states: the number of
choices, and the groups of experts that they are limited to (arXiv 2412.19437, section 2.1.2).
"""

from dataclasses import dataclass
from typing import Any

from dsx.graph.layer import Layer


@dataclass(frozen=True, slots=True)
class TokenCopies:
    """How the copies of a token are chosen, as expressions in dimensions of the model."""

    choices: Any  # copies of each token
    groups: Any | None = None  # of experts, of equal size; None: the choices of a token are not limited
    groups_of_token: Any | None = None  # groups that the choices of one token may fall in

    @property
    def stated(self) -> tuple[Any, ...]:
        """The choices and, if they are limited, the groups and those of a token."""
        limits = () if self.groups is None else (self.groups, self.groups_of_token)
        return (self.choices, *limits)


def token_copies(layer: Layer) -> dict[str, TokenCopies]:
    """Return {tensor: its copies} for the tensors of a layer that have several copies of each token."""
    found: dict[str, TokenCopies] = {}
    for op in layer.operators:
        if op.kind.copies is None:
            continue
        name, choices = op.kind.copies
        tensors = [argument.tensor for argument in op.arguments]
        tensor = op.name if name == "y" else tensors[[one.rstrip("?") for one in op.kind.arguments].index(name)]
        found[tensor] = TokenCopies(choices, *op.kind.groups.get(op.modifier, ()))
    return found
