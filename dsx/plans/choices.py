"""The choices of a plan, one record each. Columns, codes, ids, the search and the documents follow from the records.

A choice belongs to one of four levels. The job states what is trained on how many GPUs. The shard key decides what a
layer costs. The placement decides the pipeline, the replicas, and where both are placed. The step decides how layer
costs add up to a step. A searched choice of the step or the placement is crossed with the choices before it, in the
order of this table. Choices that were added later come last, so that candidates keep their order and their ids.
Choices with named values are stored as codes, which are positions in `values`.

The values of the choice `recompute` are none, full, and every set of regions of a layer. A set of regions is written
with their names, joined with a plus: ``norms+expert-activation``. Core attention alone is called ``selective``, which
is what Megatron-LM's ``--recompute-granularity selective`` recomputes by default. A region that is part of another one
(`dsx.notation.syntax.Region.within`) is recomputed with it, so no set has both.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np

from dsx.errors import SpecError, did_you_mean
from dsx.notation.syntax import CORE_ATTENTION, REGIONS, REGIONS_BY_NAME
from dsx.plans.experts import Columns, Truth
from dsx.plans.placement import ORDERS, all_divisors, divisors
from dsx.records import Int
from dsx.schedules.schedules import SCHEDULES
from dsx.text import whole_number_text
from dsx.units import LARGEST_COUNT

NONE, SELECTIVE, FULL = "none", "selective", "full"
JOINED = "+"
REGION_NAMES = tuple(REGIONS_BY_NAME)

# Values that join names of regions, which are in the order of the regions.
_JOINING = {
    JOINED.join(regions): frozenset(regions)
    for count in range(1, len(REGION_NAMES) + 1)
    for regions in combinations(REGION_NAMES, count)
    if regions != (CORE_ATTENTION,) and not any(REGIONS_BY_NAME[name].within in regions for name in regions)
}
MAIN = (NONE, SELECTIVE, FULL)  # those of launchers
VALUES = (*MAIN, *_JOINING)
_REGIONS = {NONE: frozenset[str](), SELECTIVE: frozenset({CORE_ATTENTION}), **_JOINING}
NONE_CODE, FULL_CODE = VALUES.index(NONE), VALUES.index(FULL)


def regions_of(code: int) -> frozenset[str] | None:
    """Return the regions that a value recomputes, by its position in `VALUES`; None for the whole layer."""
    return _REGIONS.get(VALUES[code])


def names_in(value: str) -> frozenset[str]:
    """Return the names of the regions that a value joins, or the value itself."""
    return _JOINING.get(value) or frozenset({value})


def value_of(text: str) -> str:
    """Return the value that a text stands for; regions may be in any order.

    Raises SpecError for a name that is no region, for a region that is there twice, and for a part of another region.
    """
    if text in VALUES:
        return text
    names = text.split(JOINED)
    for name in names:
        of = "" if name == text else f"{text!r}: "
        if name in MAIN:
            raise SpecError(f"recompute = {of}{name!r} stands alone (regions: {', '.join(REGION_NAMES)})")
        if name not in REGIONS_BY_NAME:
            meant = next((f"; did you mean {region.name!r}?" for region in REGIONS if region.megatron_lm == name), "")
            listed = f"known: {', '.join(MAIN)}, or names joined with {JOINED} of {', '.join(REGION_NAMES)}"
            meant = meant or did_you_mean(name, (*MAIN, *REGION_NAMES))
            raise SpecError(f"recompute = {of}{name!r} is not known{meant} ({listed})")
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"recompute = {text!r}: {name!r} is there twice")
        if (outer := REGIONS_BY_NAME[name].within) in names:
            raise SpecError(
                f"recompute = {text!r}: {name!r} is a part of {outer!r}, which has it recomputed: leave it out"
            )
    return next(value for value, regions in _REGIONS.items() if regions == set(names))


# Names in launchers and papers; dsx takes none of them, and says its own.
_ALSO_CALLED = {
    "num_gpus": ("gpus", "n_gpus", "ngpus", "world_size"),
    "global_batch_size": ("gbs", "global_batch", "train_batch_size"),
    "sequence_length": ("seq", "seq_len", "seq_length", "max_seq_len", "context_length"),
    "tp": ("tensor_parallel", "tensor_model_parallel_size", "tensor_parallel_degree"),
    "cp": ("context_parallel", "context_parallel_size", "context_parallel_degree"),
    "ep": ("expert_parallel", "expert_model_parallel_size", "expert_parallel_degree"),
    "pp": ("pipeline_parallel", "pipeline_model_parallel_size", "pipeline_parallel_degree"),
    "dp": ("data_parallel", "data_parallel_size", "data_parallel_degree"),
    "vpp": ("vp", "virtual_pipeline", "virtual_pipeline_model_parallel_size"),
    "microbatch_size": ("mbs", "microbatch", "micro_batch", "micro_batch_size", "train_micro_batch_size_per_gpu"),
    "num_microbatches": ("ga", "gas", "grad_accum", "gradient_accumulation_steps"),
    "zero_stage": ("zero", "zero_optimization_stage"),
    "recompute": ("recomputation", "activation_checkpointing", "activation_checkpoint"),
    "schedule": ("pipeline_schedule", "pipeline_parallel_schedule"),
}

Level = Literal["job", "key", "placement", "step"]
Values = tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """One choice of a plan."""

    name: str
    level: Level
    description: str
    default: int | str = 1  # of a plan that does not state the choice
    values: Values = ()  # all names, or all numbers; empty: whole numbers from `least` on
    least: int = 1
    reads: Callable[[str], str] = str  # from a name as people may write it to one of `values`; raises SpecError
    listed: Values = ()  # the values that advice and documents list, where all are too many
    rest: str = ""  # the other values, in words
    searched: bool = False  # whether an assumption set may fix it and a search may vary it
    # Values of a number that a search tries, from layers of the model (`Limits.tried_layers`) and from stages times
    # replicas.
    tried: Callable[[Sequence[int], int], Int[np.ndarray, "values"]] | None = None
    no_effect: Callable[[Columns], Truth] | None = None  # plans that cost the same with every value
    rule: str = ""  # what a search requires of a value; {layers}, {stages}: of the model; {values}: all values
    varied_last: bool = False  # whether a search by bounds first takes the default only (`dsx.search.variants`)
    later: bool = False  # added after candidates had ids; older plans have the default

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names that the codes stand for; empty for a number."""
        return tuple(value for value in self.values if isinstance(value, str))

    @property
    def also_called(self) -> tuple[str, ...]:
        """Names in launchers and papers."""
        return _ALSO_CALLED.get(self.name, ())

    @property
    def main(self) -> Values:
        """The values that advice and documents list."""
        return self.listed or self.values

    @cached_property
    def codes(self) -> tuple[int, ...]:
        """The numbers that `values` are stored as."""
        return tuple(range(len(self.values))) if self.names else tuple(map(int, self.values))

    @property
    def default_code(self) -> int:
        """The code of the default."""
        return self.code(self.default)

    def name_of(self, code: int) -> int | str:
        """Return the name that a code stands for; a number stands for itself."""
        return self.names[code] if self.names else code

    def code(self, value: object) -> int:
        """Return the code of a value.

        Raises SpecError for a value that the choice does not have.
        """
        if self.names:
            value = self.reads(value) if isinstance(value, str) else value
            if value not in self.names:
                hint = did_you_mean(str(value), self.names)
                raise SpecError(f"{self.name} = {value!r} is not known{hint} (known: {', '.join(self.names)})")
            return self.names.index(str(value))
        if isinstance(value, int) and (
            value in self.codes or (not self.codes and self.least <= value <= LARGEST_COUNT)
        ):
            return int(value)
        most = f" and at most {LARGEST_COUNT}" if isinstance(value, int) and value > LARGEST_COUNT else ""
        number = f"a whole number of at least {self.least}{most}"
        expected = f"one of {', '.join(map(str, self.codes))}" if self.codes else number
        shown = whole_number_text(value) if isinstance(value, int) else repr(value)
        raise SpecError(f"{self.name} = {shown} must be {expected}")


MODEL_AXES = ("tp", "tp2", "cp", "ep")  # of a shard key
_GROUPS = {
    "tp": "a tensor parallel group",
    "tp2": "a second tensor parallel group",
    "cp": "a context parallel group",
    "ep": "an expert parallel group",
    "pp": "a pipeline",
    "dp": "a data parallel group",
}

CHOICES: tuple[Choice, ...] = (
    Choice("num_gpus", "job", "GPUs of the job", rule="the sweep states num_gpus"),
    Choice(
        "global_batch_size",
        "job",
        "sequences of one step, over all replicas",
        rule="the sweep states global_batch_size",
    ),
    Choice("sequence_length", "job", "tokens of one sequence"),
    Choice("strategy", "key", "strategy, which shards each role of a layer", rule="the sweep states strategy"),
    Choice("tp", "key", "tensor parallel degree"),
    Choice("tp2", "key", "second tensor parallel degree"),
    Choice("cp", "key", "context parallel degree"),
    Choice(
        "ep",
        "key",
        "expert parallel degree",
        searched=True,
        rule="ep divides the number of experts, and the product of the degrees that it nests in",
    ),
    Choice("pp", "placement", "pipeline parallel degree", rule="pp divides num_gpus and the {layers} layers"),
    Choice(
        "dp",
        "placement",
        "data parallel degree",
        rule="dp divides global_batch_size, and all degrees multiply to num_gpus",
    ),
    Choice(
        "vpp",
        "step",
        "virtual pipeline stages per rank",
        searched=True,
        tried=lambda layers, ranks: all_divisors(layers),
        rule="vpp divides the layers of a stage, {layers} / pp; vpp above 1 needs pp above 1, schedule 1f1b, and a "
        "num_microbatches that pp divides; schedule zb-v needs vpp 2",
    ),
    Choice(
        "panels",
        "key",
        "panels in which a multiply gathers its operands; 1 gathers them whole",
        rule="panels is the largest degree times a power of two; it is 1 under a strategy without panels",
    ),
    Choice(
        "microbatch_size",
        "key",
        "sequences of one microbatch, per replica",
        rule="microbatch_size divides the sequences of a replica, global_batch_size / dp",
    ),
    Choice(
        "num_microbatches",
        "step",
        "microbatches of one step, per replica",
        rule="num_microbatches is global_batch_size / (dp * microbatch_size)",
    ),
    Choice(
        "zero_stage",
        "step",
        "ZeRO stage",
        values=(0, 1, 2, 3),
        searched=True,
        rule="ZeRO stage 0 shards nothing, so zero_replicas is 1",
    ),
    Choice(
        "zero_replicas",
        "step",
        "replicas of what ZeRO shards; 1 shards over all data parallel ranks",
        searched=True,
        tried=lambda layers, ranks: divisors(ranks),
        rule="zero_replicas divides dp and the number of ranks with the same experts; it is 1 with ZeRO stage 0",
        varied_last=True,
        later=True,
    ),
    Choice(
        "recompute",
        "step",
        "activations that the backward recomputes",
        default="none",
        values=VALUES,
        reads=value_of,
        listed=MAIN,
        rest=f"or names of regions of a layer, joined with {JOINED}",
        searched=True,
        rule="without recomputation stored_layers is 0",
    ),
    Choice(
        "stored_layers",
        "step",
        "layers of each stage that store their activations, exempt from recomputation",
        default=0,
        least=0,
        searched=True,
        tried=lambda layers, ranks: np.arange(layers[0] + 1),
        rule="stored_layers is below the layers of a stage, {layers} / pp; it is 0 without recomputation",
        varied_last=True,
        later=True,
    ),
    Choice(
        "schedule",
        "step",
        "pipeline schedule",
        default=SCHEDULES[0].name,
        values=tuple(schedule.name for schedule in SCHEDULES),
        searched=True,
        no_effect=lambda plan: plan["pp"] == 1,
        rule="vpp above 1 needs schedule 1f1b, or zb-v with vpp 2",
    ),
    Choice(
        "offload",
        "step",
        "states that are kept in host memory",
        default="none",
        values=("none", "optimizer", "activations", "both"),
        searched=True,
        rule="offload is one of {values}",
        varied_last=True,
        later=True,
    ),
    Choice(
        "order",
        "placement",
        "order in which ranks are numbered, fastest-changing axis first",
        default=ORDERS[0],
        values=ORDERS,
        searched=True,
        rule="a search tries an order only if it places pp or dp differently from the others, and numbers the replicas "
        "of an ep group consecutively",
        later=True,
    ),
    *(
        Choice(
            f"{axis}_nvs", "key" if axis in MODEL_AXES else "placement", f"members of {group} that share a fast domain"
        )
        for axis, group in _GROUPS.items()
    ),
)
BY_NAME: Mapping[str, Choice] = {choice.name: choice for choice in CHOICES}
_CALLED = {word: choice.name for choice in CHOICES for word in (choice.name, *choice.also_called)}


def column_called(name: str) -> str | None:
    """Return the column that other software or people call `name`, in any case, with hyphens too; None if none is."""
    return _CALLED.get(name.strip().lower().lstrip("-").replace("-", "_"))


def nearest_column(name: str, columns: Iterable[str]) -> str:
    """Return ``"; did you mean 'tp'?"`` for the column of `columns` that `name` means or is nearest to, or nothing."""
    columns = list(columns)
    meant = column_called(name)
    return f"; did you mean {meant!r}?" if meant in columns else did_you_mean(name, columns)


# The columns of a plan, and the columns that hold names.
PLAN_COLUMNS = tuple(BY_NAME)
CODES: Mapping[str, tuple[str, ...]] = {choice.name: choice.names for choice in CHOICES if choice.names}
NAMED = ("strategy", *CODES)
# Columns that an assumption set may fix and a search may vary.
SEARCHED_COLUMNS = tuple(choice.name for choice in CHOICES if choice.searched)
KEY_COLUMNS = tuple(choice.name for choice in CHOICES if choice.level == "key")
# Choices that are crossed with pipelines and replicas, in this order.
CROSSED = tuple(
    choice
    for later in (False, True)
    for choice in CHOICES
    if choice.searched and choice.level != "key" and choice.later == later
)
PLACEMENT_COLUMNS = ("num_gpus", "pp", "dp", "pp_nvs", "dp_nvs", *(choice.name for choice in CROSSED))
CHOICE_COLUMNS = (*PLACEMENT_COLUMNS, "global_batch_size", "num_microbatches")
STEP_SEARCHED = tuple(name for name in SEARCHED_COLUMNS if BY_NAME[name].level == "step")
# Columns that the cost of a step depends on.
STEP_COLUMNS = tuple(name for name in CHOICE_COLUMNS if BY_NAME[name].level in ("job", "placement", "step"))
