"""What a launch must set, in no framework's words: a plan, and what its layers and assumptions imply.

Read from the layer and never from the name of its strategy: whether tokens are divided between blocks, how context
parallelism and experts exchange, which weights are divided how. The rest is the plan's own columns and the element
sizes, overlaps and dispatcher of the assumption set.

Not covered: which kernels a framework takes; `dsx.launching.assumed` lists what a set assumes of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsx.graph.derived import DerivedLayer
from dsx.graph.expressions import names
from dsx.graph.model import Model
from dsx.space.plan import Plan
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.cluster import DeviceSpec
from dsx.spec.model import CHOSEN, EXPERTS, has_experts

HYBRID_EP = "blackwell"  # the generation whose experts are dispatched with HybridEP, with DeepEP on earlier ones


@dataclass(frozen=True, slots=True)
class ExpertRun:
    """How the experts of a model are divided and reached."""

    num: int
    chosen: int | None  # experts of a token
    groups: int | None  # of experts; a token chooses from some
    chosen_groups: int | None
    capacity_percent: int  # room of an expert, of its even share
    exchanges: frozenset[str]  # kinds of collectives over ep in the forward
    tp: int  # ranks that divide one expert
    layers: tuple[tuple[bool, int], ...]  # runs of body layers with and without experts


@dataclass(frozen=True, slots=True)
class Run:
    """What a launch must set."""

    plan: Plan | Mapping[str, object]
    assumptions: AssumptionsSpec
    device: DeviceSpec
    num_layers: int  # of the body
    sequence_parallel: bool  # whether tensor parallel ranks share out the tokens between blocks
    exchanges: tuple[tuple[str, str], ...]  # (RING or kind of collective, tensor) over cp in the forward
    experts: ExpertRun | None
    chunks: tuple[int, ...]  # body layers of each chunk of an uneven pipeline; empty if all have the same number
    foreign: tuple[str, ...]  # divisions of weights and activations that no framework on Megatron Core has
    regions: frozenset[str]  # that recomputation of some regions finds in the layers
    predictions: int  # layers of multi-token prediction
    vocabulary: int  # logits of a token; 0 if none are counted
    narrow_head: bool  # whether logits come of a multiply in `linear_dtype`
    unshared_experts: bool  # experts beside tensor parallel ranks that all have every token

    def __getitem__(self, column: str) -> "object":
        return self.plan[column]

    def number(self, column: str) -> int:
        """Return a column of whole numbers."""
        return int(self.plan[column])  # pyright: ignore[reportArgumentType]

    @property
    def chunk_layers(self) -> list[int]:
        """The body layers of each chunk; an even pipeline may count embedding and head as a layer each."""
        if self.chunks:
            return [*self.chunks]
        chunks = self.number("pp") * self.number("vpp")
        if self.num_layers % chunks == 0:
            return [self.num_layers // chunks] * chunks
        sizes = [(self.num_layers + 2) // chunks] * chunks
        sizes[0] -= 1
        sizes[-1] -= 1
        return sizes


def run_of(plan: Plan | Mapping[str, object], model: Model, assumptions: AssumptionsSpec, device: DeviceSpec) -> Run:
    """Return what a launch of a plan must set; `plan` has every column by name, `model` is under its strategy."""
    layer = model.body_layer
    tp = int(plan["tp"])  # pyright: ignore[reportArgumentType]
    # Between blocks: tokens that are routed to experts can be divided without sequence parallelism.
    sequence_parallel = tp > 1 and "tp" in names(layer.boundary_bytes)
    return Run(
        plan=plan,
        assumptions=assumptions,
        device=device,
        num_layers=model.num_body_layers,
        sequence_parallel=sequence_parallel,
        exchanges=layer.exchanges("cp"),
        experts=_experts(tp, model),
        chunks=tuple(_chunks(plan, model)),
        foreign=tuple(_foreign_layout(plan, layer)),
        regions=frozenset(name for kind in model.kinds for name in kind.region_names),
        predictions=model.num_predictions,
        vocabulary=model.dimensions.get("v", 0) if model.last else 0,
        narrow_head=any(map(_has_narrow_vocabulary, model.last)),
        unshared_experts=tp > 1 and not sequence_parallel and EXPERTS in layer.letters,
    )


def _experts(tp: int, model: Model) -> ExpertRun | None:
    layers = [layer for layer in model.kinds if EXPERTS in layer.letters]
    if not layers or not has_experts(model.dimensions):
        return None
    layer, sizes = layers[0], model.dimensions
    grouped = {"ng", "tg"} <= layer.letters
    return ExpertRun(
        num=sizes[EXPERTS],
        chosen=sizes[CHOSEN] if CHOSEN in layer.letters else None,
        groups=sizes["ng"] if grouped else None,
        chosen_groups=sizes["tg"] if grouped else None,
        capacity_percent=sizes["capacity_percent"] if "capacity_percent" in layer.letters else 100,
        exchanges=frozenset(kind for kind, _ in layer.exchanges("ep")),
        tp=tp if "tp" in layer.expert_axes else 1,
        layers=_runs([(EXPERTS in layer.letters, count) for layer, count in model.body]),
    )


def _has_narrow_vocabulary(layer: DerivedLayer) -> bool:
    weights = [tensor for tensor in layer.layer.tensors.values() if tensor.weight and not tensor.wide]
    return any(dim.letter == "v" for tensor in weights for dim in tensor.distribution.dims)


def _runs(entries: Sequence[tuple[bool, int]]) -> tuple[tuple[bool, int], ...]:
    found: list[tuple[bool, int]] = []
    for has, count in entries:
        if found and found[-1][0] == has:
            found[-1] = (has, found[-1][1] + count)
        else:
            found.append((has, count))
    return tuple(found)


def _chunks(plan: Plan | Mapping[str, object], model: Model) -> list[int]:
    """Return how many layers of the body each chunk has; an empty list if all have the same number.

    The layers before and after the body, which `stage_layers` also counts, are left out.
    """
    found: list[int] = []
    begin, before = 0, len(model.first)
    for size in map(int, str(plan["stage_layers"]).split(",") if "stage_layers" in plan else ()):
        held = min(begin + size, before + model.num_body_layers) - max(begin, before)
        found.append(max(held, 0))
        begin += size
    return found if len(set(found)) > 1 else []


def _divides(layer: DerivedLayer, letter: str, axis: str) -> bool:
    return any(dim.letter == letter and axis in dim.axes for dim in layer.divided)


def _foreign_layout(plan: Plan | Mapping[str, object], layer: DerivedLayer) -> list[str]:
    found: list[str] = []
    tp, tp2, panels = (int(plan[name]) for name in ("tp", "tp2", "panels"))  # pyright: ignore[reportArgumentType]
    if tp2 > 1:
        found.append(f"weights divided in two dimensions (tp={tp} by tp2={tp2}): {{}} divides one, by tp")
    if panels > 1 and max(tp, tp2) > 1:
        found.append(f"multiplies in {panels} panels: {{}} gathers an operand whole")
    if tp > 1 and _divides(layer, "e", "tp"):
        found.append("the hidden dimension divided by tp: {} keeps it whole between blocks")
    return found
