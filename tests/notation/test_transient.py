"""The transient memory of a kernel: gradients that it reads and makes, or that kernels before it wait for."""

import pytest
from notation.definitions import BYTES, derived

from dsx.notation.expressions import evaluate

GATED = """
layer gated-feed-forward
input  x[b, s/tp, e]
weight w1[e, f/tp] wup[e, f/tp] w2[f/tp, e]
z[b, s, f/tp]         = einsum(x[b, s, e]~, w1)
up[b, s, f/tp]        = einsum(x[b, s, e]~, wup)
u[b, s, f/tp]         = swiglu(z, up)
y[b, s, e @tp]        = einsum(u, w2)
output[b, s/tp, e]    = add(x, y[b, s/tp, e])
"""
WHOLE, WIDE = 2 * 3 * 64 * 8, 2 * 3 * 64 * 40  # bytes of all tokens, of the hidden size and of the inner one


@pytest.mark.parametrize("tp", [1, 4])
def test_gradients_count_until_the_last_kernel_has_read_them(tp):
    """The residual connection waits for the gradient of `output`, of which the multiply reads a gathered copy."""
    sizes = {"b": 3, "s": 64, "e": 8, "f": 40, "tp": tp, **BYTES}
    found = {kernel.name: evaluate(kernel.transient_bytes, sizes) for kernel in derived(GATED).kernels}
    wide, again = WIDE // tp, WHOLE if tp > 1 else 0  # a tensor gathered again, if it is divided
    assert found == {
        "output": 0,  # both arguments have the gradient of the result
        "y": WHOLE // tp + again + wide,
        "u": WHOLE // tp + 3 * wide,
        "up": WHOLE // tp + 2 * wide + again + WHOLE,  # that of z waits
        "z": WHOLE // tp + wide + again + 2 * WHOLE,  # that of x from up waits to be added
    }
