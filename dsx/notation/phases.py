"""What a step runs: phases, each a model of which some weights are trained.

A phase runs a forward and, as far as trained weights need it, a backward. A tensor has a gradient if a trained weight
lies above it, in its own layer or in one before. From this alone follow the multiplies of the backward, the tensors
that are saved for it, the gradients that are reduced, and the weights that the optimizer updates. Where nothing is
trained, a phase is a forward alone.

Pre-training is one phase that trains all weights. A reference or a reward model is a phase that trains none; the passes
of all phases of a step follow each other (`dsx.cost.step.step_of_phases`).

Not modelled: stages of a pipeline send gradients back as far as the first stage, also where no weight there is trained;
what a layer holds while its forward runs counts only beside a backward, so that a forward alone needs the memory of its
weights.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from dsx.errors import SpecError, did_you_mean
from dsx.notation.sharded_layer import Layer, Tensor


@dataclass(frozen=True, slots=True)
class Phase:
    """Passes of a model in a step; `trained` has patterns (``*``, ``?``) of its weights.

    A weight is named as in its layer definition. The names of its block and of its layer may stand in front, as in
    ``self-attention.wqkv`` or ``transformer.*.wqkv``.
    """

    trained: tuple[str, ...] = ("*",)

    def trains(self, layer: Layer, weight: str) -> bool:
        """Return whether a weight of a layer is trained."""
        parts = layer.full_name(weight).split(".")
        names = [".".join(parts[start:]) for start in range(len(parts))]
        return any(fnmatchcase(name, pattern) for pattern in self.trained for name in names)

    def check(self, model: str, layers: Iterable[Layer]) -> None:
        """Raise SpecError for a pattern that names no weight of some layers, those of a model."""
        weights = [(layer, name) for layer in layers for name, tensor in layer.tensors.items() if tensor.weight]
        for pattern in self.trained:
            if not any(Phase((pattern,)).trains(layer, name) for layer, name in weights):
                known = [*dict.fromkeys(layer.full_name(name) for layer, name in weights)]
                raise SpecError(
                    f"{pattern!r} names no weight of model {model!r}{did_you_mean(pattern, known)} "
                    f"(it has: {', '.join(known)})"
                )


PRE_TRAINING = Phase()
FORWARD_ALONE = Phase(trained=())


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
