"""``dsx layer``: everything that is derived from a layer text."""

import re
from typing import Annotated, Any

import typer

from dsx.cli import options
from dsx.cli.output import print_json, print_table
from dsx.errors import InputError, did_you_mean
from dsx.spec.quantities import LARGEST_COUNT

DIRECTIONS = ("forward", "backward")


def layer(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A layer or block: a name (dsx list layers) or a .layer file.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SETTING",
            help="Options, as in gated, and block parameters, as in ffn=experts [default: what --model sets for the "
            "first such layers].",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Strategy that fills in the roles [default, if there are any: what the assumption set says].",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=NUMBER", help="Size of a dimension or degree, as in tp=8, s=2048, b=1."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Model that gives the dimensions.")
    ] = None,
    assumptions: options.AssumptionSet = options.DEFAULT_ASSUMPTIONS,
    as_json: options.Json = False,
) -> None:
    """Show what follows from a layer: work, collectives, memory.

    That is: its options and block parameters, operators with their local shapes, FLOPs and bytes of each kernel,
    collectives, saved tensors, weights and the rules of the strategy. Quantities whose names all have a size are
    numbers; the others stay formulas.
    """
    from dsx.graph.description import describe
    from dsx.graph.library import check_settable, load_layer, load_operators, needs_strategy
    from dsx.graph.model import settings_of
    from dsx.graph.notation import Settings
    from dsx.spec.assumptions import load_assumptions
    from dsx.spec.model import load_model

    believed = load_assumptions(assumptions)
    spec = load_model(model) if model else None
    of_model = next((entry.layer for entry in (spec.sequence if spec else ()) if entry.kind == name), None)
    chosen = Settings(of_model.options, of_model.blocks) if of_model and not settings else _chosen(settings or [])
    inherited = settings_of(believed.set)
    check_settable(inherited, f"assumption set {believed.name!r}")
    overlay = strategy or (believed.default_strategy if needs_strategy(name, None, chosen | inherited) else None)
    built = load_layer(name, overlay, load_operators(believed.operators), None, chosen, inherited)
    values: dict[str, int] = {
        "activation_bytes": believed.activation_bytes,
        "weight_bytes": believed.weight_bytes,
        "gradient_bytes": believed.gradient_bytes,
    }
    if spec:
        values |= spec.dimensions | {"s": spec.default_sequence_length, "b": 1}
        values |= dict.fromkeys((*built.axes, "panels"), 1)
    described = describe(built, believed.fused_backward_reads, believed.uncounted, values, _sizes(assignments, built))
    if as_json:
        print_json(described)
    else:
        _print(described)


def _chosen(settings: list[str]) -> Any:
    """Return options and block parameters as they are given: ``gated ffn=experts``."""
    from dsx.graph.notation import Settings

    pairs = [setting.partition("=") for setting in settings]
    for name, sign, block in pairs:
        if not name or (sign and not block):
            raise InputError(f"{name}{sign}{block} is no option, as gated is, nor a block parameter, as ffn=experts is")
    blocks = tuple((name, block) for name, sign, block in pairs if sign)
    return Settings(frozenset(name for name, sign, _ in pairs if not sign), blocks)


def _sizes(assignments: list[str] | None, built: Any) -> dict[str, int]:
    from dsx.graph.derived import derive

    known = {
        *derive(built).letters,
        *built.axes,
        "panels",
        "b",
        "s",
        "activation_bytes",
        "weight_bytes",
        "gradient_bytes",
    }
    sizes: dict[str, int] = {}
    for assignment in assignments or ():
        name, _, value = assignment.partition("=")
        if name not in known:
            raise InputError(
                f"--set {assignment}: layer {built.name!r} has no dimension or degree {name!r}"
                f"{did_you_mean(name, known)} (it has {', '.join(sorted(known))})"
            )
        sizes[name] = int(value) if re.fullmatch("[0-9]{1,10}", value) else 0
        if not 1 <= sizes[name] <= LARGEST_COUNT:
            raise InputError(
                f"--set {assignment}: {name} must be a whole number of at least 1 and at most {LARGEST_COUNT}"
            )
    return sizes


def _shown(value: dict[str, Any]) -> str:
    return value["formula"] if value["value"] is None else f"{value['value']:,}"


def _print(described: dict[str, Any]) -> None:
    title = described["layer"] + (f" under {described['strategy']}" if described["strategy"] else "")
    print(f"{title}; axes: {', '.join(described['axes']) or 'none'}")
    for label, names in (
        ("options set", [name for name, is_set in described["options"].items() if is_set]),
        ("options not set", [name for name, is_set in described["options"].items() if not is_set]),
        ("block parameters", [f"{parameter} = {block}" for parameter, block in described["blocks"].items()]),
    ):
        if names:
            print(f"{label}: {', '.join(names)}")
    print("\noperators, with the local shape of each result:")
    for operator in described["operators"]:
        kernel = f"  [kernel {operator['kernel']}]" if operator["kernel"] != operator["name"] else ""
        for output in operator["outputs"]:
            print(f"  {output['name']}{output['distribution']} = {operator['kind']}{kernel}")
            if output["local_shape"]:
                print(f"      local shape {' x '.join(map(str, output['local_shape']))}")
    print("\nwork of each kernel (one microbatch):")
    for kernel in described["kernels"]:
        if not kernel["counted"]:
            continue
        # Ranks of such an axis have equal values or partial sums of them: as much work, and all of it either way.
        whole = f"; not divided over {', '.join(kernel['replicated'])}" if kernel["replicated"] else ""
        print(f"  {kernel['name']}{whole}")
        for direction in DIRECTIONS:
            work = kernel[direction]
            parts = [f"{label} {_shown(work[key])}" for key, label in _WORK if _shown(work[key]) != "0"]
            print(f"      {direction:9}{'; '.join(parts) or '-'}")
    print("\ncollectives (one microbatch, volume in bytes on one GPU):")
    rows = [
        [
            f"  {direction}",
            c["kind"],
            c["axis"],
            c["tensor"],
            _shown(c["bytes"]) + (" in panels" if c["panelled"] else ""),
        ]
        for direction in DIRECTIONS
        for kernel in described["kernels"]
        for c in kernel[direction]["collectives"]
    ]
    print_table(["", "", "axis", "tensor", "bytes"], rows, text=range(4)) if rows else print("  none")
    print("\nsaved for the backward:")
    for kernel in described["kernels"]:
        for saved in kernel["saved"]:
            print(f"  {saved['tensor']}: {_shown(saved['bytes'])} bytes")
    print(f"  in all {_shown(described['saved_bytes'])} bytes")
    print("\nweights, and the axes that reduce their gradients once a step:")
    for weight in described["weights"]:
        nested = "; one rank in ep has the same part" if weight["over_ep"] else ""
        axes = ", ".join(weight["reduced_over"]) or "none"
        print(f"  {weight['name']}: {_shown(weight['bytes'])} bytes; {axes}{nested}")
    if described["rules"]:
        print("\nrules of the strategy:")
        for rule in described["rules"]:
            broken = "" if rule["holds"] in (True, None) else "  (does not hold here)"
            print(f"  {rule['reason']}: {rule['rule']}{broken}")


_WORK = (("matrix_flops", "matrix FLOP"), ("vector_flops", "vector FLOP"), ("bytes", "bytes"))
