"""A training run of many steps: its days, GPU hours, money and energy, and what failures take of it.

A job writes a checkpoint every so often and goes on from the last one after a failure. Failures come at random, with
the same rate at any time. With n GPUs of which each fails after a mean time m, the job fails after M = m / n. If
writing a checkpoint stops it for c and coming back takes R, it keeps of its time the share

    goodput = t / (M exp(R / M) (exp((t + c) / M) - 1))

(J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22, 2006, equation 20),
where t is the time between two checkpoints. The best t is close to sqrt(2 c M) - c (J. W. Young, A first order
approximation to the optimum checkpoint interval, CACM 17, 1974); Daly's equation 37 has two more terms, and M where a
checkpoint takes more than 2 M.

Not modelled: spare machines that run out, a job that goes on with fewer GPUs, checkpoints that are written while the
job trains on, and failures that are slow instead of fatal.
"""

from typing import Any

from dsx.cost import xp
from dsx.cost.shapes import PerPlan
from dsx.hardware.operation import Operation

_HOUR, _DAY, _KWH = 3600.0, 86400.0, 3.6e6  # s, s, J


def checkpoint_interval_s(mtbf: Any, checkpoint: Any) -> Any:
    """Return the best time between two checkpoints [s] of a job with a mean time between failures [s]; Daly 2006."""
    ratio = checkpoint / (2.0 * mtbf)
    # 1 + sqrt(r) / 3 + r / 9 of the root, less the checkpoint itself.
    interval = (2.0 * checkpoint * mtbf) ** 0.5 * (1.0 + ratio**0.5 / 3.0 + ratio / 9.0) - checkpoint
    return xp.where(ratio < 1.0, interval, mtbf)


@xp.unchecked
def goodput(operation: Operation, num_gpus: PerPlan) -> Any:
    """Return the share of the time of a job on `num_gpus` GPUs that failures leave it; NaN where none are stated."""
    stated = operation.mtbf > 0
    mtbf = xp.where(stated, operation.mtbf, 1.0) / num_gpus
    checkpoint = xp.where(stated, operation.checkpoint, 1.0)
    interval = checkpoint_interval_s(mtbf, checkpoint)
    taken = mtbf * xp.exp(operation.restart / mtbf) * xp.expm1((interval + checkpoint) / mtbf)
    return xp.where(stated, interval / taken, float("nan"))


def run_columns(
    tokens_per_s: PerPlan, num_gpus: PerPlan, train_tokens: PerPlan, operation: Operation
) -> dict[str, Any]:
    """Return the columns of `StepCosts` that describe a run of `train_tokens` tokens; NaN where an input is."""
    kept = goodput(operation, num_gpus)
    days = train_tokens / tokens_per_s / _DAY / xp.where(operation.mtbf > 0, kept, 1.0)
    hours = days * (_DAY / _HOUR) * num_gpus
    price = xp.where(operation.price > 0, operation.price, float("nan"))
    power = xp.where(operation.site_power > 0, operation.site_power, float("nan"))
    one = xp.ones_like(tokens_per_s)
    return {
        "tokens_per_s_per_gpu": tokens_per_s / num_gpus,
        "goodput": kept * one,
        "training_days": days,
        "gpu_hours": hours,
        "cost_usd": hours * (_HOUR * price),
        "energy_kwh": hours * (_HOUR * power / _KWH),
    }
