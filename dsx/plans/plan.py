"""A plan: one value for each choice, as a command line states it and as a row of a result set stores it.

People write it as ``tp=8 pp=64 dp=32 microbatch_size=1 nvs.tp=8``. A degree or size that is left out is 1, `vpp` what
the schedule fixes. A share of a fast domain that is left out is 1 too, or is filled in rank order
(`dsx.plans.placement`). A plan may state its layer layout, ``stage_layers=4,5,3`` (`dsx.plans.layer_layout`), which
states `vpp` too if it has several chunks per stage. A plan is well formed if its degrees multiply to the GPUs, each
replica has a microbatch, and each stage has a layer. `dsx.plans.violations` says whether it also obeys the rules.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dsx.errors import PlanError, SpecError, wrong
from dsx.notation.work import DerivedLayer
from dsx.plans.choices import BY_NAME, CODES, MODEL_AXES, PLAN_COLUMNS, SEARCHED_COLUMNS, column_called, nearest_column
from dsx.plans.layer_layout import (
    LAYOUT,
    Chain,
    Layout,
    check_stages,
    layers_of_chunks,
    listed,
    num_chunks,
    text_of,
)
from dsx.plans.placement import ORDERS, axes_in, divisors, expert_share, fill_in_order, rank_order_shares, shares_of
from dsx.plans.rules import DEGREES, GIVEN, PLACED, Limits, chunks_of_schedule, interleaved, nearest_of, placed
from dsx.records import Int
from dsx.text import Data, whole_number_text
from dsx.units import LARGEST_COUNT

SIZES = ("panels", "microbatch_size")
SHARES = tuple(f"nvs.{axis}" for axis in DEGREES)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan(Mapping[str, Any]):
    """The columns of one plan (docs/choices.md) with their values: whole numbers and names.

        found.plan["tp"], str(found.plan)           # 8, "tp=8 dp=64 microbatch_size=1 nvs.tp=8"
        found.plan | {"recompute": "full"}          # another plan

    There is a value for each choice, but for a strategy that nobody has chosen yet. Once a plan is priced there is also
    what follows from the choices: its `candidate` id, its shares of tiers, and `stage_layers` where it has a cut of its
    own. They may be given as a text, "14,12"; raises PlanError for one that lists no layers.
    """

    columns: Mapping[str, Any]  # whole numbers and names; `stage_layers` is a tuple, the layers of each chunk

    def __post_init__(self) -> None:
        if LAYOUT in self.columns:
            object.__setattr__(self, "columns", {**self.columns, LAYOUT: listed(self.columns[LAYOUT])})

    def __getitem__(self, column: str) -> Any:
        return self.columns[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        complete = self.columns.keys() >= BY_NAME.keys() - {"strategy"}
        return f"Plan({self.text!r})" if complete else f"Plan({dict(self)!r})"

    def __str__(self) -> str:
        return self.text

    def __or__(self, columns: Mapping[str, object]) -> "Plan":
        """Return the plan with other values in some columns.

        Raises InputError for what is no mapping of columns, PlanError for a column or a value that no plan has.
        """
        if not isinstance(columns, Mapping):
            raise wrong("plan | ...", columns, "a mapping of columns is wanted, as in plan | {'recompute': 'full'}")
        names = {*self.columns, *PLAN_COLUMNS, LAYOUT, *SHARES}
        changed = dict(columns)
        for name, value in columns.items():
            if name not in names:
                raise PlanError(f"unknown setting {name!r}{nearest_column(str(name), names)}")
            if name in SEARCHED_COLUMNS:
                code = _code(name, value.item() if isinstance(value, np.generic) else value)
                changed[name] = BY_NAME[name].name_of(code)
            elif name in (*DEGREES, *SIZES) and not (isinstance(value, int | np.integer) and value >= 1):
                raise PlanError(f"{name}={value!r} must be a whole number of at least 1")
        return Plan({**self.columns, **changed})

    @property
    def codes(self) -> dict[str, int]:
        """The choices as numbers, for rules and costs. The strategy is left out: only a problem numbers strategies."""
        return {
            name: BY_NAME[name].code(self.columns[name]) if name in CODES else int(self.columns[name])
            for name in PLAN_COLUMNS
            if name != "strategy"
        }

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of each chunk of its own cut, embedding and head counted; empty if the cut is even."""
        return self.columns.get(LAYOUT, ())

    @property
    def data(self) -> Data:
        """The columns as JSON and tables have them: a layer layout is a text, "21,20,20,21"."""
        return {**self.columns, **({LAYOUT: text_of(self.layers)} if self.layers else {})}

    @property
    def text(self) -> str:
        """The plan as settings of the command line; values of 1 and default values are left out."""
        codes = self.codes
        settings = [name for name in (*DEGREES, "panels") if codes[name] > 1] + ["microbatch_size"]
        settings += [
            name for name in SEARCHED_COLUMNS if name not in DEGREES and self.columns[name] != BY_NAME[name].default
        ]
        settings += [f"{axis}_nvs" for axis in DEGREES if codes[f"{axis}_nvs"] > 1]
        return " ".join(f"{setting_of(name)}={self.columns[name]}" for name in settings)


def own_cut(plan: Plan, chain: Chain) -> tuple[int, ...]:
    """Return the layers of each chunk of a plan's own cut of a model; empty if its cut is even.

    Raises PlanError for a layout that does not match the plan or the layers of the model.
    """
    if plan.layers:
        check_stages(layers_of_chunks(plan.layers, chain), plan.layers, plan["pp"], plan["vpp"])
    return plan.layers


def stacked(plans: Sequence[Plan]) -> dict[str, Int[np.ndarray, "plans"]]:
    """Return the columns of N plans without their strategies, names as codes; [N] integers each."""
    rows = [plan.codes for plan in plans]
    return {name: np.array([row[name] for row in rows], dtype=np.int64) for name in PLAN_COLUMNS if name != "strategy"}


# What a plan is priced for, and what prices it.
_OF_THE_COMMAND = ("strategy", "partition", "num_gpus", "global_batch_size", "sequence_length")
_FOLLOWS = "num_microbatches"  # from other columns


class JobSizes(NamedTuple):
    """The GPUs of a job, and the batch of its step."""

    num_gpus: int
    global_batch_size: int  # sequences
    sequence_length: int  # tokens


class PlanDefaults(NamedTuple):
    """What a plan has where its settings are silent."""

    codes: dict[str, int]  # of the columns of `dsx.plans.choices.SEARCHED_COLUMNS`
    in_rank_order: bool = False  # whether consecutive ranks fill fast domains; else all shares are 1


class Setting(NamedTuple):
    """A column with the value that somebody states for it, or with several values of a search."""

    name: str  # as people write it: "nvs.tp"
    value: int | str | tuple[int | str, ...] | None  # a text may list several; None: a word that states no value

    @classmethod
    def of(cls, word: str) -> "Setting":
        """Return a word of the command line, "tp=8", as a setting."""
        name, sign, value = word.partition("=")
        return cls(name, value if sign else None)

    @property
    def values(self) -> tuple[int | str, ...]:
        """The values one by one."""
        listed = self.value if isinstance(self.value, tuple) else (self.value,)
        parts = (value.split(",") if isinstance(value, str) else [value] for value in listed if value is not None)
        return tuple(itertools.chain.from_iterable(parts))

    @property
    def text(self) -> str:
        """The values as the command line takes them."""
        return ",".join([value if isinstance(value, str) else whole_number_text(value) for value in self.values])

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.text}"


def plan_of_settings(
    settings: Sequence[Setting],
    layers: Sequence[DerivedLayer],
    strategy: str,
    job: JobSizes,
    limits: Limits,
    defaults: PlanDefaults,
) -> Plan:
    """Return the plan that `settings` describe.

    `layers` are the layer kinds of the model under `strategy`. Shares of a fast domain that no setting names are 1. If
    the defaults say `in_rank_order`, consecutive ranks fill what the named shares leave of a domain. The share of an ep
    group, unless it is named, follows from the shares of the axes that it nests in. Raises PlanError.
    """
    plan = dict.fromkeys((*DEGREES, *SIZES, *(f"{axis}_nvs" for axis in DEGREES)), 1) | defaults.codes
    names = list(dict.fromkeys((*DEGREES, *SIZES, *SHARES, *defaults.codes, LAYOUT)))
    _check_names(settings, names)
    seen: dict[str, Setting] = {}
    for setting in settings:
        name = _name_of(setting, names)
        if name in seen:
            raise PlanError(f"{name} is given twice: {str(seen[name])!r} and {str(setting)!r}")
        seen[name] = setting
        if name in defaults.codes:
            plan[name] = _setting(name, setting.text if isinstance(setting.value, tuple) else setting.value)
        elif name != LAYOUT:
            plan[_column(name)] = _number(setting, name)
    _check_axes(plan, layers, strategy)
    chunks: tuple[int, ...] = ()
    layout: Layout = ()
    if LAYOUT in seen:
        limits = replace(limits, partition=GIVEN)
        layout = _layout(seen[LAYOUT])
        chunks = layers_of_chunks(layout, limits.chain)
        plan["vpp"] = plan["vpp"] if "vpp" in seen else num_chunks(chunks, plan["pp"])
    elif "vpp" not in seen and not interleaved(plan):
        plan["vpp"] = int(chunks_of_schedule(plan))
    _check_sizes(plan, job, limits)
    if LAYOUT in seen:
        check_stages(chunks, layout, plan["pp"], plan["vpp"])
    if defaults.in_rank_order:
        # Shares that no setting names are those of ranks in order if the named ones are, else what fits.
        degrees = {axis: plan[axis] for axis in axes_in(ORDERS[plan["order"]])}
        free = {axis: degree for axis, degree in degrees.items() if f"nvs.{axis}" not in seen}
        shares = rank_order_shares(degrees, limits.nvs_size, math.prod(degrees.values())) if limits.uneven else {}
        if not shares or any(shares[axis] != plan[f"{axis}_nvs"] for axis in degrees.keys() - free.keys()):
            shares = fill_in_order(free, limits.nvs_size // placed(plan))
        plan |= {f"{axis}_nvs": int(shares[axis]) for axis in free}
    if "nvs.ep" not in seen:
        plan["ep_nvs"] = int(expert_share(plan, limits.expert_axes, limits.nvs_size))
    plan |= job._asdict()
    plan["num_microbatches"] = job.global_batch_size // plan["dp"] // plan["microbatch_size"]
    columns = {name: strategy if name == "strategy" else BY_NAME[name].name_of(plan[name]) for name in PLAN_COLUMNS}
    return Plan(columns | ({LAYOUT: chunks} if LAYOUT in seen else {}))


def _layout(setting: Setting) -> Layout:
    """Return the numbers of a layout as they are; a layout with anything else in it is a text."""
    listed = setting.value if isinstance(setting.value, tuple) else (setting.value,)
    layers = tuple(size for size in listed if isinstance(size, int) and 0 <= size <= LARGEST_COUNT)
    return layers if len(layers) == len(listed) else setting.text


def filled_shares(plan: Plan, settings: Sequence[Setting]) -> dict[str, int]:
    """Return the shares of a fast domain, by ``nvs.tp``, that are above 1 and that no setting names."""
    named = {setting.name for setting in settings}
    shares = {f"nvs.{axis}": share for axis, share in shares_of(plan.codes, PLACED).items()}
    return {name: share for name, share in shares.items() if share > 1 and name not in named}


def fixed_settings(settings: Sequence[Setting], num_gpus: int, limits: Limits) -> dict[str, list[int | str]]:
    """Return the fixed choices of a search by column; a setting has one value or several, as in zero_stage=1,3.

    Raises PlanError for a value that no plan on `num_gpus` GPUs can have.
    """
    names = tuple(dict.fromkeys((*DEGREES, *SIZES, *SHARES, *SEARCHED_COLUMNS)))
    _check_names(settings, names)
    fixed: dict[str, list[int | str]] = {}
    for setting in settings:
        name = _name_of(setting, names)
        if _column(name) in fixed:
            raise PlanError(f"{name} is given twice; the second setting is {str(setting)!r}")
        chosen: dict[int | str, None] = {}
        for value in setting.values:
            number = _setting(name, value) if name in SEARCHED_COLUMNS else _number(Setting(name, value), name)
            if name in DEGREES and num_gpus % number:
                nearest = nearest_of(divisors(num_gpus), number)
                raise PlanError(f"{name}={value} does not divide num_gpus={num_gpus}; nearest: {name}={nearest}")
            if name == "pp":
                _check_depth(number, limits)
            chosen[CODES[name][number] if name in CODES else number] = None
        fixed[_column(name)] = [*chosen]
    return fixed


def _check_names(settings: Sequence[Setting], names: Sequence[str]) -> None:
    """Raise PlanError for columns under the names of other software, or in another case, with all that is meant."""
    renamed: dict[Setting, Setting] = {}
    for setting in settings:
        meant = column_called(setting.name)
        if setting.value is not None and meant in names and setting.name not in names:
            renamed[setting] = setting._replace(name=meant)
    if renamed:
        written, meant = " ".join(map(str, renamed)), " ".join(map(str, renamed.values()))
        raise PlanError(f"{written!r}: each column has one name here, in lower case: write {meant}")


def _name_of(setting: Setting, names: Sequence[str]) -> str:
    """Return which of the `names` a setting has; raises PlanError, with what is meant, for a setting that has none."""
    name, word = setting.name, str(setting)
    if re.search("[<>]", name):
        raise PlanError(
            f"{word!r} is a bound, which the option --limit of a search takes; a setting has values, such as tp=8"
        )
    if setting.value is None:
        raise PlanError(f"{word!r} is not a setting of a plan: write column=value, such as tp=8")
    meant = column_called(name) or name
    if meant in _OF_THE_COMMAND:
        option = f"--{meant.replace('_', '-')} {setting.text}"
        raise PlanError(f"{word!r}: {meant} is no setting of a plan; it is given beside the plan, as {option}")
    if meant == _FOLLOWS:
        raise PlanError(f"{word!r}: {BY_NAME[_FOLLOWS].rule}; set these instead")
    if name not in names and (share := f"nvs.{name.removesuffix('_nvs')}") in names:
        name = share  # the column of a result set
    if name == LAYOUT and name not in names:
        raise PlanError(f"{word!r}: a search cuts the layers itself; dsx evaluate prices a layout")
    if name not in names:
        raise PlanError(f"unknown setting {name!r}{nearest_column(name, names)} (known: {', '.join(names)})")
    return name


def _number(setting: Setting, name: str) -> int:
    value = setting.value
    if isinstance(value, str):
        if " " in value.strip():
            raise PlanError(f"{str(setting)!r} is several settings: give each by itself")
        if not value:
            raise PlanError(f"{str(setting)!r} has no value: write column=value, such as tp=8")
        # The largest count has ten digits; more do not fit into a column of a result set.
        value = int(value) if re.fullmatch("[0-9]{1,10}", value) else 0
    if not isinstance(value, int) or not 1 <= value <= LARGEST_COUNT:
        raise PlanError(f"{str(setting)!r}: {name} must be a whole number of at least 1 and at most {LARGEST_COUNT}")
    return value


def _setting(name: str, value: object) -> int:
    return _code(name, int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]{1,18}", value) else value)


def _code(name: str, value: object) -> int:
    try:
        return BY_NAME[name].code(value)
    except SpecError as error:
        raise PlanError(str(error)) from None


def setting_of(column: str) -> str:
    """Return how a plan writes a column: nvs.tp for tp_nvs."""
    return f"nvs.{column.removesuffix('_nvs')}" if column.endswith("_nvs") else column


def _column(name: str) -> str:
    return f"{name.removeprefix('nvs.')}_nvs" if name.startswith("nvs.") else name


def _check_axes(plan: Mapping[str, int], layers: Sequence[DerivedLayer], strategy: str) -> None:
    axes = [axis for axis in MODEL_AXES if any(axis in layer.axes for layer in layers)]
    for axis in MODEL_AXES:
        if plan[axis] > 1 and axis not in axes:
            raise PlanError(
                f"{axis}={plan[axis]}: strategy {strategy!r} shards nothing of this model over {axis}; "
                f"its axes are {', '.join(axes) or 'none'}; nearest: {axis}=1, or a strategy with {axis}"
            )
    if plan["panels"] > 1 and not any(layer.panelled for layer in layers):
        raise PlanError(f"panels={plan['panels']}: strategy {strategy!r} has no panels")


def _check_sizes(plan: Mapping[str, int], job: JobSizes, limits: Limits) -> None:
    product, above_one = math.prod(plan[axis] for axis in PLACED), [axis for axis in PLACED if plan[axis] > 1]
    if product != job.num_gpus:
        degrees = " * ".join(f"{axis}={plan[axis]}" for axis in above_one)
        several = f"{degrees} = {product}" if len(above_one) > 1 else f"{degrees} alone"
        raise PlanError(
            f"{several if above_one else 'all degrees are 1'}, but num_gpus={job.num_gpus}; nearest: "
            f"{_nearest_degrees(plan, above_one, job.num_gpus)}"
        )
    _check_depth(plan["pp"], limits)
    if plan["dp"] * plan["microbatch_size"] > job.global_batch_size:
        raise PlanError(
            f"dp={plan['dp']} * microbatch_size={plan['microbatch_size']} exceeds "
            f"global_batch_size={job.global_batch_size}: a replica has no microbatch"
        )


def _nearest_degrees(plan: Mapping[str, int], above_one: Sequence[str], num_gpus: int) -> str:
    """Return the change of one degree, dp first, after which the degrees multiply to the GPUs, or one of several."""
    for axis in ("dp", *above_one):
        product = math.prod(plan[other] for other in PLACED if other != axis)
        degree = num_gpus // product
        if num_gpus % product == 0 and (axis == "dp" or plan[axis] / 2 <= degree <= 2 * plan[axis]):
            return f"{axis}={degree}"
    nearest: dict[str, int] = {}
    for axis in (axis for axis in above_one if axis != "dp"):
        nearest[axis] = nearest_of(divisors(num_gpus), plan[axis])
        num_gpus //= nearest[axis]
    return " ".join(f"{axis}={degree}" for axis, degree in {**nearest, "dp": num_gpus}.items())


def _check_depth(pp: int, limits: Limits) -> None:
    if pp > limits.max_stages:
        counted = ", embedding and head included" if limits.max_stages > limits.num_layers else ""
        raise PlanError(
            f"pp={pp} leaves stages without a layer: the model has {limits.max_stages} layers{counted}; "
            f"nearest: pp={limits.max_stages}"
        )
