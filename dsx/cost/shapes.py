"""The shapes of arrays in the cost model: the names of their axes, and types for shapes that recur.

Layers are priced for `keys`; keys that differ only in their shares of a fast domain share one of the `works`
(`dsx.cost.layer_work.LayerWork`). Axes of kernels, multiplies, collectives and weights are those of the layer. These
shapes match exactly. A leading 2 is forward and backward, `modes` those of recomputation.

A step has one shape, `plans`, to which all of its arguments broadcast: layer costs of [U, 1] keys with [1, G] choices,
[N] plans, or plain numbers, for one plan or for values that all plans share.

What prices and searches batches of plans has arrays of exactly `plans`, of the hardware `points`, of the `keys` of a
table, and of those that are `chosen` or `kept` of them.
"""

import numpy as np

from dsx.records import Array, ArrayLike, Bool, Float, Int, Real

PerKernel = Float[Array, "2 kernels works"]
PerMultiply = Float[Array, "multiplies works"]
PerMode = Float[Array, "modes works"]
PerWork = Float[Array, "works"]
PerKey = Float[Array, "keys"]
Size = Real[ArrayLike, "*#works"]  # of a dimension or a sequence: one for all works, or one per work

PerPlan = Float[ArrayLike, "*#plans"]
Column = Float[Array, "*#plans"]  # an array even for one plan
Mask = Bool[Array, "*#plans"]
PerGroup = Float[Array, "_groups *#plans"]  # per weight group of a layer

PlanFloats = Float[np.ndarray, "plans"]
PlanInts = Int[np.ndarray, "plans"]
PlanBools = Bool[np.ndarray, "plans"]
KeyFloats = Float[np.ndarray, "keys"]
Chosen = Int[np.ndarray, "chosen"]  # positions of some of the plans, or of the keys
Cuts = Int[np.ndarray, "plans chunk_boundaries"]  # in a chain of layers; after the last chunk its number of layers
# Boundaries of rounds of chunks, one for each stage (`dsx.cost.stages`).
Rounds = Real[Array, "rounds boundaries plans"]
