"""The shapes of arrays in the cost model: the names of their axes, and types for shapes that recur.

Layers are priced for `keys`, and those that differ in their shares of a fast domain alone share one of the `works`
(`dsx.cost.work.LayerWork`); axes of kernels, multiplies, collectives and weights are those of the layer. They match
exactly. A leading 2 is forward and backward, a leading 3 the modes of recomputation.

A step has one shape, `plans`, to which all that it is made of broadcasts: layer costs of [U, 1] keys with [1, G]
choices, [N] plans, or plain numbers, of one plan or for what all plans share.
"""

from dsx.records import Array, ArrayLike, Float, Real

PerKernel = Float[Array, "2 kernels works"]
PerMultiply = Float[Array, "multiplies works"]
PerMode = Float[Array, "3 works"]
PerWork = Float[Array, "works"]
PerKey = Float[Array, "keys"]
Size = Real[ArrayLike, "*#works"]  # of a dimension or a sequence: one for all works, or one for each

PerPlan = Float[ArrayLike, "*#plans"]
Column = Float[Array, "*#plans"]  # what is an array even for one plan
