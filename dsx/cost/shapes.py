"""The shapes of arrays in the cost model: the names of their axes, and types for shapes that recur.

Layers are priced for `keys`; keys that differ only in their shares of a fast domain share one of the `works`
(`dsx.cost.layer_work.LayerWork`). Axes of kernels, multiplies, collectives and weights are those of the layer. These
shapes match exactly. A leading 2 is forward and backward, `modes` those of recomputation.

A step has one shape, `plans`, to which all of its arguments broadcast: layer costs of [U, 1] keys with [1, G] choices,
[N] plans, or plain numbers, for one plan or for values that all plans share.
"""

from dsx.records import Array, ArrayLike, Float, Real

PerKernel = Float[Array, "2 kernels works"]
PerMultiply = Float[Array, "multiplies works"]
PerMode = Float[Array, "modes works"]
PerWork = Float[Array, "works"]
PerKey = Float[Array, "keys"]
Size = Real[ArrayLike, "*#works"]  # of a dimension or a sequence: one for all works, or one per work

PerPlan = Float[ArrayLike, "*#plans"]
Column = Float[Array, "*#plans"]  # an array even for one plan
PerGroup = Float[Array, "_groups *#plans"]  # per weight group of a layer
