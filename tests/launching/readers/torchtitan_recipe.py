"""What TorchTitan makes of recipes: its configurations, and its model on the meta device. Runs where it is installed.

Reads JSON from stdin, a list of paths of recipes, and prints a list in the words of a plan.
"""

import json
import runpy
import sys
import warnings

warnings.simplefilter("ignore")
printed, sys.stdout = sys.stdout, sys.stderr

import torch  # noqa: E402
from torchtitan.config import ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed.activation_checkpoint import FullAC  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402


def read(path: str, counted: bool) -> dict:
    config = runpy.run_path(path)["recipe"]()
    assert isinstance(config, Trainer.Config)
    training, parallelism = config.training, config.parallelism
    assert isinstance(training, TrainingConfig)
    assert isinstance(parallelism, ParallelismConfig)
    pp, shard = parallelism.pipeline_parallel_degree, parallelism.data_parallel_shard_degree
    degrees = {
        "dp_replicate": parallelism.data_parallel_replicate_degree,
        "dp_shard": shard,
        "cp": parallelism.context_parallel_degree,
        "tp": parallelism.tensor_parallel_degree,
        "pp": pp,
    }
    world = 1
    for degree in degrees.values():
        world *= degree
    ParallelDims(**degrees, ep=parallelism.expert_parallel_degree, world_size=world)
    replicas, dp = degrees["dp_replicate"], degrees["dp_replicate"] * shard
    microbatch = parallelism.pipeline_parallel_microbatch_size if pp > 1 else training.local_batch_size
    never = parallelism.fsdp_reshard_after_forward == "never"
    model = config.model_spec.model
    model.update_from_config(config=config)  # as the trainer does, with its checks
    stages = parallelism.module_fqns_per_model_part or []
    return {
        "num_gpus": world,
        "tp": degrees["tp"],
        "cp": degrees["cp"],
        "ep": parallelism.expert_parallel_degree,
        "pp": pp,
        "vpp": max(len(stages) // pp, 1),
        "dp": dp,
        "microbatch_size": microbatch,
        "num_microbatches": training.global_batch_size // dp // microbatch,
        "in_pipeline": training.local_batch_size // microbatch,
        "global_batch_size": training.global_batch_size,
        "sequence_length": training.seq_len,
        "zero_stage": 0 if replicas == dp > 1 == degrees["cp"] else 2 if never else 3,
        "zero_replicas": replicas,
        "schedule": parallelism.pipeline_parallel_schedule if pp > 1 else None,
        "sequence_parallel": parallelism.enable_sequence_parallel,
        "recompute": "full" if isinstance(config.activation_checkpoint, FullAC.Config) else "none",
        "chunks": [sum(name.startswith("layers.") for name in stage) for stage in stages],
        "ends": [stages[0][0], stages[-1][-2:]] if stages else [],
        "layers": len(model.layers),
        "parameters": parameters(model) if counted else None,
    }


def parameters(model) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in model.build().parameters())


if __name__ == "__main__":
    job = json.load(sys.stdin)
    json.dump([read(path, job["counted"]) for path in job["paths"]], printed)
