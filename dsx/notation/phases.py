"""What a step runs: a forward and, as far as trained weights need it, a backward.

A tensor has a gradient if a trained weight lies above it, in its own layer or in one before. From this alone follow the
multiplies of the backward, the tensors that are saved for it, the gradients that are reduced, and the weights that the
optimizer updates. Pre-training trains all weights. A step that trains none is a forward alone, as that of a reference
or a reward model. Stages of a pipeline send gradients back as far as to the first one with a trained weight. Phases of
several models in one step follow each other (`dsx.cost.step.step_of_phases`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from dsx.config.model_file import ALL_WEIGHTS
from dsx.errors import SpecError, did_you_mean
from dsx.notation.sharded_layer import Layer, Tensor


@dataclass(frozen=True, slots=True)
class Phase:
    """The passes of a step; `trained` has patterns (``*``, ``?``) of the names of its trained weights.

    A weight is named as in its layer definition. The names of its block and of its layer may stand in front, as in
    ``self-attention.wqkv`` or ``transformer.*.wqkv``. A tied weight has the names of the `table` of the embedding.
    """

    trained: tuple[str, ...] = (ALL_WEIGHTS,)
    table: tuple[str, ...] = ()

    def trains(self, layer: Layer, weight: str) -> bool:
        """Return whether a weight of a layer is trained."""
        return any(fnmatchcase(name, pattern) for pattern in self.trained for name in self._names(layer, weight))

    def check(self, model: str, layers: Iterable[Layer]) -> None:
        """Raise SpecError for a pattern that names no weight of some layers, those of a model."""
        weights = [(layer, name) for layer in layers for name, tensor in layer.tensors.items() if tensor.weight]
        for pattern in self.trained:
            if not any(replace(self, trained=(pattern,)).trains(layer, name) for layer, name in weights):
                names = [name for layer, weight in weights for name in self._names(layer, weight)]
                families = [f"{family}.*" for name in names if (family := name.rpartition(".")[0])]
                listed = dict.fromkeys(self._names(layer, name)[0] for layer, name in weights)
                raise SpecError(
                    f"trained: {pattern!r} names no weight of model {model!r}"
                    f"{did_you_mean(pattern, dict.fromkeys([*names, *families]))} (it has: {', '.join(listed)})"
                )

    def _names(self, layer: Layer, weight: str) -> Sequence[str]:
        return self.table if self.table and layer.tensors[weight].tied else weight_names(layer, weight)


PRE_TRAINING = Phase()


def weight_names(layer: Layer, weight: str) -> tuple[str, ...]:
    """Return the names of a weight, the longest first: with its layer and its block in front, and its own."""
    parts = layer.full_name(weight).split(".")
    return tuple(".".join(parts[start:]) for start in range(len(parts)))


def with_constants(layer: Layer, phase: Phase, constant_input: bool = False) -> Layer:
    """Return a layer whose tensors say whether they have a gradient in a phase.

    With `constant_input` no weight of an earlier layer is trained.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in layer.tensors.items():
        of_layer = tensor.weight and not phase.trains(layer, name)
        constant = tensor.data or of_layer or (constant_input and name in layer.inputs)
        tensors[name] = replace(tensor, constant=constant)
    for op in layer.operators:
        if all(tensors[argument.tensor].constant for argument in op.arguments):
            tensors |= {name: replace(tensors[name], constant=True) for name in op.outputs}
    return replace(layer, tensors=tensors)


def has_gradient(layer: Layer) -> bool:
    """Return whether the output of a layer has a gradient, so that the next layer must compute that of its input."""
    return not all(layer.tensors[name].constant for name in layer.outputs)
