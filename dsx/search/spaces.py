"""The space of a search: its bounds, its key table, its blocks, and the layer costs of its keys; and studies of sweeps.

Every search streams through a space with the layer costs of its shard keys.

A sweep consists of studies, and each study has one space. Integer properties of the hardware, such as the size of a
fast domain, decide the space. So each cluster and each combination of integer values is a study of its own, and a very
large space is divided into several studies. Real-valued properties of the hardware points are leaves [H]; the
candidates are the same at all points.

A search for the fastest plan needs few values of `recompute`. A step takes no less time and memory if its layers do. So
a value is dropped if another one recomputes no longer, keeps no more and holds no more meanwhile, for every kind of
layer at every shard key and hardware point, and loses no effect of the software. It is never the only value of a
fastest plan.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from dsx.arrays import Chosen, PerPlan, PlanBools, PlanFloats
from dsx.config.cluster_file import anonymous, network_from_spec
from dsx.config.topology import changed_network
from dsx.config.what_if import WhatIf, varied_field
from dsx.cost.cut_bounds import (
    KeySeconds,
    LooseBound,
    StoringSeconds,
    key_seconds,
    least_even_s,
    least_passes_s,
    storing_seconds,
)
from dsx.cost.layer import BY_MODE, PASSES, LayerCosts, PassCosts
from dsx.cost.offload import ACTIVATIONS, offload_codes, transfer_s
from dsx.errors import SpecError
from dsx.plans.blocks import Blocks
from dsx.plans.choices import BY_NAME, CHOICE_COLUMNS, FULL_CODE, KEY_COLUMNS, NONE_CODE, SEARCHED_COLUMNS, VALUES
from dsx.plans.enumerate import Arrays, Keys, SpaceBounds, shard_keys, take
from dsx.plans.frameworks import Limitation, Selection, compatible, selecting
from dsx.plans.placement import units
from dsx.plans.rules import EVEN
from dsx.pricing.cuts import joined, no_rows, price_best_cuts, priced_rows, result_rows
from dsx.pricing.keys import KeyCosts, PointCosts, first_of_each_plan, price_keys
from dsx.pricing.probe import may_take
from dsx.pricing.problem import Problem
from dsx.pricing.row_costs import Rows
from dsx.records import Bool, Over, Real, tree_map

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Space:
    """All candidates of a problem at given GPU counts and batch sizes, as keys and blocks.

    `keys` are those of another space that differs in its cuts, its searched values or its limits of choices alone.
    """

    def __init__(
        self,
        problem: Problem,
        num_gpus: Sequence[int],
        global_batch_size: Sequence[int],
        fix: Selection | None = None,
        limit: Limitation | None = None,
        keys: Keys | None = None,
    ) -> None:
        problem.check_sizes(num_gpus)
        fixed = _searched_only(fix or {}, problem)
        limited = dict(limit or {})
        for column in limited:
            if fault := fault_of_limit(column):
                raise SpecError(f"limit: {fault}")
        self.bounds = SpaceBounds(
            num_gpus=tuple(num_gpus),
            global_batch_size=tuple(global_batch_size),
            sequence_length=problem.sequence_length,
            limits=problem.limits(),
            searched=problem.workload.searched,
            keep_keys=selecting(KEY_COLUMNS, fixed, limited),
            keep_choices=selecting(CHOICE_COLUMNS, fixed, limited),
            expert_axes=problem.expert_axes,
            tiers=tuple(tier.name for tier in problem.cluster.network.middle),
            units=units(problem.cluster.network),
            boxes=problem.boxes,
        )
        if keys is None:
            dimensions = problem.model.dimensions
            keys = shard_keys([(kinds, dimensions) for kinds in problem.kinds], self.bounds)
        self.keys: Keys = keys
        self.strategies_before: frozenset[int] = frozenset()  # those with plans before each plan was left to the first

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks, with all candidates in a fixed order."""
        return Blocks(self.keys, self.bounds)

    @property
    def size(self) -> int:
        """The number of candidates."""
        return self.blocks.size

    def searching(self, problem: Problem) -> "Space":
        """Return the space with the searched values of `problem`, which are some of its own, of choices of the step."""
        part = copy(self)
        part.bounds = replace(self.bounds, searched=problem.workload.searched)
        vars(part).pop("blocks", None)  # the blocks of all values, if they were made
        return part

    def placed(self, node_size: int, in_rank_order: bool, otherwise: bool = False) -> "Space":
        """Return the space of the plans that need the fewest domains and nodes, or of those that are in rank order too.

        Nodes have `node_size` GPUs, and all but the last are full. That divides the size of a fast domain. With
        `otherwise` it is the space of all plans but these.
        """
        part = copy(self)
        limits = replace(self.bounds.limits, node_size=node_size, in_rank_order=in_rank_order, otherwise=otherwise)
        part.bounds = replace(self.bounds, limits=limits)
        vars(part).pop("blocks", None)
        return part

    def split(self, num_keys: int) -> "list[Space]":
        """Return spaces of at most `num_keys` shard keys each that together have all candidates."""
        count = len(self.keys["tp"])
        if count <= num_keys:
            return [self]
        starts = range(0, count, num_keys)
        return [self.of_keys(take(self.keys, slice(start, start + num_keys))) for start in starts]

    def of_keys(self, keys: Keys) -> "Space":
        """Return the space of other keys."""
        part = copy(self)
        part.keys = keys
        for cached in ("blocks", "strategies"):  # of the keys before
            vars(part).pop(cached, None)
        return part

    def table(self, problem: Problem) -> KeyCosts:
        """Return the layer costs of the shard keys at all hardware points of a problem that has the candidates."""
        return price_keys(problem, self.keys, self.bounds.uneven)

    @cached_property
    def strategies(self) -> frozenset[int]:
        """The codes of the strategies of all candidates."""
        return frozenset(np.unique(self.keys["strategy"][self.blocks.keys]).tolist())


class StrategiesOfCandidates(NamedTuple):
    """Strategies by their codes."""

    own: frozenset[int]  # those with candidates
    with_others: frozenset[int]  # the same before each plan was left to the first strategy that has it


def strategies_of(spaces: Sequence[Space]) -> StrategiesOfCandidates:
    """Return the strategies of all candidates of some spaces."""
    own, with_others = ([getattr(space, name) for space in spaces] for name in ("strategies", "strategies_before"))
    return StrategiesOfCandidates(frozenset().union(*own), frozenset().union(*with_others))


def used_keys(spaces: Sequence[Space]) -> Chosen:
    """Return the positions of the keys of which any of some spaces, which share them, has candidates, increasing."""
    return np.unique(np.concatenate([space.blocks.keys for space in spaces]))


def of_used_keys(problem: Problem, spaces: Sequence[Space]) -> list[Space]:
    """Return spaces that share their keys without those that no candidate has.

    Where the problem is `merged`, they are also without those that are the plan of an earlier strategy.
    """
    keys = take(spaces[0].keys, used_keys(spaces))
    if problem.merged:
        keys = first_of_each_plan(problem, keys)
    all_used = len(keys["tp"]) == len(spaces[0].keys["tp"])
    used_spaces = [copy(space) if all_used else space.of_keys(keys) for space in spaces]
    for space, original in zip(used_spaces, spaces, strict=True):
        space.strategies_before = original.strategies
    return used_spaces


def _searched_only(fix: Selection, problem: Problem) -> dict[str, Sequence[int | str]]:
    """Return the fixed columns, names as codes; raises SpecError for a column that is not searched."""
    result: dict[str, Sequence[int | str]] = {}
    for column, values in fix.items():
        if fault := fault_of_fix(column, values):
            raise SpecError(f"fix: {fault}")
        result[column] = values
        if column in SEARCHED_COLUMNS:
            result[column] = [BY_NAME[column].code(value) for value in values]
            searched = getattr(problem.workload.searched, column)
            if searched and (wrong := set(result[column]) - set(searched)):
                raise SpecError(f"fix: {column} = {min(wrong)} is not a choice of this problem: see Problem.searching")
    return result


def fault_of_fix(column: str, values: Sequence[int | str]) -> str:
    """Return why a column cannot be fixed to these values, whatever the other settings; empty if it can."""
    if column not in (*KEY_COLUMNS, *CHOICE_COLUMNS):
        return f"{column!r} is not a searched choice, so it cannot be fixed"
    if column in SEARCHED_COLUMNS:
        try:
            [BY_NAME[column].code(value) for value in values]
        except SpecError as error:
            return str(error)
    elif words := [value for value in values if isinstance(value, str)]:
        return f"{column} = {words[0]!r} must be a whole number"
    return ""


def fault_of_limit(column: str) -> str:
    """Return why a column cannot be limited; empty if it can."""
    searched = column in (*KEY_COLUMNS, *CHOICE_COLUMNS)
    return "" if searched else f"{column!r} is not a searched choice, so it cannot be limited"


@dataclass(frozen=True, slots=True)
class PricedSpace:
    """A space of a problem with its layer costs, and the precision of a search through it."""

    problem: Problem
    space: Space
    table: KeyCosts  # of the key table, in float64
    precision: str  # "float32" or "float64"
    unrestricted: Problem | None = None  # with all values of what is searched last; None: `problem` has them

    @property
    def whole_problem(self) -> Problem:
        """The problem with all searched values of the choices that are searched last."""
        return self.unrestricted or self.problem

    @property
    def float64(self) -> bool:
        """Whether the search runs in float64; otherwise it runs in float32."""
        return self.precision == "float64"

    @property
    def dtype(self) -> type:
        """The NumPy type of the search."""
        return np.float64 if self.float64 else np.float32

    def of_keys(self, where: Chosen) -> "PricedSpace":
        """Return the space of some of the shard keys."""
        table = tree_map(lambda leaf: np.asarray(leaf)[..., where], self.table)
        return replace(self, space=self.space.of_keys(take(self.space.keys, where)), table=table)

    def with_memory(self, usable: float) -> "PricedSpace":
        """Return the space on GPUs of which a plan may take `usable` [bytes]."""

        def limited(problem: Problem) -> Problem:
            capacity = np.array([usable * (1.0 + problem.assumptions_spec.memory_margin)])
            device = replace(problem.hardware.device, hbm_capacity=capacity)
            return replace(problem, hardware=replace(problem.hardware, device=device))

        return replace(
            self, problem=limited(self.problem), unrestricted=self.unrestricted and limited(self.unrestricted)
        )

    @property
    def with_even_cuts(self) -> "PricedSpace":
        """The space with even cuts, and with all values of the choices that are searched last."""
        return replace(self, problem=self.whole_problem.with_partition(EVEN), unrestricted=None)

    def priced_rows(self, rows: Rows) -> Arrays:
        """Return all columns of rows, priced in float64."""
        return priced_rows(self.problem, self.space.keys, self.table, rows)

    def fastest_rows(self, rows: Rows) -> Arrays:
        """Return all columns of rows, priced in float64, each with the fastest cut that fits.

        What a row that fits with no cut costs is undefined.
        """
        if not self.problem.optimal_cuts:
            return self.priced_rows(rows)
        # What is compiled for all values serves the search of the variants too.
        priced = price_best_cuts(self.whole_problem, self.table, rows, "fastest")
        return result_rows(self.problem, self.space.keys, rows, priced.costs, priced.cuts)

    def may_take(self, rows: Rows, most_s: PlanFloats) -> PlanBools:
        """Return which rows may fit and take at most `most_s` seconds, by a probe where cuts are optimal."""
        may = np.ones(len(most_s), dtype=bool)
        if self.problem.optimal_cuts:
            probed = np.flatnonzero((rows.choices["vpp"] == 1) & (most_s < np.inf))
            may[probed] = may_take(self.whole_problem, self.table, rows.take(probed), most_s[probed])
        return may

    def key_seconds(self, point: int = 0) -> KeySeconds:
        """Return the seconds of a microbatch of all shard keys at a hardware point."""
        workload = self.problem.workload
        return key_seconds(
            tree_map(lambda leaf: np.asarray(leaf)[point], self.table), workload.stack, workload.searched
        )

    @property
    def storing_seconds(self) -> StoringSeconds:
        """The seconds of a microbatch of all shard keys where layers store activations, at the first hardware point."""
        workload, (cluster, assumptions) = self.problem.workload, self.problem.at_point(0)
        num_gpus = np.float64(min(self.space.bounds.num_gpus))

        def one_way_s(num_bytes: PerPlan) -> PerPlan:
            moved = bool(offload_codes(ACTIVATIONS, workload.searched)) * num_bytes
            return transfer_s(moved, num_gpus, cluster, assumptions)

        kinds = tree_map(lambda leaf: np.asarray(leaf)[0], self.table)
        return storing_seconds(kinds, workload.stack, workload.searched, one_way_s)

    @property
    def loose_bound(self) -> LooseBound:
        """The bound of step times from the seconds of shard keys alone."""
        return least_passes_s if self.problem.optimal_cuts else least_even_s

    def no_rows(self) -> Arrays:
        """Return the columns of `priced_rows` without any row."""
        return no_rows(self.problem, self.space.keys)


R = TypeVar("R", bound="DataclassInstance")
_ASSUMPTIONS, _NETWORK = "assumptions.", "network."
_SLOWDOWN = f"{_ASSUMPTIONS}kernel_slowdown"
_KEYS = 1 << 19  # shard keys of a study; this bounds the memory of a large sweep


_OfPoints = Real[np.ndarray, "points"]


@dataclass(frozen=True, slots=True)
class Study:
    """One space, at some hardware points of one cluster."""

    problem: Problem
    space: Space
    cluster: int  # position among the clusters of the sweep
    values: Mapping[str, _OfPoints]  # of each field of what_if

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
        for begin in range(point * self.space.size, stop, self.space.size):
            keys, chosen = self.space.blocks.rows(first, min(stop - begin, self.space.size))
            points.append(np.full(len(keys), begin // self.space.size))
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
) -> list[Over[Study, "..."]]:
    """Return the studies of a sweep; `problems` has one problem for each cluster."""
    problems = [problem.searching(fix or {}) for problem in problems]
    columns = dict(zip(what_if.fields, zip(*what_if.points, strict=True), strict=True))
    values = {
        path: np.array(column, dtype=np.int64 if varied_field(path).integer else np.float64)
        for path, column in columns.items()
    }
    integers = [path for path in values if varied_field(path).integer]
    shapes = np.stack([values[path] for path in integers]) if integers else np.zeros((1, len(what_if.points)), int)
    studies: list[Study] = []
    spaces: dict[object, list[Space]] = {}  # by the properties of hardware and framework that they depend on
    for code, problem in enumerate(problems):
        for integer in dict.fromkeys(map(tuple, shapes.T.tolist())):
            points = np.flatnonzero((shapes.T == integer).all(axis=1))
            changed = at_points(problem, {path: column[points] for path, column in values.items()})
            network = changed.cluster.network
            tiers = tuple((tier.name, tier.size) for tier in network.middle)
            shape = (network.nvs.size, tiers, network.tiers[-1].size, problem.boxes)
            if shape not in spaces:
                (space,) = of_used_keys(changed, [Space(changed, num_gpus, global_batch_size, fix, limit)])
                spaces[shape] = space.split(_KEYS)
            at = {path: column[points] for path, column in values.items()}
            studies += [Study(changed, space, code, at) for space in spaces[shape]]
    return studies


def at_points(problem: Problem, values: Mapping[str, _OfPoints]) -> Problem:
    """Return a problem of one hardware point at other points: `values` has the values of fields, in SI units.

    Integer fields must have a single value. The tiers of a changed network are derived again.
    """
    count = len(next(iter(values.values()))) if values else 1
    hardware, assumptions = tree_map(lambda leaf: np.repeat(leaf, count), (problem.hardware, problem.assumptions))
    networks = [path for path in values if path.startswith(_NETWORK)]
    for path, column in values.items():
        if path == _SLOWDOWN:  # beside the effects of the stack and of the devices, which stay
            column = column * (problem.assumptions.kernel_slowdown / problem.assumptions_spec.kernel_slowdown)
        if path.startswith(_ASSUMPTIONS):
            assumptions = _set(assumptions, [path.removeprefix(_ASSUMPTIONS)], column)
        elif path not in networks:
            hardware = _set(hardware, path.split("."), column)
    # A stated value holds for every plan.
    open_conditions = [
        condition for condition in assumptions.conditions if f"{_ASSUMPTIONS}{condition.field}" not in values
    ]
    assumptions = replace(assumptions, conditions=tuple(open_conditions))
    cluster, network = problem.cluster, problem.network
    if networks:
        specs = [
            changed_network(network, {path.removeprefix(_NETWORK): values[path][point].item() for path in networks})
            for point in range(count)
        ]
        machines = [replace(cluster, network=network_from_spec(spec)) for spec in specs]
        derived = [anonymous(machine).network for machine in machines]
        network, cluster = specs[0], machines[0]
        hardware = replace(hardware, network=tree_map(lambda *leaves: np.array(leaves), *derived))
    return replace(problem, network=network, cluster=cluster, hardware=hardware, assumptions=assumptions)


def _set(record: R, path: Sequence[str], value: object) -> R:
    """Return a record with the nested field at `path` set."""
    name, *inner = path
    return replace(record, **{name: _set(getattr(record, name), inner, value) if inner else value})


def points_of(study: Study, first: int, last: int) -> Over[Study, "... points=chosen"]:
    """Return the study at its hardware points from `first` up to `last`."""
    hardware, assumptions = tree_map(lambda leaf: leaf[first:last], (study.problem.hardware, study.problem.assumptions))
    return replace(
        study,
        problem=replace(study.problem, hardware=hardware, assumptions=assumptions),
        values={path: column[first:last] for path, column in study.values.items()},
    )


_DIFFERING_KEYS = 256  # keys that most pairs of values already differ in
_BY_MODE_AND_EFFECT = tuple(name for name in BY_MODE if name in PASSES)


def undominated(problem: Problem, table: KeyCosts) -> tuple[int, ...]:
    """Return the searched values of `recompute`, by their codes, that no other one dominates.

    The other value must be one that the framework runs with the same choices, and with which its software has the same
    effects or more.
    """
    workload = problem.workload
    if not _num_keys(table):
        return workload.searched.recompute
    kinds = [costs for kind, costs in enumerate(table) if kind not in workload.stack.embedding_and_head]
    no_worse = [_no_worse(costs) for costs in kinds]
    rows = [{code: row for row, codes in enumerate(costs.modes) for code in codes} for costs in kinds]
    boxes = {code: _boxes_of(problem, code) for code in workload.searched.recompute}
    effects = {code: _effects_of(problem, code) for code in workload.searched.recompute}

    def dominates(code: int, other: int) -> bool:
        everywhere = all(matrix[row[code], row[other]] for matrix, row in zip(no_worse, rows, strict=True))
        keeps_effects = all(has or not had for has, had in zip(effects[code], effects[other], strict=True))
        return everywhere and boxes[code] == boxes[other] and keeps_effects

    kept: list[int] = []
    for value in sorted(boxes):
        if value in (NONE_CODE, FULL_CODE):
            kept.append(value)
        elif not any(dominates(other, value) for other in kept):
            kept = [other for other in kept if other in (NONE_CODE, FULL_CODE) or not dominates(value, other)]
            kept.append(value)
    return tuple(kept)


def representatives(problem: Problem) -> tuple[int, ...]:
    """Return values of `recompute` of which one goes with the same other choices as any searched value."""
    like = {(code == NONE_CODE, *_boxes_of(problem, code)): code for code in problem.workload.searched.recompute}
    return tuple(like.values())


def recomputing(problem: Problem, values: Sequence[int]) -> Problem:
    """Return the problem with some values of `recompute`, by their codes."""
    return problem.searching({"recompute": [VALUES[code] for code in values]})


def of_values(table: KeyCosts, values: Sequence[int]) -> KeyCosts:
    """Return the costs of all kinds in the modes of some values of `recompute`, and in that without recomputation."""
    return tuple(_only(costs, {NONE_CODE, *values}) for costs in table) if _num_keys(table) else table


def _num_keys(table: KeyCosts) -> int:
    return table[0].boundary_bytes.shape[-1]


def _boxes_of(problem: Problem, code: int) -> list[bool]:
    """Return whether each box of the framework has a value of `recompute`."""
    fix = {"recompute": [VALUES[code]]}
    return [] if problem.framework is None else [compatible(box, fix) for box in problem.framework.boxes(experts=True)]


def _effects_of(problem: Problem, code: int) -> list[bool]:
    """Return, for each test of a value of `recompute` by the conditions of effects, whether a value passes it."""
    needs = [need for condition in problem.assumptions.conditions for need in condition.needs]
    return [bool(test.holds({"recompute": code})) for need in needs for test in need if test.column == "recompute"]


def _no_worse(costs: PointCosts) -> Bool[np.ndarray, "modes modes"]:
    """Return whether the first mode of a kind costs no more than the second, at all points and keys."""
    fields = [np.asarray(getattr(costs, name)) for name in BY_MODE]
    fields += [np.asarray(getattr(passes, name)) for passes in costs.without for name in _BY_MODE_AND_EFFECT]
    if costs.contended_s:
        fields.append(np.stack([np.asarray(seconds) for seconds in costs.contended_s[1:]], axis=1))
    count = len(costs.modes)
    no_worse = np.ones((count, count), dtype=bool)
    for keys in (slice(0, _DIFFERING_KEYS), slice(_DIFFERING_KEYS, None)):
        for mode, other in zip(*np.nonzero(no_worse), strict=True):
            no_worse[mode, other] = all((field[:, mode, keys] <= field[:, other, keys]).all() for field in fields)
    return no_worse


def _only(costs: PointCosts, values: Collection[int]) -> PointCosts:
    """Return the costs of a kind in the modes of some values."""
    rows = [row for row, codes in enumerate(costs.modes) if any(code in values for code in codes)]

    def of_rows(record: LayerCosts | PassCosts, names: Iterable[str]) -> dict[str, np.ndarray]:
        return {name: np.asarray(getattr(record, name))[:, rows] for name in names}

    return replace(
        costs,
        **of_rows(costs, BY_MODE),
        without=tuple(replace(passes, **of_rows(passes, _BY_MODE_AND_EFFECT)) for passes in costs.without),
        contended_s=costs.contended_s and (costs.contended_s[0], *(costs.contended_s[1 + row] for row in rows)),
        modes=tuple(costs.modes[row] for row in rows),
    )
