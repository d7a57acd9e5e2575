"""The graph of a step of JAX: its jaxpr, which is traced without memory, as kernels.

Calls are flattened, scans of known length are unrolled, and operators that work element by element are fused as XLA
does (`elementwise_fusion`). A loop of unknown length (while) and a branch (cond) are one operator each. Edges carry
tensors: two readers of a variable take the same one. Numbers in the program text, and arguments of one element, have no
edges. An operator has the name of its primitive and a number, behind the named scopes around it: "mlp/dot_general.12".

Where a step returns a container of arrays like that of an argument, as in (params, batch) -> (params, loss), it is the
new value of the argument: each of its arrays shares the device of the one that it replaces.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from dsx.errors import DsxError, InputError
from dsx.operator_placement.graph_sources.jaxpr_flattening import FlatJaxpr, flattened
from dsx.operator_placement.graph_sources.jaxpr_work import step_of
from dsx.operator_placement.graph_sources.kernel_pricing import DEFAULT_ASSUMPTIONS, DEFAULT_CLUSTER, pricing_of
from dsx.operator_placement.graph_sources.traced_graph import graph_of_step
from dsx.operator_placement.graph_sources.traced_step import TracedStep
from dsx.operator_placement.op_graph import OpGraph
from dsx.spec.load import Given


def from_jax(
    step: Callable[..., Any],
    *shapes: Any,
    device: Given = DEFAULT_CLUSTER,
    assumptions: Given = DEFAULT_ASSUMPTIONS,
) -> OpGraph:
    """Return the graph of a step; its seconds are those of the roofline.

        graph = dsx.place.from_jax(step, params, jax.ShapeDtypeStruct((32, 128), "int32"))

    Args:
        step: a function of arrays, which is traced and not run.
        shapes: its arguments: arrays or `jax.ShapeDtypeStruct`, and containers of these.
        device: the cluster whose device runs the operators, by its name, its file or its content.
        assumptions: the assumption set of the roofline.

    Raises InputError for what is no function, cannot be traced with these shapes, or computes nothing.
    """
    pricing = pricing_of(device, assumptions)
    return graph_of_step(traced(step, shapes)[0], pricing)


def traced(step: Callable[..., Any], shapes: Sequence[Any]) -> tuple[TracedStep, FlatJaxpr]:
    """Return the operators of a step, and the equations that they are; raises InputError."""
    name = getattr(step, "__name__", f"{step!r:.60}")
    if not callable(step):
        raise InputError(f"{name}: {type(step).__name__} is given, and a step, a function of arrays, is wanted")
    try:
        closed, made = jax.make_jaxpr(step, return_shape=True)(*shapes)
    except DsxError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"step {name} cannot be traced with the given shapes: {type(error).__name__}: {first}"
        ) from None
    flat = flattened(closed)
    if not flat.equations:
        raise InputError(f"step {name} computes nothing of its arguments")
    return step_of(flat, _names(shapes), _updates(shapes, made)), flat


def _names(shapes: Sequence[Any]) -> list[str]:
    """Return the names of the arguments: the position, and the keys inside of it."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tuple(shapes))[0]]
    return [f"input.{jax.tree_util.keystr(path, simple=True, separator='/')}" for path in paths]


def _updates(shapes: Sequence[Any], made: Any) -> dict[int, int]:
    """Return results by the arguments that they are new values of, both by the positions of their arrays."""
    results = made if isinstance(made, tuple | list) else (made,)
    free = _places(results)
    found: dict[int, int] = {}
    for structure, places in _places(shapes):
        match = next((each for each in free if each[0] == structure), None)
        if match is not None:
            free.remove(match)
            found |= dict(zip(places, match[1], strict=True))
    return found


def _places(trees: Sequence[Any]) -> list[tuple[Any, range]]:
    """Return the structure of each container with the shapes in it, and the positions of its arrays."""
    found: list[tuple[Any, range]] = []
    first = 0
    for tree in trees:
        leaves, structure = jax.tree_util.tree_flatten(tree)
        places = range(first, first + len(leaves))
        first += len(leaves)
        if leaves and not jax.tree_util.treedef_is_leaf(structure):
            shapes = tuple((jax.numpy.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)
            found.append(((structure, shapes), places))
    return found
