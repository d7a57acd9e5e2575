"""PyTorch's allocator: which assumption sets price memory in expandable segments, and the variable that sets them.

A set prices them as less memory that the allocator holds and cannot use (`fragmentation`; data/stacks, generic-2024).
Without the variable a run would hold what was priced for older software.

Source: megatron.bridge.recipes.utils.environment_utils of Megatron-Bridge 0.6.2, which sets it for all recipes, without
the registration of CUDA graphs at NCCL; Megatron Core asks for that too.
"""

from dsx.launching.run import Run

_SEGMENTED = 0.1  # of the activations: the stacks with expandable segments are at most there, those without are above


def allocator_variables(run: Run) -> dict[str, str]:
    """Return the environment variables of the allocator; none where another was priced, or without CUDA."""
    if run.assumptions.fragmentation > _SEGMENTED or run.device.software != "cuda":
        return {}
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_GRAPH_REGISTER": "0"}
