"""Candidates: the choices of a plan, as integer columns.

N candidates are one record of [N] arrays; a plan is the same record of scalars. Degrees are bare
(`tp`), and per axis `<axis>_nvs` says how many members of a group share one fast domain. The columns
that are names (`NAMED`) hold codes: positions in the name tuples
that travel with the candidates.
"""

from typing import Any

from dsx.records import column, record

# The columns whose codes stand for names.
NAMED = ("strategy", "recompute", "schedule", "offload", "order")


@record
class Candidates:
    """The choices of N candidates; every field is an [N] integer array (or a scalar)."""

    num_gpus: Any = column("", "GPUs of the job")
    global_batch_size: Any = column("", "sequences of one step, over all replicas")
    sequence_length: Any = column("", "tokens of one sequence")
    strategy: Any = column("", "overlay that names the distribution of each role")
    tp: Any = column("", "tensor parallel degree")
    tp2: Any = column("", "second tensor parallel degree")
    cp: Any = column("", "context parallel degree")
    ep: Any = column("", "expert parallel degree")
    pp: Any = column("", "pipeline parallel degree")
    dp: Any = column("", "data parallel degree")
    vpp: Any = column("", "virtual pipeline stages per rank")
    panels: Any = column("", "panels in which a multiply asks for its gathered operands; 1 is a plain gather")
    microbatch_size: Any = column("", "sequences of one microbatch of one replica")
    num_microbatches: Any = column("", "microbatches of one replica in a step")
    zero_stage: Any = column("", "ZeRO stage")
    zero_replicas: Any = column("", "copies of what ZeRO divides; 1 divides over all data parallel ranks")
    recompute: Any = column("", "what the backward makes again")
    stored_layers: Any = column("", "layers of each stage that keep what recompute would have them make again")
    schedule: Any = column("", "pipeline schedule")
    offload: Any = column("", "what lies in the memory of the host")
    order: Any = column("", "axes in the order in which ranks are numbered, the one that changes fastest first")
    tp_nvs: Any = column("", "members of a tensor parallel group that share a fast domain")
    tp2_nvs: Any = column("", "members of a second tensor parallel group that share a fast domain")
    cp_nvs: Any = column("", "members of a context parallel group that share a fast domain")
    ep_nvs: Any = column("", "members of an expert parallel group that share a fast domain")
    pp_nvs: Any = column("", "members of a pipeline that share a fast domain")
    dp_nvs: Any = column("", "members of a data parallel group that share a fast domain")
