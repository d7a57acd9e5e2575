"""The work of the operators of torch (ATen), by their names: multiplies, and how each may be fused.

A convolution is a multiply of its windows by its filters, padding included. Attention is one fused kernel. What torch
tags as pointwise is elementwise; what changes strides alone, such as a transpose, is a view.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dsx.operator_placement.graph_sources.traced_step import Multiply, Role

_VIEWS = {
    *("view", "_unsafe_view", "_reshape_alias", "reshape", "t", "transpose", "permute", "squeeze", "unsqueeze"),
    *("alias", "detach", "flatten", "unflatten", "view_as", "as_strided", "lift_fresh_copy", "numpy_T"),
}
_PARTS = {"select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind", "diagonal"}
# What these make depends on no element of their arguments, but for an expansion.
_FILLS = {"full", "zeros", "ones", "empty", "arange", "scalar_tensor", "new_zeros", "new_ones", "new_full", "new_empty"}
_FILLS |= {"full_like", "zeros_like", "ones_like", "empty_like"}
_REDUCTIONS = {"sum", "mean", "amax", "amin", "max", "min", "prod", "argmax", "argmin", "all", "any", "var", "std"}
_REDUCTIONS |= {"var_mean", "logsumexp", "linalg_vector_norm"}
_COPIES = {"clone", "_to_copy", "copy", "copy_", "cat", "stack", "constant_pad_nd", "contiguous", "flip"}
_CONVOLUTIONS = {"convolution", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))}
# Results with the elements that are read of the first argument, in place of all.
_LOOKED_UP = {"embedding", "index", "gather", "index_select"}


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor of a graph of torch."""

    sizes: tuple[int, ...]
    element_bytes: int

    @property
    def elements(self) -> float:
        """The number of its elements."""
        return float(prod(self.sizes))

    @property
    def num_bytes(self) -> float:
        """Its bytes."""
        return self.elements * self.element_bytes


def role_of(name: str, pointwise: bool) -> Role:
    """Return how an operator may be fused."""
    if name in _VIEWS:
        return "view"
    if name in _PARTS:
        return "part"
    if name == "expand" or name in _FILLS:
        return "spread"
    if name in _REDUCTIONS:
        return "reduction"
    return "elementwise" if pointwise or name in _COPIES else "alone"


def reads_nothing(name: str) -> bool:
    """Return whether an operator reads no element of its arguments."""
    return name in _FILLS


def looks_up(name: str) -> bool:
    """Return whether an operator reads of its first argument what it makes alone."""
    return name in _LOOKED_UP


def multiplies_of(
    name: str, arguments: Sequence[Shape | None], results: Sequence[Shape | None], transposed: bool = False
) -> tuple[Multiply, ...]:
    """Return the multiplies of an operator; `arguments` has None for what is no tensor.

    `transposed` says that a convolution is one, by an argument.
    """
    given = [argument.sizes for argument in arguments if argument is not None]
    made = [None if result is None else result.sizes for result in results]
    try:
        if name in ("mm", "bmm", "matmul", "_scaled_mm", "_int_mm"):
            return (_product(given[0], given[1]),)
        if name in ("addmm", "baddbmm"):
            return (_product(given[1], given[2]),)
        if name == "linear":
            return (_product(given[0], given[1][::-1]),)
        if name in _CONVOLUTIONS and made[0]:
            transposed = transposed or "transpose" in name
            few, many = (given[0], made[0]) if transposed else (made[0], given[0])
            return (_convolution(few, many, given[1], transposed),)
        if name == "convolution_backward":
            gradient, taken, weight = given[:3]
            few, many = (taken, gradient) if transposed else (gradient, taken)
            return _convolution_gradients(few, many, weight, (made[0] is not None, made[1] is not None), transposed)
        if "dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
            return _attention_gradients(*given[:4]) if "backward" in name else _attention(*given[:3])
    except (IndexError, TypeError, ValueError):  # an operator of that name with other arguments
        return ()
    return ()


def _multiply(rows: float, columns: float, contracted: float, batch: float, kind: str = "") -> Multiply:
    flops = 2.0 * rows * columns * contracted * batch
    return Multiply(rows, columns, contracted, batch, flops, bool(kind), kind == "backward")


def _product(left: Sequence[int], right: Sequence[int]) -> Multiply:
    """Return a multiply of stacks of matrices; a stack by one matrix is one multiply of more rows."""
    columns = right[-1] if len(right) > 1 else 1
    if len(right) <= 2:
        return _multiply(prod(left[:-1]), columns, left[-1], 1)
    stack = max(prod(left[:-2]), prod(right[:-2]))
    return _multiply(left[-2] if len(left) > 1 else 1, columns, left[-1], stack)


def _convolution(few: Sequence[int], many: Sequence[int], weight: Sequence[int], transposed: bool) -> Multiply:
    """Return the multiply of a convolution of `many` to `few`; a transposed one makes `many` of `few`.

    Weights are (channels of `few`, channels of `many` in a group, window).
    """
    pixels, groups = few[0] * prod(few[2:]), many[1] // weight[1]
    inside, outside = prod(weight[1:]), weight[0] / groups
    return _multiply(pixels, inside, outside, groups) if transposed else _multiply(pixels, outside, inside, groups)


def _convolution_gradients(
    few: Sequence[int], many: Sequence[int], weight: Sequence[int], wanted: tuple[bool, bool], transposed: bool
) -> tuple[Multiply, ...]:
    """Return the multiplies for the gradients of the input and of the weights that are `wanted`."""
    pixels, groups = few[0] * prod(few[2:]), many[1] // weight[1]
    of_input = _convolution(few, many, weight, not transposed)
    of_weights = _multiply(prod(weight[1:]), weight[0] / groups, pixels, groups)
    return tuple(one for one, is_wanted in zip((of_input, of_weights), wanted, strict=True) if is_wanted)


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> tuple[Multiply, ...]:
    heads, queries, width, keys = prod(query[:-2]), query[-2], query[-1], key[-2]
    return (
        _multiply(queries, keys, width, heads, "forward"),
        _multiply(queries, value[-1], keys, heads, "forward"),
    )


def _attention_gradients(
    gradient: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int]
) -> tuple[Multiply, ...]:
    """Return the multiplies back, of which the first computes the scores again."""
    heads, queries, width, keys = prod(query[:-2]), query[-2], query[-1], key[-2]
    return (
        _multiply(queries, keys, width, heads, "backward"),
        _multiply(queries, keys, gradient[-1], heads, "backward"),
        _multiply(keys, value[-1], queries, heads, "backward"),
        _multiply(queries, width, keys, heads, "backward"),
        _multiply(keys, width, queries, heads, "backward"),
    )
