"""Turn rows of a run table into setups that dsx can price: fill missing values, resolve names, check degrees."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from dsx.errors import PlanError, SpecError
from dsx.runs.architecture import Sizes, chain_of, known_models, model_of
from dsx.runs.defaults import fill
from dsx.runs.fused_kernels import FUSABLE
from dsx.runs.machines import cluster_of, known_clusters
from dsx.runs.measured_memory import counted_bytes
from dsx.runs.node_network import with_node_network
from dsx.runs.note_words import unread_words
from dsx.runs.notes import ZERO_GROUP, read_notes
from dsx.runs.reasons import Reason, impossible
from dsx.runs.recompute_words import SHARDED_RECIPE, RecomputeWord, recompute_words
from dsx.runs.run_table import CROSS_ENTROPY, IN_PLANS, Run
from dsx.runs.software import Software, described, known_stacks, software_of
from dsx.space.choices import BY_NAME, CHOICES
from dsx.space.domain_fill import fill_in_order
from dsx.space.layer_layout import LAYOUT, check_stages, layers_of_chunks, text_of
from dsx.space.plan import Plan
from dsx.space.recompute_values import MAIN, REGION_NAMES, value_of
from dsx.space.schedules import SCHEDULES
from dsx.space.tiers import ORDERS, axes_in
from dsx.spec.assumptions import Unfusable
from dsx.spec.cluster import ClusterSpec
from dsx.spec.model import ModelSpec
from dsx.spec.stack import StackSpec

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
    simplest one that divides what the run divides (`dsx.predict.structure`), and `ep_nvs` follows from it.
    """

    run: Run  # the row as printed, with its measurements
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


def setups(runs: Sequence[Run]) -> list[Setup | Reason]:
    """Return the setup of each row, or the reason why it has none, in the order of `runs`."""
    known = _Known(known_clusters(), known_models(), known_stacks(), {}, {}, {})
    return [_setup(run, known) for run in runs]


def count_filled(setups: Iterable[Setup | Reason]) -> dict[str, int]:
    """Return, by column, how many rows use its default, the largest number first."""
    return _counts(setup.filled for setup in setups if isinstance(setup, Setup))


def count_from_notes(setups: Iterable[Setup | Reason]) -> dict[str, int]:
    """Return, by column, how many rows take it from their notes, the largest number first."""
    return _counts(setup.from_notes for setup in setups if isinstance(setup, Setup))


def count_unread(setups: Iterable[Setup | Reason]) -> dict[str, int]:
    """Return, by what notes name and dsx prices without knowing more of it, how many rows do, the largest first."""
    return _counts(setup.unread for setup in setups if isinstance(setup, Setup))


def count_remarks(setups: Iterable[Setup | Reason]) -> dict[str, int]:
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
    cluster_of: dict[tuple[str, int], ClusterSpec | Reason]
    model_of: dict[tuple[Sizes, int], ModelSpec | Reason]
    software_of: dict[tuple[str | None, str | None, int | None], Software | None]

    def cluster(self, gpu: str, gpus_per_node: int) -> ClusterSpec | Reason:
        key = (gpu, gpus_per_node)
        if key not in self.cluster_of:
            self.cluster_of[key] = cluster_of(gpu, gpus_per_node, self.clusters)
        return self.cluster_of[key]

    def model(self, sizes: Sizes, sequence_length: int) -> ModelSpec | Reason:
        key = (sizes, sequence_length)
        if key not in self.model_of:
            self.model_of[key] = model_of(sizes, sequence_length, self.models)
        return self.model_of[key]

    def software(self, run: Run) -> Software | None:
        key = (run.software, run.framework, run.year)
        if key not in self.software_of:
            self.software_of[key] = software_of(*key, self.stacks)
        return self.software_of[key]


def _setup(run: Run, known: _Known) -> Setup | Reason:
    cells = {field.name: getattr(run, field.name) for field in fields(Run) if field.name != "further"}
    in_notes = read_notes(cells)
    word = recompute_words().get((cells["recompute"] or "").strip().lower())
    if word is not None:
        cells["recompute"] = word.recompute
    values, filled = fill(cells | in_notes)
    if reason := impossible(values):
        return reason
    cluster = known.cluster(values["gpu"], values["gpus_per_node"])
    if values["node_network"] and not isinstance(cluster, Reason):
        cluster = with_node_network(cluster, values["node_network"], values["gpus_per_node"])
    replicas = _zero_replicas(values, dict(run.further))
    read = (*(column for column in in_notes if column != ZERO_GROUP), *replicas)
    sizes = Sizes(**{field.name: values[field.name] for field in fields(Sizes)})
    model = known.model(sizes, values["seq"])
    precision = _by_prefix(values["precision"], PRECISIONS, "precision")
    recompute = _recompute(values["recompute"])
    schedule = _schedule(run)
    # One by one, so that the type checker knows that each is not a reason.
    if isinstance(cluster, Reason):
        return cluster
    if isinstance(model, Reason):
        return model
    if isinstance(precision, Reason):
        return precision
    if isinstance(recompute, Reason):
        return recompute
    if isinstance(schedule, Reason):
        return schedule
    layout = _layout(values, model)
    if isinstance(layout, Reason):
        return layout
    if values["vpp"] > 1 and schedule not in _INTERLEAVED and values["vpp"] != _CHUNKS[schedule]:
        return Reason("vpp with a schedule that has no virtual stages", f"schedule={schedule}, vpp={values['vpp']}")
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


def _layout(values: Mapping[str, Any], model: ModelSpec) -> dict[str, str] | Reason:
    """Return the column of the layer layout of a row, if it states one."""
    stated = values["stage_layers"]
    if stated is None:
        return {}
    try:
        layers = layers_of_chunks(stated, chain_of(model))
        check_stages(layers, stated, values["pp"], values["vpp"])
    except PlanError as error:
        return Reason("stage_layers are no layout of the run", str(error))
    return {LAYOUT: text_of(layers)}


def _known_columns(run: Run, read: Iterable[str], filled: Iterable[str], values: Mapping[str, Any]) -> set[str]:
    """Return the columns that a row states, in its cells or its notes, or that are filled by what its notes say."""
    stated = {field.name for field in fields(Run) if getattr(run, field.name) is not None}
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


def _by_prefix(text: str, known: dict[str, str], column: str) -> str | Reason:
    prefixes = [prefix for prefix in known if text.lower().startswith(prefix)]
    if not prefixes:
        return Reason(f"{column} is not known", f"{text!r}, known: {', '.join(known)}")
    return known[max(prefixes, key=len)]


def _recompute(text: str) -> str | Reason:
    """Return a value of `recompute`; of none, selective and full a prefix is enough, and further words may follow."""
    if not isinstance(known := _by_prefix(text, {name: name for name in MAIN}, "recompute"), Reason):
        return known
    try:
        return value_of(text.lower())
    except SpecError:
        return Reason("recompute is not known", f"{text!r}, known: {', '.join((*MAIN, *REGION_NAMES))}")


def _kept(word: RecomputeWord | None, layers: float) -> dict[str, Any]:
    """Return the columns of a plan for a word, with the number of layers of a stage that keep everything."""
    if word is None or word.recompute is None:
        return {}
    return {
        "recompute": word.recompute,
        "stored_layers": int(word.stored_share * layers),
        "offload": word.offload,
    }


def _schedule(run: Run) -> str | Reason:
    if run.schedule is None:
        word = _SCHEDULE.search(run.framework or "")
        return _WORDS[word[1].lower()] if word else _USUAL
    if run.schedule.lower() not in _WORDS:
        return Reason("schedule is not known", f"{run.schedule!r}, known: {', '.join(_WORDS)}")
    return _WORDS[run.schedule.lower()]
