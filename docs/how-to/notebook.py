# %% [markdown]
# # A study in Python
#
# Which plan trains Llama-3-8B on 64 H100, why, and what would another machine give? Nothing here leaves Python. The
# file is a notebook in plain text: Jupyter opens it with jupytext, VS Code as it is, and `python` runs it.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import dsx

dsx.keep_compiled()  # the next process need not wait for the compiler

# %% [markdown]
# ## A job, and its best plans
#
# A job is a model, a machine, a number of its GPUs and a batch. `dsx.names("models")` lists models, `"clusters"`
# machines.

# %%
job = dsx.Job("llama-3-8b", "h100-nvs8", num_gpus=64, global_batch_size=512)
found = dsx.best(job)
found

# %% [markdown]
# An answer shows itself as the command line prints it. Its numbers are in `to_data()` and, as a DataFrame, in `frame`.
# They are in SI units:

# %%
found.frame[["strategy", "tp", "cp", "pp", "dp", "microbatch_size", "step_time_s", "mfu", "peak_bytes"]]

# %% [markdown]
# ## One plan, part by part
#
# A plan is one of a search, a row of a DataFrame, or columns of your own; what is written beside it takes its place.

# %%
dsx.evaluate(job, found.plan)

# %%
again = dsx.evaluate(job, found.plan, recompute="full")
print(f"{found.step_time_s:.2f} s, with recomputation {again.step_time_s:.2f} s and {again.peak_bytes / 1e9:.0f} GB")

# %% [markdown]
# The kernels of a layer, those first that take longest:

# %%
kernels = dsx.evaluate(job, found.plan).operators
longest = kernels.sort_values("compute_s", ascending=False).head()
longest[["kernel", "direction", "matrix_flops", "compute_s", "tp_comm_s"]]

# %% [markdown]
# Why not data parallelism alone? `why` names every rule that a plan breaks, and compares it with the fastest:

# %%
dsx.why(job, dp=64)

# %% [markdown]
# ## What if?
#
# A job with other fields is another job. The best plan of each is a row:

# %%
machines = {
    "as it is": {},
    "141 GB of HBM": {"cluster.device.hbm_capacity": "141 GB"},
    "a tenth of the network": {"cluster.network.net.bandwidth": "5 GB/s"},
    "both": {"cluster.device.hbm_capacity": "141 GB", "cluster.network.net.bandwidth": "5 GB/s"},
}
best_of = {name: dsx.best(job.replace(set=fields)) for name, fields in machines.items()}
table = pd.concat({name: best.frame.head(1) for name, best in best_of.items()}).droplevel(1)
table[["strategy", "tp", "dp", "microbatch_size", "zero_stage", "step_time_s", "mfu", "peak_bytes"]]

# %% [markdown]
# Only the reduction of the gradients leaves a node, so a slow network alone changes no plan. With more memory a GPU
# holds the whole model, its optimizer state divided, and no tensor parallelism is needed; on the slow network the
# microbatch is larger instead. A machine with a name of its own is a dict that extends another:

# %%
wide = {"extends": "h100-nvs8", "name": "h100-nvs64", "network": {"nvs": {"size": 64}}}
print(f"{dsx.best(job.replace(cluster=wide)).step_time_s:.2f} s with all 64 GPUs in one fast domain")

# %% [markdown]
# ## A sweep
#
# A sweep prices every plan of a space, here for three GPU counts, and keeps those that fit. It is a dict, or a YAML
# file. Without a folder (`out=...`) the rows stay in memory.

# %%
swept = dsx.sweep(
    {
        "model": "llama-3-8b",
        "cluster": "h100-nvs8",
        "num_gpus": [32, 64, 128],
        "global_batch_size": 512,
        "keep": "feasible",
    }
)
df = swept.frame
print(f"{swept.candidates:,} candidates, {swept.feasible:,} of them feasible")
df.loc[df.groupby("num_gpus")["step_time_s"].idxmin(), ["num_gpus", "tp", "pp", "dp", "step_time_s", "tokens_per_s"]]

# %% [markdown]
# The Pareto front: plans of 64 GPUs that no other beats in both time and memory.

# %%
of_64 = df[df["num_gpus"] == 64]
front = dsx.pareto(of_64, "step_time_s", "peak_bytes")
front[["tp", "pp", "dp", "microbatch_size", "step_time_s", "peak_bytes"]]

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(16, 9), layout="constrained")
dsx.plot.front(of_64, ax=left)
dsx.plot.breakdown(df, "num_gpus", ax=right)
figure.savefig("notebook.png", dpi=150)

# %% [markdown]
# A row is a plan: what becomes of the one of the front that needs least memory on a tenth of the network? These are its
# flags for Megatron-LM:

# %%
lean = front.iloc[-1]
slow = dsx.evaluate(job.replace(set=machines["a tenth of the network"]), lean)
print(f"{lean['step_time_s']:.2f} s, and {slow.step_time_s:.2f} s on a tenth of the network")
print(slow.launch)
