"""The cost columns of a step: the costs of one candidate, in seconds and bytes.

The ten time parts add up to `step_time_s`, the five memory parts to `peak_bytes`. The record is the
schema: Parquet, pandas, the command line and the documents use its units and descriptions.
"""

from dsx.cost.shapes import Column
from dsx.records import column, record


@record
class StepCosts:
    """Cost of one optimizer step of N candidates; every field is an [N] array (or a scalar)."""

    compute_s: Column = column("s", "kernels at their FLOP/s bound, launches included")
    memory_s: Column = column("s", "memory time that compute does not hide, of kernels and of offloaded activations")
    tp_comm_s: Column = column("s", "exposed communication of both tensor parallel axes")
    cp_comm_s: Column = column("s", "exposed communication of the context parallel axis")
    ep_comm_s: Column = column("s", "exposed communication of the expert parallel axis")
    pp_comm_s: Column = column("s", "sending activations and their gradients between stages")
    dp_comm_s: Column = column("s", "exposed reduction of gradients and gathering of weights, once a step")
    bubble_s: Column = column("s", "pipeline fill and drain, and stalls for the slowest stage")
    recompute_s: Column = column("s", "recomputing activations for the backward")
    optimizer_s: Column = column("s", "the optimizer's update")
    step_time_s: Column = column("s", "one optimizer step: the sum of the time parts")
    weight_bytes: Column = column("bytes", "weights on the worst stage's GPU")
    gradient_bytes: Column = column("bytes", "gradients on the worst stage's GPU")
    optimizer_bytes: Column = column("bytes", "optimizer state on the worst stage's GPU")
    activation_bytes: Column = column("bytes", "saved activations of all microbatches in flight")
    overhead_bytes: Column = column("bytes", "memory that the framework adds to that of the model")
    peak_bytes: Column = column("bytes", "memory of the worst stage's GPU: the sum of the memory parts")
    host_bytes: Column = column(
        "bytes", "memory of the host that the GPU of a stage needs, of the stage that needs most, for what is offloaded"
    )
    mfu: Column = column("", "model FLOPs utilisation: the model's FLOPs over what the GPUs could do in the step")
    tokens_per_s: Column = column("1/s", "tokens trained per second by the whole job")
    tokens_per_s_per_gpu: Column = column("1/s", "tokens trained per second by each GPU")
    goodput: Column = column("", "share of a long run that is not lost to failures; NaN where no failures are stated")
    training_days: Column = column(
        "days", "days to train `train_tokens` tokens, failures included; NaN where not given"
    )
    gpu_hours: Column = column("h", "GPU hours of these days; NaN without `train_tokens`")
    cost_usd: Column = column("USD", "GPU hours at the price of the cluster; NaN where it states none")
    energy_kwh: Column = column("kWh", "energy that the site draws for these GPU hours; NaN where no power is stated")
