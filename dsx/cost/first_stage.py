"""What a first stage adds to the end of a step as sums over kinds of layers, for those who look at very many stages.

The numbers are those of `StageCosts.reduction_and_update_s`, which is asked once for a few stages: both parts are
affine in the layers, but one layer is reduced and gathered alone, the embedding of a stage without body layers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsx.cost import xp
from dsx.cost.shapes import PerPlan
from dsx.cost.stage_costs import StageCosts
from dsx.cost.stages import Layers, Stack, Stage, even_first, over_layers


class FirstStage(NamedTuple):
    """Seconds of the first stages of [N] plans; sequences have one [N] for each kind of layer."""

    once_s: PerPlan  # of a reduction, whatever the layers
    once_without_body_s: PerPlan
    reduction_s: Sequence[PerPlan]
    update_s: Sequence[PerPlan]
    least_reduction_s: PerPlan  # that of the first stage of the most even cut
    least_update_s: PerPlan

    @property
    def least_s(self) -> PerPlan:
        """The seconds that no first stage goes below."""
        return self.least_reduction_s + self.least_update_s

    def added_s(self, layers: Layers, stack: Stack) -> PerPlan:
        """Return the seconds that a first stage with these layers adds to the end of a step."""
        body = stack.segments[0][0]
        once_s = xp.where(layers[body] > 0.0, self.once_s, self.once_without_body_s)
        reduction_s = xp.maximum(once_s + over_layers(layers, self.reduction_s), self.least_reduction_s)
        return reduction_s + xp.maximum(over_layers(layers, self.update_s), self.least_update_s)


def first_stage(costs: StageCosts) -> FirstStage:
    """Return what the first stages of [N] plans add to the end of a step."""
    stack, pp = costs.stack, costs.choices.pp
    body, kinds = stack.segments[0][0], range(len(costs.kinds))
    alone = stack.first[-1] if stack.first else body
    # A body layer, another layer of each kind besides, and the last layer before the body alone.
    unit = np.eye(len(kinds))
    asked = np.stack([unit[body], *(unit[body] + unit), unit[alone]])[:, :, None] * xp.ones_like(pp)
    stages = Stage(xp.zeros_like(asked[:, 0]), {kind: asked[:, kind] for kind in kinds}, even=False)
    reduction_s, update_s = (xp.asarray(seconds) for seconds in (costs.reduction_s(stages), costs.update_s(stages)))
    of_kinds, updates = reduction_s[1:-1] - reduction_s[0], update_s[1:-1] - update_s[0]
    share = even_first(stack, pp, costs.choices.vpp)
    least = Stage(share.position, {kind: share.layers[kind] for kind in kinds}, even=False)
    found = FirstStage(
        once_s=reduction_s[0] - of_kinds[body],
        once_without_body_s=reduction_s[-1] - of_kinds[alone],
        reduction_s=[*of_kinds],
        update_s=[*updates],
        least_reduction_s=xp.zeros_like(pp),
        least_update_s=xp.zeros_like(pp),
    )
    # With the same rounding as those of other stages.
    return found._replace(
        least_reduction_s=found.once_s + over_layers(least.layers, found.reduction_s),
        least_update_s=over_layers(least.layers, found.update_s),
    )
