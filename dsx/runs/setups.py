"""Rows of a run table as setups that dsx can price, and what they measured, in seconds and bytes.

A setup has its missing values filled, its names resolved, and its degrees checked. The seconds of a step come from
whichever measurement a row has: seconds win, then tokens per second, then FLOP/s by the formula that `flops_kind`
names, then model FLOPs utilisation. With N tokens and F FLOPs of a step over n GPUs, seconds =
N / (tokens_per_s_per_gpu * n) = F / (tflops_per_gpu * 1e12 * n) = F / (mfu * peak * n). F of B sequences of s tokens,
l layers, h hidden, V vocabulary:

    model                 72 B l s h^2 (1 + s/6h + V/12lh) for GPT; for other models, by their layer definitions, three
                          times the multiplies of the forward, with head and active experts, attention without a mask
    model, causal         the same with half of the attention, which a causal mask leaves
    hardware, full        96 B l s h^2 (1 + s/6h + V/16lh): the forward of the layers is recomputed
    hardware, selective   72 B l s h^2 (1 + s/3h + V/12lh): attention is recomputed, as the authors count it
    8N, 6N                8 or 6 FLOPs per parameter and token, without attention

Sources: Narayanan et al., arXiv 2104.04473, equation 3; Korthikanti et al., arXiv 2205.05198, appendix A.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Literal, TypeVar

from dsx.config.assumption_set import Unfusable
from dsx.config.cluster_file import ClusterSpec
from dsx.config.cluster_file import peak_flops as device_peak
from dsx.config.model_file import ModelSpec
from dsx.errors import PlanError, SpecError
from dsx.plans.choices import BY_NAME, CHOICES, MAIN, REGION_NAMES, value_of
from dsx.plans.layer_layout import LAYOUT, check_stages, layers_of_chunks
from dsx.plans.placement import ORDERS, axes_in, fill_in_order
from dsx.plans.plan import Plan
from dsx.runs.complete import (
    SHARDED_RECIPE,
    ZERO_GROUP,
    check_possible,
    fill,
    read_notes,
    recompute_words,
    unread_words,
)
from dsx.runs.row_job import (
    Sizes,
    chain_of,
    cluster_of,
    described,
    known_clusters,
    known_models,
    known_stacks,
    model_of,
    software_of,
    token_flops,
    with_node_network,
)
from dsx.runs.table import CROSS_ENTROPY, FUSABLE, IN_PLANS, MeasuredRun, UnmodelledError, UnmodelledReason, Values
from dsx.schedules.schedules import SCHEDULES
from dsx.text import Data

T = TypeVar("T")

# What a tool counted: tensors alone, all memory that the framework's allocator holds, or all memory in use on the
# device, with its context and the buffers of the collective library.
ALLOCATED, RESERVED, DEVICE = "allocated", "reserved", "device"
# A word in mem_unit, the first one that is there -> what was counted. Without any it is the peak that the framework
# logs (`logs` of its stack).
COUNTED = {
    **dict.fromkeys(("nvidia-smi", "rocm-smi", "nvml", "driver", "device"), DEVICE),
    "reserved": RESERVED,
    "allocated": ALLOCATED,
}
# Prefix of a precision, ignoring case -> the precision of the matrix multiplies; the longest prefix wins.
PRECISIONS = {
    **dict.fromkeys(("fp8", "mxfp8", "float8", "amp_fp8"), "fp8"),
    **dict.fromkeys(("fp4", "nvfp4", "mxfp4", "float4"), "fp4"),
    **dict.fromkeys(("bf16", "bfloat16", "fp16", "float16", "half", "mixed", "amp"), "bf16"),
    "int8": "int8",
}
# Words for a schedule, in the column `schedule`, or in `framework`, where some tables state it.
_WORDS = {word: schedule.name for schedule in SCHEDULES for word in (schedule.name, *schedule.aliases)}
_SCHEDULE = re.compile(rf"(?<![\w-])({'|'.join(sorted(_WORDS, key=len, reverse=True))})(?![\w-])", re.IGNORECASE)
_INTERLEAVED = [schedule.name for schedule in SCHEDULES if schedule.interleaved]
_CHUNKS = {schedule.name: schedule.num_chunks for schedule in SCHEDULES}
_USUAL = SCHEDULES[0].name  # if a row states none


@dataclass(frozen=True, slots=True)
class Setup:
    """A training run that dsx can price: its measurements, its job, and its plan.

    The dp of the plan counts replicas of the dense part. The plan has no strategy and no `ep_nvs`: the strategy is the
    simplest one that divides what the run divides (`dsx.runs.predict`), and `ep_nvs` follows from it.
    """

    run: MeasuredRun  # the row as printed, with its measurements
    sizes: Sizes
    model: ModelSpec  # with embedding and head; equal architectures have equal names
    cluster: ClusterSpec
    plan: Plan
    sp: bool  # sequence parallelism over tp
    etp: int  # ranks of tp that divide each expert
    precision: str  # of the multiplies with weights: "bf16" (any 16 bits), "fp8", "fp4" or "int8"
    fused_attention: bool
    unfused: frozenset[Unfusable]  # operators that ran as several kernels
    assumptions: Mapping[str, object]  # fields of an assumption set that the row states
    gpus_per_node: int
    stack: str | None  # of its software; None if there are no stacks
    counted: str  # which bytes its measured memory counts: "allocated", "reserved" or "device"
    remark: str | None  # about software that no stack names
    filled: tuple[str, ...]  # missing columns whose default matters
    from_notes: tuple[str, ...]  # missing columns that the notes state
    unread: tuple[str, ...]  # what the notes name and dsx prices, without a value


Setups = Sequence[Setup | UnmodelledReason]  # of the rows of a table


def setups(runs: Sequence[MeasuredRun]) -> list[Setup | UnmodelledReason]:
    """Return the setup of each row, or the reason why it has none, in the order of `runs`."""
    catalogue, of_rows = _Catalogue(), []
    for run in runs:
        try:
            of_rows.append(_setup(run, catalogue))
        except UnmodelledError as error:
            of_rows.append(error.reason)
    return of_rows


def count_rows_by(setups: Setups, field: Literal["filled", "from_notes", "unread", "remark"]) -> dict[str, int]:
    """Return how many rows have each entry of a field of their setups, the largest number first.

    So columns are counted that were filled or read from notes, words of notes that were not read, and remarks on
    software that no stack names.
    """
    entries = (getattr(setup, field) for setup in setups if isinstance(setup, Setup))
    rows = ((entry,) if isinstance(entry, str) else entry or () for entry in entries)
    return dict(Counter(name for row in rows for name in row).most_common())


def _once(find: Callable[..., T]) -> Callable[..., T]:
    """Return the function with its results, and the reasons why there is none, kept by its arguments."""

    @cache
    def result(*arguments: Hashable) -> T | UnmodelledReason:
        try:
            return find(*arguments)
        except UnmodelledError as error:
            return error.reason

    def kept(*arguments: Hashable) -> T:
        if isinstance(value := result(*arguments), UnmodelledReason):
            raise UnmodelledError(value.rule, value.detail)
        return value

    return kept


class _Catalogue:
    """The known clusters, models and stacks; those that several rows share are found once."""

    def __init__(self) -> None:
        clusters, models, self.stacks = known_clusters(), known_models(), known_stacks()
        self.cluster = _once(lambda gpu, gpus_per_node: cluster_of(gpu, gpus_per_node, clusters))
        self.model = _once(lambda sizes, sequence_length: model_of(sizes, sequence_length, models))
        self.software = cache(lambda software, framework, year: software_of(software, framework, year, self.stacks))


def _setup(run: MeasuredRun, catalogue: _Catalogue) -> Setup:
    cells = {field.name: getattr(run, field.name) for field in fields(MeasuredRun) if field.name != "further"}
    in_notes = read_notes(cells)
    word = recompute_words().get((cells["recompute"] or "").strip().lower())
    if word is not None:
        cells["recompute"] = word.recompute
    values, filled = fill(cells | in_notes)
    check_possible(values)
    cluster: ClusterSpec = catalogue.cluster(values["gpu"], values["gpus_per_node"])
    sizes = Sizes(**{field.name: values[field.name] for field in fields(Sizes)})
    model: ModelSpec = catalogue.model(sizes, values["seq"])
    precision = _by_prefix(values["precision"], PRECISIONS, "precision")
    recompute, schedule = _recompute(values["recompute"]), _schedule(run)
    layout = {} if values["stage_layers"] is None else {LAYOUT: _layers(values, model)}
    if values["vpp"] > 1 and schedule not in _INTERLEAVED and values["vpp"] != _CHUNKS[schedule]:
        detail = f"schedule={schedule}, vpp={values['vpp']}"
        raise UnmodelledError("vpp with a schedule that has no virtual stages", detail)
    if values["node_network"]:
        cluster = with_node_network(cluster, values["node_network"], values["gpus_per_node"])
    # With fused attention there are no scores to recompute: fully sharded recipes mean another policy.
    if recompute == "selective" and values["flash"] and values["zero_stage"] == 3:
        word = recompute_words()[SHARDED_RECIPE]
    kept: dict[str, str | int] = {}
    if word is not None and word.recompute is not None:
        stored = int(word.stored_share * (values["layers"] / values["pp"]))
        kept = {"recompute": word.recompute, "stored_layers": stored, "offload": word.offload}
    replicas = _zero_replicas(values, dict(run.further))
    read = (*(column for column in in_notes if column != ZERO_GROUP), *replicas)
    choices = {
        "recompute": recompute,
        **kept,
        "schedule": schedule,
        **replicas,
        **{name: BY_NAME[name].name_of(code) for name, code in run.further},
        **layout,
    }
    software = catalogue.software(run.software, run.framework, run.year)
    return Setup(
        run=run,
        sizes=sizes,
        model=model,
        cluster=cluster,
        plan=_plan(values, choices, cluster.network.nvs.size),
        sp=values["sp"],
        etp=values["etp"],
        precision=precision,
        fused_attention=values["flash"],
        unfused=FUSABLE - values["kernels"],
        assumptions=_assumptions_in(values),
        gpus_per_node=values["gpus_per_node"],
        stack=software and software.stack.name,
        counted=counted_bytes(run, software.stack.software.logs) if software else counted_bytes(run),
        remark=described(software.unknown, software.stack, catalogue.stacks) if software and software.unknown else None,
        filled=filled,
        from_notes=read,
        unread=unread_words(run.notes or "", _stated_columns(run, read, filled, values), model),
    )


def counted_bytes(run: MeasuredRun, logs: str = ALLOCATED) -> str:
    """Return which bytes were counted: "allocated", "reserved" or "device"; `logs` where mem_unit says nothing."""
    unit = (run.mem_unit or "").lower()
    return next((kind for word, kind in COUNTED.items() if word in unit), logs)


def _assumptions_in(values: Values) -> dict[str, object]:
    """Return the fields of an assumption set that a row states.

    Gradients of FP16, scaled with the loss, are kept in FP16 unless the row says otherwise: Megatron-LM accumulates in
    FP32 by itself with BF16 alone (accumulate_allreduce_grads_in_fp32, megatron/training/arguments.py).
    """
    half = values["precision"].lower().startswith(("fp16", "float16", "half"))
    by_field = {
        "gradient_bytes": values["gradient_bytes"] or (2 if half else None),
        "cross_entropy_bytes": CROSS_ENTROPY.get(values["cross_entropy"]),
        "dispatcher": values["dispatcher"],
    }
    return {name: value for name, value in by_field.items() if value is not None}


def _plan(values: Values, choices: Mapping[str, object], domain: int) -> Plan:
    """Return the plan of a row, with its ranks placed in the order of Megatron-LM: tp innermost, then cp, dp and pp.

    Run tables state no placement. If the degrees of a job do not fill a domain, as with 64 of 72 GPUs, the rest is left
    to other jobs.
    """
    plan: Data = {choice.name: choice.default for choice in CHOICES if choice.name != "strategy"}
    plan |= {name: values[name] for name in ("tp", "cp", "ep", "pp", "vpp", "dp", "zero_stage")}
    plan |= {column: values[name] for column, name in IN_PLANS.items()}
    # In a pipeline, frameworks that shard weights gather them once a step and reduce gradients after the last
    # microbatch (TorchTitan's fsdp_reshard_after_forward; torch.distributed.pipelining): what stage 1 does.
    if plan["pp"] > 1 and plan["zero_stage"] == 3:
        plan["zero_stage"] = 1
    plan["num_microbatches"] = values["global_batch"] // (values["dp"] * values["microbatch"])
    shares = fill_in_order({axis: plan[axis] for axis in axes_in(ORDERS[0])}, domain)
    return Plan(plan | {f"{axis}_nvs": share for axis, share in shares.items()} | dict(choices))


def _layers(values: Values, model: ModelSpec) -> tuple[int, ...]:
    """Return the layers of each chunk of the layout that a row states."""
    try:
        layers = layers_of_chunks(values["stage_layers"], chain_of(model))
        check_stages(layers, values["stage_layers"], values["pp"], values["vpp"])
    except PlanError as error:
        raise UnmodelledError("stage_layers are no layout of the run", str(error)) from None
    return layers


def _stated_columns(run: MeasuredRun, read: Iterable[str], filled: Iterable[str], values: Values) -> set[str]:
    """Return the columns that a row states, in its cells or its notes, or that are filled by what its notes say."""
    columns = {field.name for field in fields(MeasuredRun) if getattr(run, field.name) is not None}
    if values["pp"] == 1 or ("vpp" in filled and values["vpp"] > 1):
        columns.add("vpp")
    if values["n_gpus"] <= values["gpus_per_node"]:
        columns.add("node_network")  # nothing leaves a job of one node
    if (values["layers"] + 2) % values["pp"] == 0:
        # Embedding and head count as layers of an even cut, so the first and last stages have one layer fewer.
        columns.add("stage_layers")
    return columns | {*read} | dict(run.further).keys()


def _zero_replicas(values: Values, further: Mapping[str, int]) -> dict[str, int]:
    """Return zero_replicas, if the notes state the ranks of a shard group and no cell the replicas."""
    group, dp = values.get(ZERO_GROUP), values["dp"]
    if group is None or "zero_replicas" in further or not values["zero_stage"]:
        return {}
    # Ranks of cp are in a shard group too.
    replicas, remainder = divmod(dp * values["cp"], group)
    return {} if remainder or not replicas or dp % replicas else {"zero_replicas": replicas}


def _by_prefix(text: str, values: Mapping[str, str], column: str) -> str:
    prefixes = [prefix for prefix in values if text.lower().startswith(prefix)]
    if not prefixes:
        raise UnmodelledError(f"{column} is not known", f"{text!r}, known: {', '.join(values)}")
    return values[max(prefixes, key=len)]


def _recompute(text: str) -> str:
    """Return a value of `recompute`; of none, selective and full a prefix is enough, and further words may follow."""
    if text.lower().startswith(MAIN):
        return _by_prefix(text, {name: name for name in MAIN}, "recompute")
    try:
        return value_of(text.lower())
    except SpecError:
        names = ", ".join((*MAIN, *REGION_NAMES))
        raise UnmodelledError("recompute is not known", f"{text!r}, known: {names}") from None


def _schedule(run: MeasuredRun) -> str:
    if run.schedule is None:
        word = _SCHEDULE.search(run.framework or "")
        return _WORDS[word[1].lower()] if word else _USUAL
    if run.schedule.lower() not in _WORDS:
        raise UnmodelledError("schedule is not known", f"{run.schedule!r}, known: {', '.join(_WORDS)}")
    return _WORDS[run.schedule.lower()]


# Prefixes of mem_unit, ignoring case; a blank cell means GB.
UNITS = {"gib": 2.0**30, "mib": 2.0**20, "gb": 1e9, "mb": 1e6}
_CAUSAL = re.compile(r"(?<!non-)(?<!non )\bcausal")


def measured_bytes(run: MeasuredRun) -> float | UnmodelledReason | None:
    """Return the measured bytes on the fullest GPU; None if the row has none, a Reason if the unit is unknown."""
    if run.measured_mem_gb is None:
        return None
    unit = (run.mem_unit or "GB").lower()
    factor = next((factor for name, factor in UNITS.items() if unit.startswith(name)), None)
    if factor is None:
        return UnmodelledReason("mem_unit is not known", f"{run.mem_unit!r}, known: GB, GiB, MB, MiB")
    return run.measured_mem_gb * factor


def measured_step_time(setup: Setup) -> float | UnmodelledReason | None:
    """Return the measured seconds of a step; None if nothing gives them, a Reason if `flops_kind` is unknown."""
    run = setup.run
    if run.measured_iter_s is not None:
        return run.measured_iter_s
    if run.measured_tokens_per_s_per_gpu is not None:
        tokens = setup.plan["global_batch_size"] * setup.plan["sequence_length"]
        return tokens / (run.measured_tokens_per_s_per_gpu * setup.plan["num_gpus"])
    if run.measured_tflops_per_gpu is None and run.measured_mfu is None:
        return None
    if run.measured_tflops_per_gpu is None:
        return step_flops(setup, "model") / ((run.measured_mfu or 0.0) * peak_flops(setup) * setup.plan["num_gpus"])
    kind = flops_kind(run)
    if isinstance(kind, UnmodelledReason):
        return kind
    return step_flops(setup, kind) / (run.measured_tflops_per_gpu * 1e12 * setup.plan["num_gpus"])


def peak_flops(setup: Setup) -> float:
    """Return the FLOP/s of one GPU that an MFU refers to: its dense matrix peak at the precision of the run."""
    return device_peak(setup.cluster.device, setup.precision)


def flops_kind(run: MeasuredRun) -> str | UnmodelledReason:
    """Return the formula of a row's FLOP/s, a key of the table in `step_flops`; a blank cell means "model"."""
    text = (run.flops_kind or "model").strip().lower()
    if text.startswith("model") or re.match(r"6\s*(?:\*\s*)?n\s*\+\s*attention", text):
        return "model, causal" if _CAUSAL.search(text) else "model"
    if text.startswith("hardware"):
        return "hardware, selective" if "selective" in text else "hardware, full"
    if match := re.match(r"([68])\s*(?:\*\s*)?n\b", text):
        return f"{match[1]}N"
    return UnmodelledReason("flops_kind is not known", f"{run.flops_kind!r}, known: model, hardware, 6N, 8N")


def step_flops(setup: Setup, kind: str) -> float:
    """Return the FLOPs of a step as the formula `kind` counts them."""
    forward = token_flops(setup.model, setup.plan["sequence_length"])
    tokens = setup.plan["global_batch_size"] * setup.plan["sequence_length"]
    per_token = {
        "model": 3 * (forward.layers + forward.head + forward.attention),
        "model, causal": 3 * (forward.layers + forward.head + 0.5 * forward.attention),
        "hardware, full": 4 * forward.layers + 3 * forward.head + 4 * forward.attention,
        "hardware, selective": 3 * (forward.layers + forward.head) + 6 * forward.attention,
        "6N": 3 * (forward.layers + forward.head),
        "8N": 4 * (forward.layers + forward.head),
    }
    return tokens * per_token[kind]
