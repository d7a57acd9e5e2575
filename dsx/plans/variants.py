"""Variants of plans: the same plan with other values of the choices that a search by bounds looks at last.

These choices do not change the seconds of the passes of a pipeline, or only make them longer than without
recomputation. So a search bounds a plan once, and looks at its variants only where the bound allows. Their number
multiplies the space, but the bounds of few plans are computed.

What variants a candidate has depends on its placement alone.
"""

from collections.abc import Sequence

import numpy as np

from dsx.config.framework_file import BoxSpec
from dsx.config.sweep_fields import Limit
from dsx.plans.blocks import Blocks, zero_replicas_of_whole_groups
from dsx.plans.choices import CROSSED, NONE_CODE, PLACEMENT_COLUMNS, Choice
from dsx.plans.codes import SearchedCodes
from dsx.plans.enumerate import Arrays, Kept, SpaceBounds, changes, cross, take
from dsx.plans.frameworks import Boxes, compatible
from dsx.plans.rules import RULES
from dsx.records import Int

VARIED = tuple(choice for choice in CROSSED if choice.varied_last)


class Variants:
    """The variants of the candidates of some blocks, which have the defaults of the choices `varied`.

    Attributes:
        count: variants of each placement, without itself.
        num_unlike: variants of all placements that have unlike ones.
    """

    def __init__(self, blocks: Blocks, bounds: SpaceBounds, varied: Sequence[Choice], searched: SearchedCodes) -> None:
        """Make the variants in the boxes of `bounds`; `searched` has the values of the choices."""
        placements = dict(zip(PLACEMENT_COLUMNS, blocks.placements, strict=True))
        placements |= {"ep_replicas": blocks.ep_replicas, "boxes": blocks.boxes}
        placements["recompute"] = _standing_for_recompute(placements["recompute"], bounds.boxes)
        # The columns of a placement that decide which variants it has.
        names = {choice.name for choice in varied}
        rules = [{*rule.reads} for rule in RULES if names & {*rule.reads} and {*rule.reads} <= {*PLACEMENT_COLUMNS}]
        columns = names.union({"dp"}, *rules, bounds.boxes.restricted) & {*PLACEMENT_COLUMNS}
        read = ["ep_replicas", "boxes", *sorted(columns)]
        first, self._class = _classes([placements[name] for name in read])
        self._columns = _crossed({name: placements[name][first] for name in read}, bounds, varied, searched)
        origin = self._columns.pop("origin")
        self._count = np.bincount(origin, minlength=len(first))
        self.count = self._count[self._class]
        self.num_unlike = len(origin)

    def of(self, placement: Int[np.ndarray, "plans"]) -> tuple[Int[np.ndarray, "kept"], Kept]:
        """Return the variants of some placements: the position of the original of each, and the varied columns."""
        origin, place = _members(self._count, self._class[placement])
        return origin, take(self._columns, place)


def varied_last(searched: SearchedCodes, named: Sequence[str], boxes: Sequence[BoxSpec]) -> tuple[Choice, ...]:
    """Return the choices of a search that it can look at last, in the order of `CROSSED`.

    Not those that the search names, nor any if the framework runs a plan, but not the same one with the defaults.
    """
    varied = tuple(
        choice
        for choice in VARIED
        if choice.name not in named and getattr(searched, choice.name) != (choice.default_code,)
    )
    names = [choice.name for choice in varied]
    usual = [box for box in boxes if compatible(box, {choice.name: [choice.default] for choice in varied})]
    return varied if all(any(_has_plans_of(wide, box, names) for wide in usual) for box in boxes) else ()


def _has_plans_of(box: BoxSpec, other: BoxSpec, leaving_out: Sequence[str]) -> bool:
    """Return whether a box has all plans of another one, whatever the values of some columns."""
    fixed = all(
        column in leaving_out or (column in other.fix and {*other.fix[column]} <= {*values})
        for column, values in box.fix.items()
    )
    limited = all(
        {*bounds} <= {*other.limit.get(column, ())}
        or (column in leaving_out and all(isinstance(bound, Limit) for bound in bounds))
        for column, bounds in box.limit.items()
    )
    strategies = box.strategy is None or (other.strategy is not None and {*other.strategy} <= {*box.strategy})
    return fixed and limited and strategies


def _standing_for_recompute(recompute: Int[np.ndarray, "placements"], boxes: Boxes) -> Int[np.ndarray, "placements"]:
    """Return values of `recompute` that stand for the values of placements: variants go with both or with none."""
    codes, of_placement = np.unique(recompute, return_inverse=True)
    kept = [choices({"recompute": codes}) for box in boxes.boxes for choices in box.choices]
    _, first, which = np.unique(np.stack([codes == NONE_CODE, *kept]), axis=1, return_index=True, return_inverse=True)
    return codes[first][which][of_placement]


def _classes(
    columns: Sequence[Int[np.ndarray, "rows"]],
) -> tuple[Int[np.ndarray, "classes"], Int[np.ndarray, "rows"]]:
    """Return the position of the first row of each class of equal rows, and the class of each row."""
    order = np.lexsort(columns)
    begins = changes(*(column[order] for column in columns))
    of_row = np.empty(len(order), dtype=np.int64)
    of_row[order] = np.cumsum(begins) - 1
    return order[begins], of_row


def _crossed(table: Arrays, bounds: SpaceBounds, varied: Sequence[Choice], searched: SearchedCodes) -> Kept:
    """Return the variants of placements, in their order, by the varied columns and `origin`."""
    names = [choice.name for choice in varied]
    usual = {choice.name: choice.default_code for choice in varied}
    ranks = int(np.lcm.reduce(np.unique(table["dp"]))) if len(table["dp"]) else 1
    table = {name: column for name, column in table.items() if name not in names}
    table["origin"] = np.arange(len(table["boxes"]))
    for choice in varied:
        values = np.array(getattr(searched, choice.name))
        if choice.tried and not len(values):
            values = choice.tried(bounds.limits.even_layers, ranks)
        table = _with_values(table, choice.name, values, bounds)
    other = np.zeros(len(table["origin"]), dtype=bool)
    for name in names:
        other |= table[name] != usual[name]
    table = take(table, other)
    return {name: table[name] for name in ("origin", *names)}


def _with_values(table: Arrays, name: str, values: Int[np.ndarray, "values"], bounds: SpaceBounds) -> Kept:
    """Return a table with each row repeated for each of `values` of a choice that it may have."""
    rules = [rule for rule in RULES if name in rule.reads and {*table, name} >= {*rule.reads}]
    read = {"boxes", *bounds.boxes.restricted}.union(*(rule.reads for rule in rules))
    read |= {"dp", "ep_replicas"} if name == "zero_replicas" else set()
    # Rows that are alike for the rules have the same values, so that few are crossed with all.
    names = [column for column in table if column in read]
    first, of_row = _classes([table[column] for column in names])
    classes = cross({column: table[column][first] for column in names} | {"class": np.arange(len(first))}, name, values)
    for rule in rules:
        classes = take(classes, rule.holds(classes, bounds.limits))
    if name == "zero_replicas":
        classes = take(classes, zero_replicas_of_whole_groups(classes, classes["ep_replicas"]))
    in_boxes = np.zeros(len(classes["boxes"]), dtype=bool)
    for of_keys in np.unique(classes["boxes"]).tolist():
        in_boxes |= (classes["boxes"] == of_keys) & bounds.boxes.keep(of_keys, classes)
    classes = take(classes, in_boxes)
    count = np.bincount(classes["class"], minlength=len(first))
    origin, place = _members(count, of_row)
    return take(table, origin) | {name: classes[name][place]}


def _members(
    count: Int[np.ndarray, "classes"], of_row: Int[np.ndarray, "rows"]
) -> tuple[Int[np.ndarray, "members"], Int[np.ndarray, "members"]]:
    """Return, for each member of the class of each row, the row and the place among all `count` members."""
    first, members = (np.cumsum(count) - count)[of_row], count[of_row]
    row = np.repeat(np.arange(len(of_row)), members)
    within = np.arange(len(row)) - np.repeat(np.cumsum(members) - members, members)
    return row, np.repeat(first, members) + within
