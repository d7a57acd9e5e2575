"""Muon: what an update of the matrices of the body computes and gathers; all other weights have Adam.

An update orthogonalises the momentum of each matrix by Newton-Schulz steps (arXiv 2502.16982, equation 2). With m the
smaller and n the larger side of the whole matrix X, a step is three multiplies in BF16,

    A = X X^T    2 m^2 n FLOPs        A^2    2 m^3        (b A + c A^2) X    2 m^2 n

so five of them are 5 (4 m^2 n + 2 m^3). They read and write 3 m n + 4 m^2 elements a step. Each multiply is a launch,
which the host issues.

* tp: every rank gathers the FP32 momentum of a matrix that tensor parallel ranks divide, and runs the steps of the
  whole (Megatron Core 0.16.1, `muon_tp_mode` duplicated; blockwise, which gathers nothing, is another update). Experts
  are whole unless tp divides them.
* ZeRO from stage 1 on: the ranks of a shard group gather the momentum in BF16, and share out the matrices (Distributed
  Muon, arXiv 2502.16982, section 2.3, at the upper end of the communication that it states). No rank has less than one
  matrix, the largest of the mean stage, so more ranks than matrices do not shorten the update. Stage 0 has all
  matrices on each rank.

Nothing of this overlaps.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dsx import arrays as xp
from dsx.arrays import PerGroup, PerKey, PerPlan
from dsx.config.cluster_file import Cluster, Device
from dsx.cost.collectives import collective
from dsx.cost.context import Assumptions, StepPlans
from dsx.cost.groups import Group
from dsx.cost.layer_work import LayerWork, Matrices, Multiplies, MultiplyShape
from dsx.cost.roofline import compute_time, exposed_memory_time, slowdowns
from dsx.notation.graph import FORWARD
from dsx.notation.model import divides
from dsx.notation.sharded_layer import ALL_GATHER
from dsx.records import Array, ArrayLike, Float

_MULTIPLIES = 3  # of a step
STEP_SHAPE = MultiplyShape(0, FORWARD, linear=False, fused=False, of_weight=False, grouped=False)
PerMatrix = Float[Array, "matrices works"]
Sizes = TypeVar("Sizes", int, ArrayLike)  # of the sides of matrices


def matrix_costs(
    work: LayerWork, groups: Iterable[Sequence[int]], cluster: Cluster, assumptions: Assumptions
) -> dict[str, Any]:
    """Return the fields of `LayerCosts` for Muon; none with Adam for all weights.

    `groups` has the positions of the weights of each weight group.
    """
    matrices = work.matrices
    if matrices is None:
        return {}
    zero = work.zero
    flops, seconds = newton_schulz(matrices, cluster.device, assumptions)
    all_bytes: list[PerKey] = []
    all_s: list[PerKey] = []
    for weights in groups:
        of_group, of_group_s = zero, zero
        for index, weight in enumerate(matrices.weights):
            if weight in weights:
                of_group = of_group + work.per_key(work.weights[weight])
                # Tensor parallel ranks that divide the matrix gather its momentum.
                gather_s = zero
                volume = work.per_key(matrices.rows[index] * matrices.columns[index]) * assumptions.muon_tp_bytes
                for axis in matrices.axes[index]:
                    gathered = collective(ALL_GATHER, work.members(axis), cluster.network, assumptions)
                    gather_s = gather_s + gathered(volume)
                    volume = volume / work.per_key(work.sizes[axis])
                matrix_s = work.per_key(seconds[index]) + gather_s
                of_group_s = of_group_s + work.per_key(matrices.counts[index]) * matrix_s
        all_bytes.append(of_group)
        all_s.append(of_group_s)
    total, largest = zero, zero
    for index in range(len(matrices.weights)):
        of_matrix = work.per_key(flops[index])
        total = total + work.per_key(matrices.counts[index]) * of_matrix
        largest = xp.maximum(largest, of_matrix)
    return {
        "matrix_bytes": (xp.stack(all_bytes),),
        "orthogonal_s": (xp.stack(all_s),),
        "orthogonal_flops": (total,),
        "largest_matrix_flops": (largest,),
    }


def step_multiplies(small: Sizes, large: Sizes) -> list[tuple[Sizes, Sizes, Sizes]]:
    """Return rows, columns and contracted size of the multiplies of a step, of a matrix with these sides."""
    return [(small, small, large), (small, small, small), (small, large, small)]


def step_elements(small: Sizes, large: Sizes) -> Sizes:
    """Return the elements that a step reads and writes."""
    return 3 * small * large + 4 * small * small


def newton_schulz_flops(small: Any, large: Any, steps: Any) -> Any:
    """Return the FLOPs of the steps of a matrix with these sides."""
    return steps * sum(2 * rows * columns * contracted for rows, columns, contracted in step_multiplies(small, large))


def newton_schulz(matrices: Matrices, device: Device, assumptions: Assumptions) -> tuple[PerMatrix, PerMatrix]:
    """Return the FLOPs and the seconds of the steps of one matrix of each weight."""
    small, large = xp.minimum(matrices.rows, matrices.columns), xp.maximum(matrices.rows, matrices.columns)
    if not matrices.weights:
        return small, small
    sizes = zip(*step_multiplies(small, large), strict=True)
    rows, columns, contracted = (xp.concatenate(list(of_multiplies)) for of_multiplies in sizes)
    multiplies = Multiplies(rows, columns, contracted, xp.ones_like(rows), 2.0 * rows * columns * contracted)
    shapes = (STEP_SHAPE,) * (_MULTIPLIES * len(matrices.weights))
    slowed = multiplies.flops * slowdowns(multiplies, shapes, device, assumptions)
    steps = assumptions.muon_steps

    def of_step(values: Array) -> Array:
        return steps * values.reshape(_MULTIPLIES, *small.shape).sum(axis=0)

    launches = steps * _MULTIPLIES * xp.ones_like(small)
    computing = compute_time(of_step(slowed), xp.zeros_like(small), launches, device, assumptions)
    traffic = steps * assumptions.muon_bytes * step_elements(small, large)
    exposed = exposed_memory_time(traffic, computing, launches, device, assumptions)
    # The host issues one launch after the other.
    seconds = xp.maximum(computing + exposed, assumptions.dispatch_latency * launches)
    return newton_schulz_flops(small, large, steps), seconds


def share_of_rank(num_matrices: PerPlan, members: Group) -> PerPlan:
    """Return the share of the matrices that a rank of a group orthogonalises, of so many on the mean stage.

    A lower bound: whole matrices divide among the ranks with a remainder.
    """
    return xp.maximum(members.per_gpu, 1.0 / xp.maximum(num_matrices, xp.ones_like(num_matrices)))


def orthogonal_s(
    seconds: PerGroup, weight_bytes: PerGroup, shards: Sequence[Group], num_matrices: PerPlan, plans: StepPlans
) -> PerPlan:
    """Return the seconds of the Newton-Schulz steps of a layer's matrices, with the gathers before them.

    Per weight group, `seconds` has the steps of all matrices with the gathers over tp, `weight_bytes` their weights.
    """
    assumptions = plans.assumptions
    unshared = seconds.sum(axis=0)
    shared = xp.zeros_like(unshared)
    for steps_s, num_bytes, members in zip(seconds, weight_bytes, shards, strict=True):
        gathered = collective(ALL_GATHER, members, plans.cluster.network, assumptions)
        gather_s = gathered(num_bytes * (assumptions.muon_bytes / assumptions.weight_bytes))
        # A group without matrices costs nothing, not even latency.
        gather_s = xp.where(num_bytes > 0, gather_s, xp.zeros_like(gather_s))
        shared = shared + steps_s * share_of_rank(num_matrices, members) + gather_s
    return plans.by_code("zero_stage", lambda stage: shared if divides(stage, "optimizer") else unshared)
