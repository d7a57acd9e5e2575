"""Studies: a sweep consists of studies, and each study has one space.

Integer properties of the hardware, such as the size of a fast domain, decide the space. So each cluster and each
combination of integer values is a study of its own, and a very large space is divided into several studies. Real-valued
properties of the hardware points are leaves [H]; the candidates are the same at all points.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from dsx.hardware.cluster import anonymous, network_from_spec
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows
from dsx.pricing.rows import joined
from dsx.search.space import Space, of_used_keys
from dsx.space.boxes import Limitation, Selection
from dsx.space.enumerate import Arrays
from dsx.spec.cluster import changed_network
from dsx.spec.what_if import WhatIf, field

_ASSUMPTIONS, _NETWORK = "assumptions.", "network."
_SLOWDOWN = f"{_ASSUMPTIONS}kernel_slowdown"
_KEYS = 1 << 19  # shard keys of a study; this bounds the memory of a large sweep


@dataclass(frozen=True, slots=True)
class Study:
    """One space, at H hardware points of one cluster."""

    problem: Problem
    space: Space
    cluster: int  # position among the clusters of the sweep
    values: Mapping[str, np.ndarray]  # {field of what_if: [H]}

    @property
    def size(self) -> int:
        """Candidates times hardware points."""
        return self.space.size * self.problem.num_points

    def rows(self, start: int, stop: int) -> Rows:
        """Return the rows from `start` up to `stop`: all candidates at the first hardware point, then at the next."""
        points: list[np.ndarray] = []
        positions: list[np.ndarray] = []
        choices: list[Arrays] = []
        point, first = divmod(start, self.space.size)
        for before in range(point * self.space.size, stop, self.space.size):
            keys, chosen = self.space.blocks.rows(first, min(stop - before, self.space.size))
            points.append(np.full(len(keys), before // self.space.size))
            positions.append(keys)
            choices.append(chosen)
            first = 0
        return Rows(np.concatenate(points), np.concatenate(positions), joined(choices))


def make_studies(
    problems: Sequence[Problem],
    what_if: WhatIf,
    num_gpus: Sequence[int],
    global_batch_size: Sequence[int],
    fix: Selection | None = None,
    limit: Limitation | None = None,
) -> list[Study]:
    """Return the studies of a sweep; `problems` has one problem for each cluster."""
    problems = [problem.searching(fix or {}) for problem in problems]
    columns = dict(zip(what_if.fields, zip(*what_if.points, strict=True), strict=True))
    values = {path: np.array(column, dtype=_kind(path)) for path, column in columns.items()}
    integers = [path for path in values if field(path).integer]
    shapes = np.stack([values[path] for path in integers]) if integers else np.zeros((1, len(what_if.points)), int)
    found: list[Study] = []
    spaces: dict[object, list[Space]] = {}  # by the properties of hardware and framework that they depend on
    for code, problem in enumerate(problems):
        for integer in dict.fromkeys(map(tuple, shapes.T.tolist())):
            here = np.flatnonzero((shapes.T == integer).all(axis=1))
            changed = at_points(problem, {path: column[here] for path, column in values.items()})
            network = changed.cluster.network
            tiers = tuple((tier.name, tier.size) for tier in network.middle)
            shape = (network.nvs.size, tiers, network.tiers[-1].size, problem.boxes)
            if shape not in spaces:
                (space,) = of_used_keys(changed, [Space(changed, num_gpus, global_batch_size, fix, limit)])
                spaces[shape] = space.split(_KEYS)
            at = {path: column[here] for path, column in values.items()}
            found += [Study(changed, space, code, at) for space in spaces[shape]]
    return found


def _kind(path: str) -> type:
    return np.int64 if field(path).integer else np.float64


def at_points(problem: Problem, values: Mapping[str, np.ndarray]) -> Problem:
    """Return a problem of one hardware point at H other points: `values` has [H] values of fields, in SI units.

    Integer fields must have a single value. The tiers of a changed network are derived again.
    """
    count = len(next(iter(values.values()))) if values else 1
    hardware, assumptions = jax.tree.map(lambda leaf: np.repeat(leaf, count), (problem.hardware, problem.assumptions))
    networks = [path for path in values if path.startswith(_NETWORK)]
    for path, column in values.items():
        if path == _SLOWDOWN:  # beside the effects of the stack and of the devices, which stay
            column = column * (problem.assumptions.kernel_slowdown / problem.assumptions_spec.kernel_slowdown)
        if path.startswith(_ASSUMPTIONS):
            assumptions = _set(assumptions, [path.removeprefix(_ASSUMPTIONS)], column)
        elif path not in networks:
            hardware = _set(hardware, path.split("."), column)
    # A stated value holds for every plan.
    open_conditions = [one for one in assumptions.conditions if f"{_ASSUMPTIONS}{one.field}" not in values]
    assumptions = replace(assumptions, conditions=tuple(open_conditions))
    cluster, network = problem.cluster, problem.network
    if networks:
        specs = [
            changed_network(network, {path.removeprefix(_NETWORK): values[path][point].item() for path in networks})
            for point in range(count)
        ]
        machines = [replace(cluster, network=network_from_spec(spec)) for spec in specs]
        made = [anonymous(machine).network for machine in machines]
        network, cluster = specs[0], machines[0]
        hardware = replace(hardware, network=jax.tree.map(lambda *leaves: np.array(leaves), *made))
    return replace(problem, network=network, cluster=cluster, hardware=hardware, assumptions=assumptions)


def _set(record: Any, path: Sequence[str], value: Any) -> Any:
    """Return a record with the nested field at `path` set."""
    name, *rest = path
    return replace(record, **{name: _set(getattr(record, name), rest, value) if rest else value})


def points_of(study: Study, first: int, last: int) -> Study:
    """Return the study at its hardware points from `first` up to `last`."""
    hardware, assumptions = jax.tree.map(
        lambda leaf: leaf[first:last], (study.problem.hardware, study.problem.assumptions)
    )
    return replace(
        study,
        problem=replace(study.problem, hardware=hardware, assumptions=assumptions),
        values={path: column[first:last] for path, column in study.values.items()},
    )
