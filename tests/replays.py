"""Random plans of small models, their traces replayed, beside the closed forms: times and memory."""

import math
import random
from dataclasses import dataclass

import dsx
from dsx.traces.inspect import memory_use
from dsx.traces.read import open_folder, traces

OVERLAPS_OF = ("none", "all or none", "default")
OVERLAPS = ("tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "dp_overlap", "fsdp_overlap")
EIGHT_LAYERS = "model.layers.1.count=8"
MODELS = {
    "gpt3-5b": [
        *(f"model.dimensions.{size}" for size in ("e=2048", "f=8192", "h=16", "g=16")),
        "model.layers.1.count=8",
    ],
    "llama-3-8b": ["model.dimensions.v=32000", EIGHT_LAYERS],
    "mixtral-8x7b": [EIGHT_LAYERS],
}
CLUSTERS = ("h100-nvs8", "b200-nvs64")


@dataclass(frozen=True)
class Replayed:
    """A plan, and what its replay finds over what is priced."""

    job: dsx.Job
    strategy: str
    plan: str
    columns: dict  # the plan, and what it is priced at
    time: float  # replay / step_time_s - 1
    memory: float  # by lifetimes / peak_bytes without overhead - 1

    def __str__(self):
        return (
            f"{self.job.model.name} {self.strategy} {self.plan}: {100 * self.time:+.2f} %, {100 * self.memory:+.2f} %"
        )


def settings_of(overlaps, rng):
    """Overlaps of 0 ("none"), of 0 or 1 ("all or none"), or those of the set ("default"); the host never stalls."""
    chosen = {"none": lambda: 0, "all or none": lambda: rng.choice([0, 1])}.get(overlaps)
    stated = [f"assumptions.{name}={chosen()}" for name in OVERLAPS] if chosen else []
    return [*stated, "assumptions.dispatch_latency=0 s"]


def drawn(seed, overlaps):
    """Return the job, the strategy and the plan of a seed; None for a plan that breaks rules."""
    rng = random.Random(seed)
    model = rng.choice(["gpt3-5b", "gpt3-5b", "llama-3-8b", "mixtral-8x7b"])
    experts = model == "mixtral-8x7b"
    degrees = {"tp": rng.choice([1, 2, 4]), "pp": rng.choice([1, 1, 2, 2, 4]), "dp": rng.choice([1, 2, 4])}
    degrees["cp"] = 1 if experts else rng.choice([1, 1, 2])
    degrees["ep"] = rng.choice([1, 2, 4]) if experts else 1
    schedule = rng.choice(["1f1b", "1f1b", "1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe"])
    schedule = "zb-h2" if schedule == "zb-h1" and seed % 2 else schedule
    chunks = 2 if schedule == "zb-v" else rng.choice([1, 1, 2]) if schedule == "1f1b" and degrees["pp"] == 2 else 1
    recompute = rng.choice(["none", "none", "full", "norms", "experts" if experts else "feed-forward"])
    settings = {**degrees, "vpp": chunks, "schedule": schedule, "zero_stage": rng.choice([0, 1, 2, 3])}
    settings |= {"recompute": recompute, "offload": rng.choice(["none"] * 7 + ["activations", "optimizer", "both"])}
    if settings["zero_stage"] and degrees["dp"] > 1 and rng.random() < 0.2:
        settings["zero_replicas"] = 2
    if recompute != "none" and rng.random() < 0.3:
        settings["stored_layers"] = 2
    strategy = "2d" if degrees["cp"] > 1 else rng.choice(["1d", "1d", "1d" if experts else "2d-no-sp"])
    gpus = math.prod(degree for axis, degree in degrees.items() if axis != "ep")
    batch = rng.choice([1, 2, 4, 8]) * degrees["dp"]
    job = dsx.Job(model, rng.choice(CLUSTERS), gpus, batch, 2048, set=[*MODELS[model], *settings_of(overlaps, rng)])
    return _legal(job, strategy, settings)


def drawn_ring(seed, overlaps):
    """Return the job, the strategy and the plan of a seed, with ring attention inside nodes or over several.

    Four microbatches or more, of which only the last one's backward reduces gradients.
    """
    rng = random.Random(seed)
    model = rng.choice(["gpt3-5b", "llama-3-8b"])
    degrees = {"tp": rng.choice([1, 1, 2]), "cp": rng.choice([2, 4, 8, 16]), "pp": rng.choice([1, 1, 2])}
    degrees["dp"] = rng.choice([1, 2])
    gpus = math.prod(degrees.values())
    settings = {**degrees, "microbatch_size": rng.choice([1, 2]), "recompute": rng.choice(["none", "none", "full"])}
    if gpus > 8:
        left = 8
        for axis in rng.sample([*degrees], len(degrees)):
            settings[f"nvs.{axis}"] = math.gcd(left, degrees[axis])
            left //= settings[f"nvs.{axis}"]
    batch = rng.choice([4, 8]) * settings["microbatch_size"] * degrees["dp"]
    changes = [*MODELS[model], *settings_of(overlaps, rng), "assumptions.dp_overlap=1"]
    job = dsx.Job(model, "h100-nvs8", gpus, batch, rng.choice([2048, 8192]), set=changes)
    return _legal(job, "2d-ring", settings)


def drawn_pipeline(seed, overlaps, nic=50, schedules=("1f1b",)):
    """Return the job, the strategy and the plan of a seed, with stages in several domains whose NICs have `nic` GB/s.

    As many microbatches as stages or more, and several chunks per stage in a third of those under 1F1B.
    """
    rng = random.Random(seed)
    degrees = {"tp": rng.choice([1, 2, 4, 8]), "pp": rng.choice([2, 4, 8])}
    degrees["dp"] = max(16 // math.prod(degrees.values()), 1)
    schedule = rng.choice(schedules)
    chunks = 2 if schedule == "zb-v" else rng.choice([1, 1, 2, 4]) if schedule == "1f1b" and degrees["pp"] < 8 else 1
    left = 8 // degrees["tp"]
    shares = [t for t in (1, 2, 4, 8) if t < degrees["pp"] and left % t == 0 and left // t <= degrees["dp"]]
    if not shares:
        return None
    share = rng.choice(shares)
    settings = {**degrees, "vpp": chunks, "schedule": schedule}
    settings |= {"nvs.tp": degrees["tp"], "nvs.pp": share, "nvs.dp": left // share}
    batch = rng.choice([2, 4] if schedule in ("dualpipe", "zb-v") else [1, 2, 4]) * degrees["pp"] * degrees["dp"]
    changes = ["model.layers.1.count=16", f"cluster.network.net.bandwidth={nic} GB/s", *settings_of(overlaps, rng)]
    job = dsx.Job(
        "llama-3-8b",
        "h100-nvs8",
        math.prod(degrees.values()),
        batch,
        rng.choice([1024, 4096]),
        set=["model.dimensions.v=32000", *changes, "assumptions.dp_overlap=1"],
    )
    return _legal(job, "1d", settings)


def drawn_uneven(seed, overlaps, schedule):
    """Return the job, the strategy and the plan of a seed, with cp groups that the edge of a domain of 8 cuts.

    Shards have replicas, unless the schedule runs two chains, where only some have. Sequences are long.
    """
    rng = random.Random(seed)
    degrees = {"tp": rng.choice([1, 1, 2]), "cp": rng.choice([3, 5, 7]), "dp": rng.choice([2, 4, 6])}
    degrees["pp"] = 2 if schedule == "dualpipe" else rng.choice([1, 1, 2])
    settings = {**degrees, "schedule": schedule}
    if schedule != "dualpipe" or rng.random() < 0.5:
        settings["zero_replicas"] = rng.choice([2, degrees["dp"]])
    if degrees["pp"] > 1 and rng.random() < 0.5:
        settings["order"] = "tp-cp-ep-pp-dp"
    gpus, batch = math.prod(degrees.values()), 8 * degrees["dp"]
    length = 4096 * degrees["tp"] * degrees["cp"]
    changes = ["model.dimensions.v=32000", "model.layers.1.count=4", *settings_of(overlaps, rng)]
    return _legal(dsx.Job("llama-3-8b", "h100-nvs8", gpus, batch, length, set=changes), "2d-ring", settings)


def _legal(job, strategy, settings):
    plan = " ".join(f"{name}={value}" for name, value in settings.items() if value not in (1, "none"))
    try:
        priced = dsx.evaluate(job, plan, strategy=strategy)
    except dsx.errors.PlanError:
        return None
    return None if set(priced.reject) - {"out_of_memory"} else (job, strategy, plan, priced)


def replayed(seed, overlaps, folder, draw=drawn):
    """Return the replay of a seed's plan; None for a plan that breaks rules."""
    found = draw(seed, overlaps)
    if found is None:
        return None
    job, strategy, plan, priced = found
    dsx.trace.write(job, plan, strategy=strategy, out=folder, durations=False)
    step = dsx.trace.replay(folder, cluster=job.cluster, assumptions=job.assumptions)
    peak = max(memory_use(trace).peak_bytes for trace in traces(open_folder(folder)))
    closed = priced.costs["peak_bytes"] - priced.costs["overhead_bytes"]
    columns = {**priced.plan, **priced.costs}
    return Replayed(job, strategy, plan, columns, step.step_time_s / priced.step_time_s - 1.0, peak / closed - 1.0)
