"""What DeepSpeed makes of configurations: its own classes. Runs where it is installed.

Reads JSON from stdin, a list of {"config", "replicas"}, and prints a list in the words of a plan.
"""

import json
import sys
import warnings

warnings.simplefilter("ignore")
printed, sys.stdout = sys.stdout, sys.stderr

import torch  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402
from deepspeed.runtime.engine import DeepSpeedEngine  # noqa: E402
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig  # noqa: E402


class Replicas:
    """The groups of a program with so many replicas."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_data_parallel_world_size(self) -> int:
        return self.count


class Engine(DeepSpeedEngine):
    """An engine of a configuration, as far as its checks of the optimizer need one."""

    def __init__(self, config: DeepSpeedConfig, pipelined: bool) -> None:
        torch.nn.Module.__init__(self)
        self._config, self.pipeline_parallelism, self.global_rank = config, pipelined, 0


def read(job: dict) -> dict:
    import deepspeed.comm as dist

    dist.get_rank = lambda *_: 0
    found = DeepSpeedConfig(job["config"], mpu=Replicas(job["replicas"]))
    zero = found.zero_config
    assert isinstance(zero, DeepSpeedZeroConfig)
    pipelined = "pipeline" in job["config"]
    weight = torch.nn.Parameter(torch.zeros(1))
    Engine(found, pipelined)._do_optimizer_sanity_check(torch.optim.AdamW([weight]))
    return {
        "dp": found.world_size,
        "microbatch_size": found.train_micro_batch_size_per_gpu,
        "num_microbatches": found.gradient_accumulation_steps,
        "global_batch_size": found.train_batch_size,
        "zero_stage": int(zero.stage),
        "offload": "optimizer" if zero.offload_optimizer else "none",
        "tp": found.tensor_parallel_config.autotp_size or 1,
        "pp": found.pipeline["stages"] if pipelined else 1,
        "weight_bytes": 2 if found.bfloat16_config.enabled else 4,
        "gradients": found.grad_accum_dtype,
        "overlap": zero.overlap_comm,
    }


if __name__ == "__main__":
    json.dump([read(job) for job in json.load(sys.stdin)], printed)
