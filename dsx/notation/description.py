"""A derived layer as plain data, for people and for JSON: formulas, and their values where all sizes are known."""

from collections.abc import Iterable, Mapping
from itertools import chain

from dsx.notation.expressions import Expression, combine, names, text, total
from dsx.notation.kernels import Multiply
from dsx.notation.model import amount, define
from dsx.notation.recompute import recomputation
from dsx.notation.sharded_layer import Layer, local_size
from dsx.notation.syntax import CORE_ATTENTION, REGIONS_BY_NAME
from dsx.notation.work import BACKWARD, FORWARD, Collective, DerivedLayer, KernelCosts, derive

Values = Mapping[str, int]
_AMOUNTS = {"matrix_flops": "matrix", "vector_flops": "vector", "bytes": "bytes"}


def describe(
    layer: Layer, fused_backward_reads: str, uncounted: Iterable[str], defaults: Values, sizes: Values
) -> dict[str, object]:
    """Return everything that dsx derives from a layer; `sizes` override `defaults`.

    A quantity is ``{"formula": "b*s*e", "value": number or null}``.
    """
    derived = derive(layer, fused_backward_reads, uncounted)
    values = define(derived, {**defaults, **sizes})
    selective = chain.from_iterable(recomputation(derived, frozenset({CORE_ATTENTION})).kept)
    kernel_of = {name: kernel.name for kernel in derived.kernels for name in kernel.operators}
    return {
        "layer": layer.name,
        "strategy": layer.strategy,
        "options": layer.options,
        "blocks": layer.blocks,
        "axes": list(layer.axes),
        "operators": [
            {
                "name": op.name,
                "kind": op.kind.name + (f"{{{op.modifier}}}" if op.modifier else ""),
                "kernel": kernel_of[op.name],
                "inputs": [f"{arg.tensor}{arg.distribution}" for arg in op.arguments],
                "outputs": [_tensor(layer, name, values) for name in op.outputs],
            }
            for op in layer.operators
        ],
        "kernels": [_kernel(kernel, values) for kernel in derived.kernels],
        "weights": [
            {
                "name": weight.name,
                "bytes": _quantity(weight.bytes, values),
                "reduced_over": [*(["dp"] if weight.over_dp else []), *weight.reduced_over],
                "over_ep": weight.over_ep,
            }
            for weight in derived.weights
        ],
        "saved_bytes": _quantity(total(kernel.saved_bytes for kernel in derived.kernels), values),
        "saved_bytes_selective": _quantity(total(saved.bytes for saved in selective), values),
        "saved_bytes_full": _quantity(derived.input_bytes, values),
        "regions": [_region(derived, name, values) for name in derived.region_names],
        "boundary_bytes": _quantity(derived.boundary_bytes, values),
        "rules": [
            {
                "reason": rule.reason,
                "rule": f"{text(rule.left)} {rule.relation} {text(rule.right)}",
                # None where a name in it has no size
                "holds": bool(rule.holds(values)) if rule.names <= values.keys() else None,
            }
            for rule in derived.rules
        ],
    }


def _quantity(expr: Expression, values: Values) -> dict[str, object]:
    has_sizes = names(expr) <= values.keys()
    return {"formula": text(expr), "value": amount(expr, values) if has_sizes else None}


def _tensor(layer: Layer, name: str, values: Values) -> dict[str, object]:
    distribution = layer.tensors[name].distribution
    local = [_quantity(local_size(dim), values)["value"] for dim in distribution.dims]
    return {
        "name": name,
        "distribution": str(distribution),
        "local_shape": None if None in local else local,
    }


def _kernel(kernel: KernelCosts, values: Values) -> dict[str, object]:
    return {
        "name": kernel.name,
        "operators": list(kernel.operators),
        "counted": kernel.runs,
        "replicated": list(kernel.replicated),
        "recompute": [name for name, _ in kernel.regions],
        "forward": _direction(kernel, FORWARD, values),
        "backward": _direction(kernel, BACKWARD, values),
        "saved": [
            {"tensor": " ".join(saved.key).strip(), "bytes": _quantity(saved.bytes, values)} for saved in kernel.saved
        ],
    }


def _region(layer: DerivedLayer, name: str, values: Values) -> dict[str, object]:
    """Return what recomputation of all regions of one name frees, and what the backward then repeats."""
    states = recomputation(layer, frozenset()), recomputation(layer, frozenset({name}))
    kept = [{saved.key: saved.bytes for listed in state.kept for saved in listed} for state in states]
    freed, added = (total(size for key, size in kept[state].items() if key not in kept[1 - state]) for state in (0, 1))
    repeated = [layer.kernels[index] for index in states[1].repeated]
    completed = [layer.kernels[index] for index in states[1].completed]
    return {
        "name": name,
        "megatron_lm": REGIONS_BY_NAME[name].megatron_lm,
        "kernels": [kernel.name for kernel in repeated],
        "freed_bytes": _quantity(combine("-", freed, added), values),
        **{
            key: _quantity(total(getattr(kernel.work[FORWARD], field) for kernel in repeated), values)
            for key, field in _AMOUNTS.items()
        },
        "collectives": [
            _collective(collective, values)
            for kernel in (*repeated, *completed)
            for collective in kernel.collectives[FORWARD]
        ],
    }


def _direction(kernel: KernelCosts, direction: int, values: Values) -> dict[str, object]:
    work = kernel.work[direction]
    return {
        **{key: _quantity(getattr(work, field), values) for key, field in _AMOUNTS.items()},
        "multiplies": [_multiply(multiply, values) for multiply in work.multiplies],
        "collectives": [_collective(collective, values) for collective in kernel.collectives[direction]],
    }


def _multiply(multiply: Multiply, values: Values) -> dict[str, object]:
    sizes = {name: _quantity(getattr(multiply, name), values) for name in ("rows", "columns", "contracted", "batch")}
    return {**sizes, "matrix_flops": _quantity(multiply.flops, values), "linear": multiply.linear}


def _collective(collective: Collective, values: Values) -> dict[str, object]:
    return {
        "kind": collective.kind,
        "axis": collective.axis,
        "tensor": collective.tensor,
        "bytes": _quantity(collective.bytes, values),
        "panelled": collective.panelled,
        "copies": None if collective.copies is None else _quantity(collective.copies.choices, values),
    }
