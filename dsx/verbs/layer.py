"""``dsx layer``: everything that is derived from a layer definition."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dsx.config.assumption_set import AssumptionsSpec, load_assumptions
from dsx.config.load import Given, stated
from dsx.config.model_file import ELEMENT_BYTES, load_model
from dsx.errors import InputError, did_you_mean, file_path, one_text
from dsx.notation.description import describe
from dsx.notation.library import check_settable, check_strategy, load_layer, load_operators, needs_strategy
from dsx.notation.model import settings_of
from dsx.notation.sharded_layer import Layer, widened
from dsx.notation.syntax import Settings
from dsx.notation.work import derive
from dsx.tables.format import table
from dsx.text import Data, DataView
from dsx.units import LARGEST_COUNT
from dsx.verbs.arguments import Answer, assignments, strategy_name
from dsx.verbs.job import DEFAULT_ASSUMPTIONS

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
        for label, names in (
            ("options set", [name for name, is_set in described["options"].items() if is_set]),
            ("options not set", [name for name, is_set in described["options"].items() if not is_set]),
            ("block parameters", [f"{parameter} = {block}" for parameter, block in described["blocks"].items()]),
        ):
            lines += [f"{label}: {', '.join(names)}"] if names else []
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
