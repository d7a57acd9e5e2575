"""``dsx layer``: everything that is derived from a layer definition, as text and as plain data.

Data has formulas, and their values where all sizes are known.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.load import Given, stated
from dsx.config.model_file import ELEMENT_BYTES, load_model
from dsx.errors import InputError, did_you_mean, file_path, one_text
from dsx.notation.expressions import Expression, combine, names, text, total
from dsx.notation.kernels import Multiply
from dsx.notation.library import check_settable, check_strategy, load_layer, load_operators, needs_strategy
from dsx.notation.model import amount, define, settings_of
from dsx.notation.recompute import recomputation
from dsx.notation.sharded_layer import Layer, local_size, widened
from dsx.notation.syntax import CORE_ATTENTION, REGIONS_BY_NAME, Settings
from dsx.notation.work import BACKWARD, FORWARD, Collective, DerivedLayer, KernelCosts, derive
from dsx.tables.format import table
from dsx.text import Data, DataView
from dsx.units import LARGEST_COUNT
from dsx.verbs.arguments import Answer, assignments, strategy_name
from dsx.verbs.job import DEFAULT_ASSUMPTIONS

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


_DIRECTIONS = ("forward", "backward")
_WORK = {"matrix_flops": "matrix FLOP", "vector_flops": "vector FLOP", "bytes": "bytes"}


def _shown(value: DataView) -> str:
    return value["formula"] if value["value"] is None else f"{value['value']:,}"


def _work_text(work: DataView, *further: str) -> str:
    parts = [f"{label} {_shown(work[key])}" for key, label in _WORK.items() if _shown(work[key]) != "0"]
    return "; ".join([*parts, *further]) or "-"


@dataclass(frozen=True, eq=False, repr=False)
class LayerDescription(Answer):
    """What dsx derives from a layer: operators, kernels, collectives, saved tensors, weights, rules."""

    described: DataView

    def _data(self) -> Data:
        return dict(self.described)

    def __str__(self) -> str:
        described = self.described
        title = described["layer"] + (f" under {described['strategy']}" if described["strategy"] else "")
        lines = [f"{title}; axes: {', '.join(described['axes']) or 'none'}"]
        for label, listed in (
            ("options set", [name for name, is_set in described["options"].items() if is_set]),
            ("options not set", [name for name, is_set in described["options"].items() if not is_set]),
            ("block parameters", [f"{parameter} = {block}" for parameter, block in described["blocks"].items()]),
        ):
            lines += [f"{label}: {', '.join(listed)}"] if listed else []
        lines.append("\noperators, with the local shape of each result:")
        for operator in described["operators"]:
            kernel = f"  [kernel {operator['kernel']}]" if operator["kernel"] != operator["name"] else ""
            for output in operator["outputs"]:
                lines.append(f"  {output['name']}{output['distribution']} = {operator['kind']}{kernel}")
                if output["local_shape"]:
                    lines.append(f"      local shape {' x '.join(map(str, output['local_shape']))}")
        lines.append("\nwork of each kernel (one microbatch):")
        for kernel in described["kernels"]:
            if kernel["counted"]:
                # All ranks of such an axis do the whole work, on replicated values or on partial sums.
                replicated = f"; not divided over {', '.join(kernel['replicated'])}" if kernel["replicated"] else ""
                lines.append(f"  {kernel['name']}{replicated}")
                lines += [f"      {direction:9}{_work_text(kernel[direction])}" for direction in _DIRECTIONS]
        lines.append("\ncollectives (one microbatch, volume in bytes on one GPU):")
        rows: list[list[str]] = []
        of_kernels = [(direction, kernel) for direction in _DIRECTIONS for kernel in described["kernels"]]
        for direction, moved in [(way, moved) for way, kernel in of_kernels for moved in kernel[way]["collectives"]]:
            copies = f" of {_shown(moved['copies'])} copies of a token" if moved["copies"] is not None else ""
            volume = f"{_shown(moved['bytes'])}{' in panels' if moved['panelled'] else ''}{copies}"
            rows.append([f"  {direction}", *(moved[key] for key in ("kind", "axis", "tensor")), volume])
        lines.append(table(["", "", "axis", "tensor", "bytes"], rows, text=range(4)) if rows else "  none")
        lines.append("\nsaved for the backward:")
        for kernel in described["kernels"]:
            lines += [f"  {saved['tensor']}: {_shown(saved['bytes'])} bytes" for saved in kernel["saved"]]
        lines.append(f"  in all {_shown(described['saved_bytes'])} bytes")
        if described["regions"]:
            lines.append("\nregions that can be recomputed: what each frees, and what the backward repeats:")
        for region in described["regions"]:
            moved = [f"{moved['kind']} of {moved['tensor']} over {moved['axis']}" for moved in region["collectives"]]
            lines.append(f"  {region['name']}: frees {_shown(region['freed_bytes'])} bytes")
            lines.append(f"      repeats  {_work_text(region, *moved)}")
        lines.append("\nweights, and the axes that reduce their gradients once a step:")
        for weight in described["weights"]:
            nested = "; one rank in ep has the same part" if weight["over_ep"] else ""
            axes = ", ".join(weight["reduced_over"]) or "none"
            lines.append(f"  {weight['name']}: {_shown(weight['bytes'])} bytes; {axes}{nested}")
        if described["rules"]:
            lines.append("\nrules of the strategy:")
        for rule in described["rules"]:
            broken = "" if rule["holds"] in (True, None) else "  (does not hold here)"
            lines.append(f"  {rule['reason']}: {rule['rule']}{broken}")
        return "\n".join(lines)


def layer(
    name: str | Path,
    *settings: str,
    strategy: str | None = None,
    sizes: Mapping[str, int] | Sequence[str] | None = None,
    model: Given | None = None,
    assumptions: Given = DEFAULT_ASSUMPTIONS,
) -> LayerDescription:
    """Show the work, collectives and memory that follow from a layer.

        dsx.layer("transformer", "gated", "qk_norm", model="llama-3-8b", sizes={"tp": 8, "s": 8192})

    Args:
        name: a layer or block, or a .layer file.
        settings: options, as in gated, and block parameters, as in ffn=experts; by default those of the first such
            layer of `model`.
        strategy: the strategy that fills in the roles; by default that of the assumption set.
        sizes: sizes of dimensions and degrees, as in {"tp": 8} or ["tp=8"]. A quantity is a number if all its
            dimensions have a size, else a formula.
        model: the model that gives the dimensions.
        assumptions: the assumption set.

    Raises UnknownNameError for an unknown name, NotationError for an invalid layer, InputError for an invalid
    setting or size.
    """
    request = stated_layer(name, settings, strategy, sizes, model, assumptions)
    reads, uncounted = request.assumptions.fused_backward_reads, request.assumptions.uncounted
    return LayerDescription(describe(request.layer, reads, uncounted, request.defaults, request.sizes))


class StatedLayer(NamedTuple):
    """A layer as arguments state it."""

    layer: Layer
    assumptions: AssumptionsSpec
    defaults: Mapping[str, int]  # sizes of a model, and of an element
    sizes: Mapping[str, int]  # that the arguments give


def stated_layer(
    name: str | Path,
    settings: Sequence[str],
    strategy: str | None,
    sizes: Mapping[str, int] | Sequence[str] | None,
    model: Given | None,
    assumptions: Given,
) -> StatedLayer:
    """Return a layer and its sizes; arguments and errors as of `layer`."""
    name = str(file_path("name", name))
    assumed = load_assumptions(assumptions)
    spec = load_model(model) if model is not None else None
    of_model = next((entry.layer for entry in (spec.sequence if spec else ()) if entry.kind == name), None)
    chosen = Settings(of_model.options, of_model.blocks) if of_model and not settings else _chosen(settings or [])
    inherited = settings_of(assumed.set)
    check_settable(inherited, f"assumption set {assumed.name!r}")
    overlay = strategy_name(strategy)
    if overlay is not None:
        check_strategy(overlay, None, "--strategy")
    elif needs_strategy(name, None, chosen | inherited):
        overlay = assumed.default_strategy
    loaded = load_layer(name, overlay, load_operators(assumed.operators), None, chosen, inherited)
    built = widened(loaded, assumed.sixteen_bit_weights)
    defaults: dict[str, int] = {name: getattr(assumed, name) for name in ELEMENT_BYTES}
    if spec:
        defaults |= spec.dimensions | {"s": spec.default_sequence_length, "b": 1}
        defaults |= dict.fromkeys((*built.axes, "panels"), 1)
    letters = {*derive(built).letters, *built.axes, "panels", "b", "s", *ELEMENT_BYTES}
    values: dict[str, int] = {}
    for assignment in assignments("sizes", sizes):
        letter, value, quoted = stated(assignment)
        if letter not in letters:
            raise InputError(
                f"--set {quoted}: layer {built.name!r} has no dimension or degree {letter!r}"
                f"{did_you_mean(letter, letters)} (it has {', '.join(sorted(letters))})"
            )
        if isinstance(value, str):
            value = int(value) if re.fullmatch("[0-9]{1,10}", value) else 0
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST_COUNT:
            counts = f"a whole number of at least 1 and at most {LARGEST_COUNT}"
            raise InputError(f"--set {quoted}: {letter} must be {counts}")
        values[letter] = value
    return StatedLayer(built, assumed, defaults, values)


def _chosen(settings: Sequence[str]) -> Settings:
    """Return the settings of texts such as ``gated`` and ``ffn=experts``."""
    for setting in settings:
        one_text("a setting of the layer", setting, "gated")
    pairs = [setting.partition("=") for setting in settings]
    for name, sign, block in pairs:
        if not name or (sign and not block):
            raise InputError(f"{name}{sign}{block} is no option, as gated is, nor a block parameter, as ffn=experts is")
    blocks = tuple((name, block) for name, sign, block in pairs if sign)
    return Settings(frozenset(name for name, sign, _ in pairs if not sign), blocks)
