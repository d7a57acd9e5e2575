"""Rows of a run table as setups that dsx can price: missing values are filled, names resolved, degrees checked.

The measured memory of a row in bytes, and which bytes the tool counted.

Defaults for missing values of a run table, the same for every source.

Each default is what most frameworks do unless told otherwise. Uses are counted and shown, so that an error can be
traced to a default.

Turn rows of a run table into setups that dsx can price: fill missing values, resolve names, check degrees.

The measured seconds of a step, from whichever measurement a row has.

Seconds win, then tokens per second, then FLOP/s by the formula that `flops_kind` names, then model FLOPs utilisation.
With N tokens and F FLOPs of a step over n GPUs, seconds = N / (tokens_per_s_per_gpu * n) =
F / (tflops_per_gpu * 1e12 * n) = F / (mfu * peak * n). F of B sequences of s tokens, l layers, h hidden, V vocabulary:

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from dsx.config.assumption_set import Unfusable
from dsx.config.cluster_file import ClusterSpec
from dsx.config.cluster_file import peak_flops as device_peak
from dsx.config.model_file import ModelSpec
from dsx.config.stack import StackSpec
from dsx.errors import PlanError, SpecError
from dsx.plans.choices import BY_NAME, CHOICES, MAIN, REGION_NAMES, value_of
from dsx.plans.layer_layout import LAYOUT, check_stages, layers_of_chunks, text_of
from dsx.plans.placement import ORDERS, axes_in, fill_in_order
from dsx.plans.plan import Plan
from dsx.runs.machines import (
    Sizes,
    Software,
    chain_of,
    cluster_of,
    described,
    known_clusters,
    known_models,
    known_stacks,
    model_of,
    software_of,
    token_flops,
)
from dsx.runs.notes import (
    SHARDED_RECIPE,
    ZERO_GROUP,
    RecomputeWord,
    names_interleaving,
    read_notes,
    recompute_words,
    unread_words,
)
from dsx.runs.table import (
    CROSS_ENTROPY,
    FUSABLE,
    IN_PLANS,
    MeasuredRun,
    UnmodelledReason,
    impossible,
    with_node_network,
)
from dsx.schedules.schedules import SCHEDULES

# Prefixes of mem_unit, ignoring case; a blank cell means GB.
UNITS = {"gib": 2.0**30, "mib": 2.0**20, "gb": 1e9, "mb": 1e6}

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


def measured_bytes(run: MeasuredRun) -> float | UnmodelledReason | None:
    """Return the measured bytes on the fullest GPU; None if the row has none, a Reason if the unit is unknown."""
    if run.measured_mem_gb is None:
        return None
    unit = (run.mem_unit or "GB").lower()
    factor = next((factor for name, factor in UNITS.items() if unit.startswith(name)), None)
    if factor is None:
        return UnmodelledReason("mem_unit is not known", f"{run.mem_unit!r}, known: GB, GiB, MB, MiB")
    return run.measured_mem_gb * factor


def counted_bytes(run: MeasuredRun, logs: str = ALLOCATED) -> str:
    """Return which bytes were counted: "allocated", "reserved" or "device"; `logs` where mem_unit says nothing."""
    unit = (run.mem_unit or "").lower()
    return next((kind for word, kind in COUNTED.items() if word in unit), logs)


Values = Mapping[str, Any]  # the values of a row by column, None where missing


@dataclass(frozen=True, slots=True)
class Default:
    """The default of a column, and the rows in which the column matters."""

    rule: str  # in words
    value: Callable[[Values], Any]  # from the values of earlier columns in DEFAULTS; None = stays missing
    matters: Callable[[Values], bool] = lambda values: True


def _has_experts(values: Values) -> bool:
    return (values["experts"] or 0) > 1  # one expert is a dense model


def _has_unfused_variants(values: Values) -> bool:
    # Layers with neither gates nor experts have layer norms, and every framework has a fused kernel for those.
    return values["gated_mlp"] or _has_experts(values) or not values["flash"]


def _replicas(values: Values) -> int | None:
    # With a remainder the product of the degrees is not n_gpus, which `dsx.runs.table` reports.
    model_parallel = values["tp"] * values["pp"] * values["cp"]
    return values["n_gpus"] and max(values["n_gpus"] // model_parallel, 1)


def _microbatch(values: Values) -> int:
    # Sharded weights in a pipeline are PyTorch's parallelisms: torch.distributed.pipelining cuts a batch into as many
    # microbatches as there are chunks, unless it is told a number (TorchTitan, ParallelismConfig).
    if values["zero_stage"] < 3 or values["pp"] == 1:
        return 1
    return max((values["global_batch"] or 0) // (values["dp"] * values["pp"] * values["vpp"]), 1)


def _virtual_stages(values: Values) -> int:
    """Return the chunks of a stage: those of an interleaved schedule without a degree have two layers if possible.

    Published interleaved plans have chunks of one to four layers, most of them two (MegaScale, arXiv 2402.15627,
    section 6: six chunks on each of eight stages of 96 layers; NVIDIA's recipes of NeMo). Embedding and head count as
    layers where the layers alone do not divide.
    """
    layers, pp = values["layers"], values["pp"]
    if not layers or pp == 1 or not names_interleaving(values):
        return 1
    per_stage = next((total // pp for total in (layers, layers + 2) if total % pp == 0), layers // pp)
    chunks = [count for count in range(2, per_stage + 1) if per_stage % count == 0]
    return max((count for count in chunks if 2 * count <= per_stage), default=chunks[0] if chunks else 1)


def _expert_tensor_parallel(values: Values) -> int:
    """Return tp where it can divide the experts too, which is Megatron-Core's default, else 1."""
    tp, ranks = values["tp"], values["tp"] * values["cp"] * (values["dp"] or 1)
    divides = (values["ffn_hidden"] or 0) % tp == 0 and ranks % (values["ep"] * tp) == 0
    return tp if values["sp"] and divides else 1


def _sequence_parallel(values: Values) -> bool:
    return values["tp"] > 1 and (values["seq"] or 0) % (values["tp"] * values["cp"]) == 0


# In this order: a default may use the columns above it.
DEFAULTS: dict[str, Default] = {
    "heads": Default("hidden / 128", lambda v: v["hidden"] and max(v["hidden"] // 128, 1)),
    "kv_heads": Default("heads", lambda v: v["heads"]),
    "experts": Default("0, a dense model", lambda v: 0, matters=lambda v: bool(v["topk"])),
    "topk": Default("2", lambda v: 2, matters=_has_experts),
    "gated_mlp": Default("1 with experts, else 0", _has_experts),
    "ffn_hidden": Default("4 * hidden", lambda v: v["hidden"] and 4 * v["hidden"]),
    "vocab": Default("51200, the padded vocabulary of GPT-2", lambda v: 51200),
    "gpus_per_node": Default("8", lambda v: 8),
    "precision": Default("bf16", lambda v: "bf16"),
    # Short sequences have small score matrices; fused attention, which never stores them, came with long sequences.
    "flash": Default("1 where seq > 2048, else 0", lambda v: (v["seq"] or 0) > 2048),
    "kernels": Default("a fused one for each norm and softmax", lambda v: FUSABLE, matters=_has_unfused_variants),
    "tp": Default("1", lambda v: 1),
    "pp": Default("1", lambda v: 1),
    "cp": Default("1", lambda v: 1, matters=lambda v: (v["n_gpus"] or 1) > 1),
    "dp": Default("n_gpus / (tp * pp * cp)", _replicas),
    "ep": Default("1", lambda v: 1, matters=_has_experts),
    "vpp": Default(
        "1; with an interleaved schedule chunks of two layers", _virtual_stages, matters=lambda v: v["pp"] > 1
    ),
    "sp": Default("1 where tp > 1 and tp * cp divides seq", _sequence_parallel, matters=lambda v: v["tp"] > 1),
    "etp": Default(
        "tp where sp, ffn_hidden and the ranks allow it, else 1",
        _expert_tensor_parallel,
        matters=lambda v: _has_experts(v) and v["tp"] > 1,
    ),
    "zero_stage": Default("1, a distributed optimizer", lambda v: 1, matters=lambda v: (v["dp"] or 1) > 1),
    "microbatch": Default("1; with zero_stage 3 and pp > 1 as many microbatches as pp * vpp chunks", _microbatch),
    # dsx.runs.predict infers it.
    "recompute": Default("the fastest value under which the run fits", lambda v: "none"),
}


def fill(values: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a row's values with the missing ones filled, and the columns whose default matters in this row."""
    filled, used = dict(values), []
    for column, default in DEFAULTS.items():
        if filled[column] is None:
            filled[column] = default.value(filled)
            if filled[column] is not None and default.matters(filled):
                used.append(column)
    if not _has_experts(filled):
        filled |= {"experts": 0, "topk": 1, "etp": 1}
    return filled, tuple(used)


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
    stated: Mapping[str, Any]  # fields of an assumption set that the row states
    gpus_per_node: int
    stack: str | None  # of its software; None if there are no stacks
    counted: str  # which bytes its measured memory counts: "allocated", "reserved" or "device"
    remark: str | None  # about software that no stack names
    filled: tuple[str, ...]  # missing columns whose default matters
    from_notes: tuple[str, ...]  # missing columns that the notes state
    unread: tuple[str, ...]  # what the notes name and dsx prices, of which it knows nothing more


def setups(runs: Sequence[MeasuredRun]) -> list[Setup | UnmodelledReason]:
    """Return the setup of each row, or the reason why it has none, in the order of `runs`."""
    known = _Known(known_clusters(), known_models(), known_stacks(), {}, {}, {})
    return [_setup(run, known) for run in runs]


def count_filled(setups: Iterable[Setup | UnmodelledReason]) -> dict[str, int]:
    """Return, by column, how many rows use its default, the largest number first."""
    return _counts(setup.filled for setup in setups if isinstance(setup, Setup))


def count_from_notes(setups: Iterable[Setup | UnmodelledReason]) -> dict[str, int]:
    """Return, by column, how many rows take it from their notes, the largest number first."""
    return _counts(setup.from_notes for setup in setups if isinstance(setup, Setup))


def count_unread(setups: Iterable[Setup | UnmodelledReason]) -> dict[str, int]:
    """Return, by what notes name and dsx prices without knowing more of it, how many rows do, the largest first."""
    return _counts(setup.unread for setup in setups if isinstance(setup, Setup))


def count_remarks(setups: Iterable[Setup | UnmodelledReason]) -> dict[str, int]:
    """Return, by remark on software that no stack names, how many rows have it, the largest number first."""
    return _counts((setup.remark,) for setup in setups if isinstance(setup, Setup) and setup.remark)


def _counts(columns_by_row: Iterable[tuple[str, ...]]) -> dict[str, int]:
    return dict(Counter(column for columns in columns_by_row for column in columns).most_common())


@dataclass(frozen=True, slots=True)
class _Known:
    """The known clusters and models, and those already found for a row."""

    clusters: list[ClusterSpec]
    models: list[ModelSpec]
    stacks: list[StackSpec]
    cluster_of: dict[tuple[str, int], ClusterSpec | UnmodelledReason]
    model_of: dict[tuple[Sizes, int], ModelSpec | UnmodelledReason]
    software_of: dict[tuple[str | None, str | None, int | None], Software | None]

    def cluster(self, gpu: str, gpus_per_node: int) -> ClusterSpec | UnmodelledReason:
        key = (gpu, gpus_per_node)
        if key not in self.cluster_of:
            self.cluster_of[key] = cluster_of(gpu, gpus_per_node, self.clusters)
        return self.cluster_of[key]

    def model(self, sizes: Sizes, sequence_length: int) -> ModelSpec | UnmodelledReason:
        key = (sizes, sequence_length)
        if key not in self.model_of:
            self.model_of[key] = model_of(sizes, sequence_length, self.models)
        return self.model_of[key]

    def software(self, run: MeasuredRun) -> Software | None:
        key = (run.software, run.framework, run.year)
        if key not in self.software_of:
            self.software_of[key] = software_of(*key, self.stacks)
        return self.software_of[key]


def _setup(run: MeasuredRun, known: _Known) -> Setup | UnmodelledReason:
    cells = {field.name: getattr(run, field.name) for field in fields(MeasuredRun) if field.name != "further"}
    in_notes = read_notes(cells)
    word = recompute_words().get((cells["recompute"] or "").strip().lower())
    if word is not None:
        cells["recompute"] = word.recompute
    values, filled = fill(cells | in_notes)
    if reason := impossible(values):
        return reason
    cluster = known.cluster(values["gpu"], values["gpus_per_node"])
    if values["node_network"] and not isinstance(cluster, UnmodelledReason):
        cluster = with_node_network(cluster, values["node_network"], values["gpus_per_node"])
    replicas = _zero_replicas(values, dict(run.further))
    read = (*(column for column in in_notes if column != ZERO_GROUP), *replicas)
    sizes = Sizes(**{field.name: values[field.name] for field in fields(Sizes)})
    model = known.model(sizes, values["seq"])
    precision = _by_prefix(values["precision"], PRECISIONS, "precision")
    recompute = _recompute(values["recompute"])
    schedule = _schedule(run)
    # One by one, so that the type checker knows that each is not a reason.
    if isinstance(cluster, UnmodelledReason):
        return cluster
    if isinstance(model, UnmodelledReason):
        return model
    if isinstance(precision, UnmodelledReason):
        return precision
    if isinstance(recompute, UnmodelledReason):
        return recompute
    if isinstance(schedule, UnmodelledReason):
        return schedule
    layout = _layout(values, model)
    if isinstance(layout, UnmodelledReason):
        return layout
    if values["vpp"] > 1 and schedule not in _INTERLEAVED and values["vpp"] != _CHUNKS[schedule]:
        return UnmodelledReason(
            "vpp with a schedule that has no virtual stages", f"schedule={schedule}, vpp={values['vpp']}"
        )
    # With fused attention there are no scores to recompute: fully sharded recipes mean another policy.
    if recompute == "selective" and values["flash"] and values["zero_stage"] == 3:
        word = recompute_words()[SHARDED_RECIPE]
    stated = {
        "recompute": recompute,
        **_kept(word, values["layers"] / values["pp"]),
        "schedule": schedule,
        **replicas,
        **{name: BY_NAME[name].name_of(code) for name, code in run.further},
        **layout,
    }
    software = known.software(run)
    return Setup(
        run=run,
        sizes=sizes,
        model=model,
        cluster=cluster,
        plan=_plan(values, stated, cluster.network.nvs.size),
        sp=values["sp"],
        etp=values["etp"],
        precision=precision,
        fused_attention=values["flash"],
        unfused=FUSABLE - values["kernels"],
        stated=_fields(values),
        gpus_per_node=values["gpus_per_node"],
        stack=software and software.stack.name,
        counted=counted_bytes(run, software.stack.software.logs) if software else counted_bytes(run),
        remark=described(software.unknown, software.stack, known.stacks) if software and software.unknown else None,
        filled=filled,
        from_notes=read,
        unread=unread_words(run.notes or "", _known_columns(run, read, filled, values), model),
    )


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an assumption set that a row states.

    Gradients of FP16, scaled with the loss, are kept in FP16 unless the row says otherwise: Megatron-LM accumulates in
    FP32 by itself with BF16 alone (accumulate_allreduce_grads_in_fp32, megatron/training/arguments.py).
    """
    half = values["precision"].lower().startswith(("fp16", "float16", "half"))
    found = {
        "gradient_bytes": values["gradient_bytes"] or (2 if half else None),
        "cross_entropy_bytes": CROSS_ENTROPY.get(values["cross_entropy"]),
        "dispatcher": values["dispatcher"],
    }
    return {name: value for name, value in found.items() if value is not None}


def _plan(values: Mapping[str, Any], stated: Mapping[str, Any], domain: int) -> Plan:
    """Return the plan of a row, with its ranks placed in the order of Megatron-LM: tp innermost, then cp, dp and pp.

    Run tables state no placement. If the degrees of a job do not fill a domain, as with 64 of 72 GPUs, the rest is left
    to other jobs.
    """
    plan: dict[str, Any] = {choice.name: choice.default for choice in CHOICES if choice.name != "strategy"}
    plan |= {name: values[name] for name in ("tp", "cp", "ep", "pp", "vpp", "dp", "zero_stage")}
    plan |= {column: values[name] for column, name in IN_PLANS.items()}
    # In a pipeline, frameworks that shard weights gather them once a step and reduce gradients after the last
    # microbatch (TorchTitan's fsdp_reshard_after_forward; torch.distributed.pipelining): what stage 1 does.
    if plan["pp"] > 1 and plan["zero_stage"] == 3:
        plan["zero_stage"] = 1
    plan["num_microbatches"] = values["global_batch"] // (values["dp"] * values["microbatch"])
    shares = fill_in_order({axis: plan[axis] for axis in axes_in(ORDERS[0])}, domain)
    return Plan(plan | {f"{axis}_nvs": share for axis, share in shares.items()} | dict(stated))


def _layout(values: Mapping[str, Any], model: ModelSpec) -> dict[str, str] | UnmodelledReason:
    """Return the column of the layer layout of a row, if it states one."""
    stated = values["stage_layers"]
    if stated is None:
        return {}
    try:
        layers = layers_of_chunks(stated, chain_of(model))
        check_stages(layers, stated, values["pp"], values["vpp"])
    except PlanError as error:
        return UnmodelledReason("stage_layers are no layout of the run", str(error))
    return {LAYOUT: text_of(layers)}


def _known_columns(run: MeasuredRun, read: Iterable[str], filled: Iterable[str], values: Mapping[str, Any]) -> set[str]:
    """Return the columns that a row states, in its cells or its notes, or that are filled by what its notes say."""
    stated = {field.name for field in fields(MeasuredRun) if getattr(run, field.name) is not None}
    inferred = {"vpp"} if values["pp"] == 1 or ("vpp" in filled and values["vpp"] > 1) else set[str]()
    # Nothing leaves a job of one node.
    inferred |= {"node_network"} if values["n_gpus"] <= values["gpus_per_node"] else set[str]()
    # Embedding and head count as layers of an even cut, so the first and last stages have one layer fewer.
    as_cut = {"stage_layers"} if (values["layers"] + 2) % values["pp"] == 0 else set[str]()
    return stated | {*read} | inferred | as_cut | dict(run.further).keys()


def _zero_replicas(values: Mapping[str, Any], further: Mapping[str, int]) -> dict[str, int]:
    """Return zero_replicas, if the notes state the ranks of a shard group and no cell the replicas."""
    group, dp = values.get(ZERO_GROUP), values["dp"]
    if group is None or "zero_replicas" in further or not values["zero_stage"]:
        return {}
    # Ranks of cp are in a shard group too.
    replicas, rest = divmod(dp * values["cp"], group)
    return {} if rest or not replicas or dp % replicas else {"zero_replicas": replicas}


def _by_prefix(text: str, known: dict[str, str], column: str) -> str | UnmodelledReason:
    prefixes = [prefix for prefix in known if text.lower().startswith(prefix)]
    if not prefixes:
        return UnmodelledReason(f"{column} is not known", f"{text!r}, known: {', '.join(known)}")
    return known[max(prefixes, key=len)]


def _recompute(text: str) -> str | UnmodelledReason:
    """Return a value of `recompute`; of none, selective and full a prefix is enough, and further words may follow."""
    if not isinstance(known := _by_prefix(text, {name: name for name in MAIN}, "recompute"), UnmodelledReason):
        return known
    try:
        return value_of(text.lower())
    except SpecError:
        return UnmodelledReason("recompute is not known", f"{text!r}, known: {', '.join((*MAIN, *REGION_NAMES))}")


def _kept(word: RecomputeWord | None, layers: float) -> dict[str, Any]:
    """Return the columns of a plan for a word, with the number of layers of a stage that keep everything."""
    if word is None or word.recompute is None:
        return {}
    return {
        "recompute": word.recompute,
        "stored_layers": int(word.stored_share * layers),
        "offload": word.offload,
    }


def _schedule(run: MeasuredRun) -> str | UnmodelledReason:
    if run.schedule is None:
        word = _SCHEDULE.search(run.framework or "")
        return _WORDS[word[1].lower()] if word else _USUAL
    if run.schedule.lower() not in _WORDS:
        return UnmodelledReason("schedule is not known", f"{run.schedule!r}, known: {', '.join(_WORDS)}")
    return _WORDS[run.schedule.lower()]


_CAUSAL = re.compile(r"(?<!non-)(?<!non )\bcausal")


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
    once = token_flops(setup.model, setup.plan["sequence_length"])
    tokens = setup.plan["global_batch_size"] * setup.plan["sequence_length"]
    per_token = {
        "model": 3 * (once.layers + once.head + once.attention),
        "model, causal": 3 * (once.layers + once.head + 0.5 * once.attention),
        "hardware, full": 4 * once.layers + 3 * once.head + 4 * once.attention,
        "hardware, selective": 3 * (once.layers + once.head) + 6 * once.attention,
        "6N": 3 * (once.layers + once.head),
        "8N": 4 * (once.layers + once.head),
    }
    return tokens * per_token[kind]
