"""The choices of a plan, each one record: columns, codes, ids, what is searched and the documents follow from it.

A choice is of the job (what is asked), of the shard key (what a layer costs depends on it), of the placement (pipeline
and replicas, and how they lie) or of the step (what combines the costs of layers). A choice of the step or the
placement that is searched is crossed with those before it, in the order of this table; choices that came later come
last, so that candidates keep their order and their ids.
Choices that are names hold codes: positions in `values`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dsx.errors import SpecError, did_you_mean
from dsx.space.divisors import divisors
from dsx.space.schedules import SCHEDULES
from dsx.space.tiers import ORDERS
from dsx.units import LARGEST_COUNT

Level = Literal["job", "key", "placement", "step"]
Values = tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a plan."""

    name: str
    level: Level
    description: str
    usual: int | str = 1  # where a plan says nothing; it changes nothing, or is what people run
    values: Values = ()  # all there are: names, or stages; empty: whole numbers from `least` on
    least: int = 1
    searched: bool = False  # whether an assumption set may hold it fixed, and a search leave it open
    # Of a number: the values that a search tries, of (layers of the model, pipeline stages times replicas).
    tried: Callable[[int, int], Any] | None = None
    alike: Callable[[Mapping[str, Any]], Any] | None = (
        None  # plans for which all values are one: a search has the first
    )
    rule: str = ""  # what a value must be for a search to have it; {layers}, {stages}: of the model
    later: bool = False  # plans of before are those with the usual value

    @property
    def names(self) -> tuple[str, ...]:
        """The names that its codes stand for; none if it is a number."""
        return tuple(value for value in self.values if isinstance(value, str))

    @property
    def codes(self) -> tuple[int, ...]:
        """The numbers that `values` are stored as."""
        return tuple(range(len(self.values))) if self.names else tuple(map(int, self.values))

    def name_of(self, code: int) -> int | str:
        """Return the name that a code stands for; a number is its own."""
        return self.names[code] if self.names else code

    def code(self, value: int | str) -> int:
        """Return the number that a value is stored as.

        Raises SpecError for a name or a stage that the choice does not have.
        """
        if self.names:
            if value not in self.names:
                hint = did_you_mean(str(value), self.names)
                raise SpecError(f"{self.name} = {value!r} is not known{hint} (known: {', '.join(self.names)})")
            return self.names.index(str(value))
        known = self.codes
        fits = isinstance(value, int) and (value in known if known else self.least <= value <= LARGEST_COUNT)
        if not fits:
            most = f" and at most {LARGEST_COUNT}" if isinstance(value, int) and value > LARGEST_COUNT else ""
            number = f"a whole number of at least {self.least}{most}"
            wanted = f"one of {', '.join(map(str, known))}" if known else number
            raise SpecError(f"{self.name} = {value!r}: {wanted} is wanted")
        return int(value)


def _divisors_of_layers(num_layers: int, ranks: int) -> Any:
    del ranks
    return divisors(num_layers)


def _divisors_of_ranks(num_layers: int, ranks: int) -> Any:
    del num_layers
    return divisors(ranks)


def _up_to_layers(num_layers: int, ranks: int) -> Any:
    del ranks
    return np.arange(num_layers + 1)


MODEL_AXES = ("tp", "tp2", "cp", "ep")  # of a shard key
_AXES = {
    "tp": "a tensor parallel group",
    "tp2": "a second tensor parallel group",
    "cp": "a context parallel group",
    "ep": "an expert parallel group",
    "pp": "a pipeline",
    "dp": "a data parallel group",
}


def _level(axis: str) -> Level:
    return "key" if axis in MODEL_AXES else "placement"


CHOICES: tuple[Choice, ...] = (
    Choice("num_gpus", "job", "GPUs of the job", rule="the sweep states num_gpus"),
    Choice(
        "global_batch_size",
        "job",
        "sequences of one step, over all replicas",
        rule="the sweep states global_batch_size",
    ),
    Choice("sequence_length", "job", "tokens of one sequence"),
    Choice("strategy", "key", "overlay that names the distribution of each role", rule="the sweep states strategy"),
    Choice("tp", "key", "tensor parallel degree"),
    Choice("tp2", "key", "second tensor parallel degree"),
    Choice("cp", "key", "context parallel degree"),
    Choice(
        "ep",
        "key",
        "expert parallel degree",
        searched=True,
        rule="ep divides the experts, and the ranks of the axes that it nests in",
    ),
    Choice("pp", "placement", "pipeline parallel degree", rule="pp divides num_gpus and the {layers} layers"),
    Choice(
        "dp",
        "placement",
        "data parallel degree",
        rule="dp divides global_batch_size, and with the other degrees it makes up num_gpus",
    ),
    Choice(
        "vpp",
        "step",
        "virtual pipeline stages per rank",
        searched=True,
        tried=_divisors_of_layers,
        rule="vpp divides the layers of a stage, {layers} / pp, with pp above 1, schedule 1f1b and whole groups of pp "
        "microbatches",
    ),
    Choice(
        "panels",
        "key",
        "panels in which a multiply asks for its gathered operands; 1 is a plain gather",
        rule="panels are the largest degree times a power of two, and 1 under a strategy that has none",
    ),
    Choice(
        "microbatch_size",
        "key",
        "sequences of one microbatch of one replica",
        rule="microbatch_size divides the sequences of a replica, global_batch_size / dp",
    ),
    Choice(
        "num_microbatches",
        "step",
        "microbatches of one replica in a step",
        rule="num_microbatches is global_batch_size / (dp * microbatch_size)",
    ),
    Choice(
        "zero_stage",
        "step",
        "ZeRO stage",
        values=(0, 1, 2, 3),
        searched=True,
        rule="ZeRO stage 0 divides nothing, so that zero_replicas is 1",
    ),
    Choice(
        "zero_replicas",
        "step",
        "copies of what ZeRO divides; 1 divides over all data parallel ranks",
        searched=True,
        tried=_divisors_of_ranks,
        rule="zero_replicas divides dp and the ranks that hold the same experts, and is 1 with ZeRO stage 0",
        later=True,
    ),
    Choice(
        "recompute",
        "step",
        "what the backward makes again",
        usual="none",
        values=("none", "selective", "full"),
        searched=True,
        rule="stored_layers are of those that recompute makes again, so that it is 0 with none",
    ),
    Choice(
        "stored_layers",
        "step",
        "layers of each stage that keep what recompute would have them make again",
        usual=0,
        least=0,
        searched=True,
        tried=_up_to_layers,
        rule="stored_layers is at most the layers of a stage, {layers} / pp, and 0 with recompute none",
        later=True,
    ),
    Choice(
        "schedule",
        "step",
        "pipeline schedule",
        usual=SCHEDULES[0].name,
        values=tuple(schedule.name for schedule in SCHEDULES),
        searched=True,
        alike=lambda plan: plan["pp"] == 1,
        rule="only 1f1b has chunks (vpp above 1)",
    ),
    Choice(
        "offload",
        "step",
        "what lies in the memory of the host",
        usual="none",
        values=("none", "optimizer", "activations", "both"),
        searched=True,
        rule="offload is one of {values}",
        later=True,
    ),
    Choice(
        "order",
        "placement",
        "axes in the order in which ranks are numbered, the one that changes fastest first",
        usual=ORDERS[0],
        values=ORDERS,
        searched=True,
        rule="an order places pp and dp as no other does, and numbers the replicas of an ep group one after another",
        later=True,
    ),
    *(
        Choice(f"{axis}_nvs", _level(axis), f"members of {group} that share a fast domain")
        for axis, group in _AXES.items()
    ),
)
BY_NAME: Mapping[str, Choice] = {choice.name: choice for choice in CHOICES}


def _named(holds: Callable[[Choice], bool]) -> tuple[str, ...]:
    return tuple(choice.name for choice in CHOICES if holds(choice))


# The columns of a plan, and those that hold names.
PLAN_COLUMNS = tuple(BY_NAME)
NAMED = ("strategy", *_named(lambda choice: bool(choice.names)))
OPEN = _named(lambda choice: choice.searched)  # columns that an assumption set may hold fixed, and a search leave open
CODES: Mapping[str, tuple[str, ...]] = {choice.name: choice.names for choice in CHOICES if choice.names}
KEY_COLUMNS = _named(lambda choice: choice.level == "key")
# What is searched beside pipeline and replicas, in the order in which it is crossed with them.
CROSSED = tuple(
    choice
    for later in (False, True)
    for choice in CHOICES
    if choice.searched and choice.level != "key" and choice.later == later
)
_PLACED = ("pp", "dp", "pp_nvs", "dp_nvs")
PLACEMENT_COLUMNS = ("num_gpus", *_PLACED, *(choice.name for choice in CROSSED))
CHOICE_COLUMNS = (*PLACEMENT_COLUMNS, "global_batch_size", "num_microbatches")
STEP_OPEN = tuple(name for name in OPEN if BY_NAME[name].level == "step")
# What the cost of a step depends on: order is in how stages and replicas lie.
STEP_COLUMNS = tuple(name for name in CHOICE_COLUMNS if name in _PLACED or BY_NAME[name].level in ("job", "step"))
