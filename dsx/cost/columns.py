"""The cost columns of a step: what one candidate costs, in seconds and bytes.

The ten time parts add up to `step_time_s`, the five memory parts to `peak_bytes`. The record is the
schema: units and descriptions here are those of Parquet, pandas, the command line and the documents.
"""

from typing import Any

from dsx.records import column, record


@record
class StepCosts:
    """Cost of one optimizer step of N candidates; every field is an [N] array (or a scalar)."""

    compute_s: Any = column("s", "kernels at their FLOP/s bound, launches included")
    memory_s: Any = column("s", "memory time that compute does not hide, of kernels and of offloaded activations")
    tp_comm_s: Any = column("s", "exposed communication of both tensor parallel axes")
    cp_comm_s: Any = column("s", "exposed communication of the context parallel axis")
    ep_comm_s: Any = column("s", "exposed communication of the expert parallel axis")
    pp_comm_s: Any = column("s", "sending activations and their gradients between stages")
    dp_comm_s: Any = column("s", "exposed reduction of gradients and gathering of weights, once a step")
    bubble_s: Any = column("s", "pipeline fill and drain, and waiting for the slowest stage")
    recompute_s: Any = column("s", "making activations again for the backward")
    optimizer_s: Any = column("s", "the optimizer's update")
    step_time_s: Any = column("s", "one optimizer step: the sum of the time parts")
    weight_bytes: Any = column("bytes", "weights on the worst stage's GPU")
    gradient_bytes: Any = column("bytes", "gradients on the worst stage's GPU")
    optimizer_bytes: Any = column("bytes", "optimizer state on the worst stage's GPU")
    activation_bytes: Any = column("bytes", "saved activations of all microbatches in flight")
    overhead_bytes: Any = column("bytes", "what the framework keeps beside the model")
    peak_bytes: Any = column("bytes", "memory of the worst stage's GPU: the sum of the memory parts")
    mfu: Any = column("", "model FLOPs utilisation: the model's FLOPs over what the GPUs could do in the step")
    tokens_per_s: Any = column("1/s", "tokens trained per second by the whole job")
    training_days: Any = column("days", "days to train `train_tokens` tokens; NaN where not given")
