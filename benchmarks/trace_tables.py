"""Traces beside the tables of the STAGE paper: memory, numbers of operations, volumes and compute times of a GPU.

    python benchmarks/trace_tables.py [--write docs/traces.md]

The numbers of the paper are those of its Tables V to VIII (data/validation/traces): measured ones, and those of its
generator. dsx writes the trace of the same plan on h100-nvs8 and counts what the file of rank 0 has; memory is that of
the rank that needs most. Rows whose model dsx does not have are left out.
"""

import argparse
import csv
import functools
import logging
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sections import table, write_section

import dsx
from dsx.traces.codec import COLLECTIVES, COMM_COLL, COMM_RECV, COMM_SEND, COMP
from dsx.traces.columns import RankTrace
from dsx.traces.read import read_trace
from dsx.traces.write import file_name

TABLES = Path(__file__).resolve().parent.parent / "data" / "validation" / "traces"
CLUSTER = "h100-nvs8"
ELEMENT_BYTES = 2
# Kinds of operators that the paper calls elementwise: norms, activations, biases, dropout, residual connections.
ELEMENTWISE = {"add", "bias", "gelu", "swiglu", "norm", "layernorm", "bias_dropout_add"}
COUNTS = ("gemm", "attn", "elementwise", "others", "p2p", "allreduce", "all2all", "allgather", "reducescatter")
VOLUMES = ("send_MB", "recv_MB", "allreduce_MB", "allgather_MB", "reducescatter_MB")
TIMES = ("gemm_ms", "attn_ms", "elementwise_ms", "others_ms")
COLLECTIVE_COLUMNS = {
    "allreduce": "ALL_REDUCE",
    "all2all": "ALL_TO_ALL",
    "allgather": "ALL_GATHER",
    "reducescatter": "REDUCE_SCATTER",
}
HEADS = {
    "gemm": "GeMM",
    "attn": "attention",
    "p2p": "sends",
    "allreduce": "all-reduce",
    "all2all": "all-to-all",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "recv": "receive",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What dsx traces for a row of the paper."""

    paper: tuple[str, str]  # model and plan, as the table of the paper has them without blanks
    model: str
    num_gpus: int
    batch: int
    sequence: int
    plan: str
    strategy: str = "1d"
    set: Mapping[str, object] = field(default_factory=dict)

    @property
    def named(self) -> str:
        """The row in words."""
        return f"{self.model}, {self.plan}" + (f", {self.strategy}" if self.strategy != "1d" else "")


def padded(vocabulary: int, tp: int) -> dict[str, object]:
    """Return the vocabulary as Megatron-LM pads it, to a multiple of 128 on each tensor parallel rank."""
    return {"model.dimensions.v": -(-vocabulary // (128 * tp)) * 128 * tp}


GPT = 50257
# The plans of Tables VI to VIII. Batches are what the numbers of operations ask for, not the labels of the paper.
PLANS = (
    Plan(("GPT-3-5B", "TP=8,w/SP"), "gpt3-5b", 8, 128, 2048, "tp=8", set=padded(GPT, 8)),
    Plan(("GPT-3-5B", "PP=8"), "gpt3-5b", 8, 128, 2048, "pp=8 vpp=1 microbatch_size=1", set=padded(GPT, 1)),
    Plan(("GPT-3-5B", "FSDP=8"), "gpt3-5b", 8, 128, 2048, "dp=8 zero_stage=3 microbatch_size=1", set=padded(GPT, 1)),
    Plan(("GPT-3-175B", "TP=32w/SP"), "gpt3-175b", 32, 32, 2048, "tp=32", set=padded(GPT, 32)),
    Plan(("GPT-3-175B", "TP=4,DP=2,PP=8,w/SP"), "gpt3-175b", 64, 128, 2048, "tp=4 dp=2 pp=8", set=padded(GPT, 4)),
    Plan(("Llama-3", "TP=4,PP=2"), "llama-3-8b", 8, 128, 8192, "tp=4 pp=2"),
    Plan(("Llama-3", "TP=8"), "llama-3-8b", 8, 128, 8192, "tp=8", "1d-no-sp"),
    Plan(("Llama-3", "TP=4,DP=2,PP=2"), "llama-3-8b", 16, 128, 8192, "tp=4 dp=2 pp=2", "1d-no-sp"),
    Plan(("Mixtral8x7", "TP=4,EP=8,PP=4"), "mixtral-8x7b", 128, 128, 4096, "tp=4 dp=8 ep=8 pp=4", "2d-expert-tp"),
    Plan(("Mixtral8x7", "EP=8,PP=4"), "mixtral-8x7b", 32, 128, 4096, "dp=8 ep=8 pp=4"),
)
# Those of Table V, where they are others: 80 layers of Llama-3 70B on 16 GPUs. One microbatch has the same peak.
MEMORY = {
    ("GPT-35B", "FSDP=8"): PLANS[2],
    ("GPT-35B", "TP=8"): PLANS[0],
    ("GPT-35B", "PP=8"): PLANS[1],
    ("GPT-3175B", "TP=32"): PLANS[3],
    ("LLaMA-370B", "TP=16"): Plan(
        ("LLaMA-370B", "TP=16"), "llama-3-70b", 16, 2, 8192, "tp=16", "2d-copied-kv", padded(128256, 16)
    ),
    ("Mixtral8x7B", "TP=4,EP=8,PP=4"): PLANS[8],
    ("Mixtral8x7B", "EP=8,PP=4"): PLANS[9],
}


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace has, by the columns of the paper."""

    numbers: Mapping[str, float]
    peak_bytes: int  # of the lifetimes of tensors
    predicted_bytes: float  # of dsx evaluate


def main() -> None:
    """Print the tables, or write them into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into the section of this document")
    document = parser.parse_args().write
    logging.getLogger("dsx").setLevel(logging.ERROR)  # dimensions that are floored
    text = "\n".join((memory(), counts(), volumes(), times()))
    if document:
        write_section(document, "trace_tables", text)
    else:
        print(text, end="")


def paper(name: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the rows of a table of the paper by model and plan."""
    with (TABLES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return {key(row): row for row in csv.DictReader(file)}


def key(row: Mapping[str, str]) -> tuple[str, str]:
    """Return the model and plan of a row; tables write them differently."""
    plan = row["parallelization"].replace(" ", "").replace("32,w", "32w").replace("PP=2,DP=2", "DP=2,PP=2")
    model = row["model"].replace(" ", "")
    return ("Llama-3" if "micro_batch_label" in row and model.lower().startswith("llama") else model), plan


@functools.cache
def traced(number: int) -> Traced:
    """Return what the trace of a plan has."""
    return of_plan(PLANS[number])


def of_plan(plan: Plan) -> Traced:
    """Write the trace of a plan and count what is in it."""
    job = dsx.Job(plan.model, CLUSTER, plan.num_gpus, plan.batch, plan.sequence, set=plan.set)
    with tempfile.TemporaryDirectory() as folder:
        dsx.trace.write(job, plan.plan, strategy=plan.strategy, out=folder, ranks="stages")
        peak = dsx.trace.inspect(folder).peak_bytes
        numbers = counted(read_trace(Path(folder) / file_name(0), 0))
    predicted = dsx.evaluate(job, plan.plan, strategy=plan.strategy).to_data()["peak_bytes"]
    assert peak is not None
    return Traced(numbers, peak, predicted)


def counted(trace: RankTrace) -> dict[str, float]:
    """Return the numbers of a rank by the columns of the paper."""
    kinds = np.array([kind_of(text) for text in trace.op_types.table])
    of_node = np.where(trace.types == COMP, kinds[trace.op_types.codes], "")
    found: dict[str, float] = {}
    for kind in ("gemm", "attn", "elementwise", "others"):
        nodes = of_node == kind
        found |= {kind: int(nodes.sum()), f"{kind}_ms": float(trace.duration_ns[nodes].sum() / 1e6)}
    for column, name in COLLECTIVE_COLUMNS.items():
        nodes = (trace.types == COMM_COLL) & (trace.comm_type == COLLECTIVES[name])
        found |= {column: int(nodes.sum()), f"{column}_MB": millions(trace, nodes)}
    sends, receives = trace.types == COMM_SEND, trace.types == COMM_RECV
    exchanged = found["all2all_MB"]  # the paper counts an all-to-all as sends and receives, as NCCL runs it
    found |= {"send_MB": millions(trace, sends) + exchanged, "recv_MB": millions(trace, receives) + exchanged}
    return found | {"p2p": int(sends.sum())}


def kind_of(op_type: str) -> str:
    """Return the column of a launch, from the kinds of its operators."""
    kinds = set(op_type.split("+"))
    if "softmax" in kinds and "einsum" in kinds:
        return "attn"
    return "gemm" if "einsum" in kinds else "elementwise" if kinds <= ELEMENTWISE else "others"


def millions(trace: RankTrace, nodes: np.ndarray) -> float:
    """Return the elements that some nodes communicate, in millions."""
    return float(trace.comm_size[nodes].sum()) / ELEMENT_BYTES / 1e6


def memory() -> str:
    """Return Table V with the memory of dsx."""
    rows: list[tuple[str, ...]] = []
    for named, row in paper("table5_peak_memory_gb").items():
        if (plan := MEMORY.get(named)) is None:
            continue
        found = traced(PLANS.index(plan)) if plan in PLANS else of_plan(plan)
        gigabytes = (found.peak_bytes / 1e9, found.predicted_bytes / 1e9)
        given = (row["measured_gb"], row["synthesized_gb"])
        rows.append((plan.named, *(f"{float(text):.1f}" for text in given), *(f"{one:.1f}" for one in gigabytes)))
    head = ("Table V: memory, GB", "measured", "paper", "dsx, tensors of the trace", "dsx, `peak_bytes`")
    return table(head, rows, 4)


def three(name: str, measured: str, synthesized: str, columns: Iterable[str], digits: int, total: bool) -> str:
    """Return a table of the paper with a line of dsx below each two of the paper's."""
    columns = [*columns]
    rows: list[tuple[str, ...]] = []
    sources = paper(measured), paper(synthesized)
    for number, plan in enumerate(PLANS):
        given = [[float(source[plan.paper][column]) for column in columns] for source in sources]
        own = [traced(number).numbers[column] for column in columns]
        reference = sum(given[0])
        for who, values in zip(("measured", "paper", "dsx"), (*given, own), strict=True):
            off = "" if who == "measured" else f"{100 * (sum(values) / reference - 1):+.1f} %"
            cells = [f"{value:,.{digits}f}" if value else "" for value in values]
            rows.append((plan.named if who == "measured" else "", who, *cells, *([off] if total else [])))
    words = [column.removesuffix("_MB").removesuffix("_ms") for column in columns]
    heads = [HEADS.get(word, word) for word in words]
    return table((name, "", *heads, *(["sum, off by"] if total else [])), rows, len(columns) + total)


def counts() -> str:
    """Return Table VI with the numbers of dsx."""
    own = ("table6_op_counts_measured", "table6_op_counts_synthesized")
    return three("Table VI: operations", *own, COUNTS, 0, total=False)


def volumes() -> str:
    """Return Table VII with the volumes of dsx."""
    own = ("table7_comm_volume_measured", "table7_comm_volume_synthesized")
    return three("Table VII: millions of elements", *own, VOLUMES, 1, total=True)


def times() -> str:
    """Return Table VIII with the durations of dsx."""
    own = ("table8_compute_ms_measured", "table8_compute_ms_synthesized")
    return three("Table VIII: compute, ms", *own, TIMES, 0, total=True)


if __name__ == "__main__":
    main()
