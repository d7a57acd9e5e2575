"""CUDA graphs: which assumption sets price them, what Megatron Core is told of them, and what is said where none are.

A set prices them as a low dispatch latency: launched as a graph, an operator takes a few microseconds of the host, and
10 to 60 without one (data/stacks). Experts are left out of the graphs, since their sizes follow from the routing, and
so are feed-forward networks beside overlapped communication of experts; the latency is one number for all operators.

Sources: megatron-core 0.19.2 (TransformerConfig.cuda_graph_impl and cuda_graph_modules with their checks, which refuse
graphs of feed-forward networks beside overlapped communication of experts; the check of mcore_fsdp_adapter).
Recomputation of attention and feed-forward networks is refused there for layers with dropout, and graphs of the router
switch off that of the norm before it; here both are left without graphs for all.
"""

from dsx.launching.megatron_options import overlaps_experts
from dsx.launching.option import Settings, switch, valued, words
from dsx.launching.run import ExpertRun, Run
from dsx.space.recompute_values import FULL, JOINED, SELECTIVE
from dsx.spec.cluster import GPU_SOFTWARE

_GRAPHED = 12e-6  # s an operator: the stacks that state graphs are below, those of compiled operators above
_RECOMPUTED = {FULL, SELECTIVE, "core-attention", "norms", "feed-forward", "experts"}


def ungraphed(run: Run, what: str) -> list[str]:
    """Return that a run has no graphs though they were priced, and `what` it has."""
    latency = run.assumptions.dispatch_latency
    if latency > _GRAPHED or run.device.software not in GPU_SOFTWARE:
        return []
    return [f"operators issued in {latency * 1e6:g} us each, as by CUDA graphs (dispatch_latency): {what}"]


def graph_options(run: Run) -> Settings:
    """Return the settings of graphs of all but the experts, where they were priced."""
    if not ungraphed(run, ""):
        return [], []
    if why := _prevented(run):
        return [], ungraphed(run, f"Megatron-LM captures none of layers with {why}")
    layers = {has for has, _ in run.experts.layers} if run.experts else {False}
    beside = overlaps_experts(run)
    modules = [
        "attn",
        *(["mlp"] if False in layers and not beside else []),
        *(_of_experts(run.experts) if run.experts and True in layers else []),
    ]
    return [
        valued("--cuda-graph-impl", "transformer_engine", "model.cuda_graph_impl"),
        words("--cuda-graph-modules", modules, "model.cuda_graph_modules"),
        switch("--te-rng-tracker", "rng.te_rng_tracker"),
    ], []


def _of_experts(experts: ExpertRun) -> list[str]:
    """Return what of a layer with experts is captured: with room for tokens, preprocessing asks the host."""
    return ["moe_router"] if experts.capacity_percent != 100 else ["moe_router", "moe_preprocess"]


def _prevented(run: Run) -> str:
    """Return the choice under which Megatron Core captures no graphs of layers; empty if there is none."""
    if run.device.software != "cuda":
        return f"the software {run.device.software}"
    if run.number("zero_stage") > 1:
        return f"zero_stage={run['zero_stage']}"
    if run["offload"] in ("activations", "both"):
        return f"offload={run['offload']}"
    if _RECOMPUTED & {*str(run["recompute"]).split(JOINED)}:
        return f"recompute={run['recompute']}"
    return ""
