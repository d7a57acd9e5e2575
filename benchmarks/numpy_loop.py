"""A baseline of the benchmarks: the formulas in straightforward NumPy, one flat row per candidate.

Every formula is evaluated for every row; rows that are equal in some columns share no work. Units and names of model,
system and columns are those of tests/oracles/formulas.py.
"""

import numpy as np

W, MASK = 2, 1
FLOP_EFFICIENCY, OP_LATENCY, NETWORK_EFFICIENCY = 0.8, 20e-6, 0.7
COLUMNS = ("n1", "n2", "np", "nd", "bm", "nb", "t1", "t2", "tp", "td")


def _links(system):
    bs = system["slow_bandwidth"] * system.get("slow_efficiency", NETWORK_EFFICIENCY)
    bf = system["fast_bandwidth"] * system.get("fast_efficiency", NETWORK_EFFICIENCY)
    return bs, bf, system["slow_latency"], system["fast_latency"]


def _collective(kind, volume, n, t, system):
    bs, bf, ls, lf = _links(system)
    domains = n // t
    moved = volume if kind in ("broadcast", "reduce") else (n - 1) / n * volume
    slow = ls * (n - 1) + moved / bs
    fast = lf * (n - 1) + moved / bf
    mixed = np.maximum(moved / (t * bs), moved / bf) + ls * (domains - 1) + lf * (n - domains)
    time = np.where(t == 1, slow, np.where(domains == 1, fast, mixed))
    if kind == "all_reduce":
        time = 2 * time
    return np.where((n == 1) | (volume == 0), 0.0, time)


class _Layer:
    """Sums over the operators of one layer, per row."""

    def __init__(self, system):
        self.system = system
        self.forward = self.backward = self.saved = self.weights = 0.0

    def own(self, flops, moved, peak):
        return np.maximum(OP_LATENCY + flops / (FLOP_EFFICIENCY * peak), moved / self.system["hbm_bandwidth"])

    def add(self, forward, backward, saved, weights):
        self.forward = self.forward + forward
        self.backward = self.backward + backward
        self.saved = self.saved + saved
        self.weights = self.weights + weights

    def gemm(self, rows, k, n, forward_comm, backward_comm, save_input):
        peak = self.system["matrix_flops"]
        forward = self.own(rows * n * (2 * k - 1), W * (rows * k + rows * n + k * n), peak)
        backward = self.own(
            rows * k * (2 * n - 1) + k * n * (2 * rows - 1), W * 2 * (k * n + rows * k + rows * n), peak
        )
        self.add(forward + forward_comm, backward + backward_comm, save_input * W * rows * k, W * k * n)

    def summa_gemm(self, rows, k, n, c, save_input):
        system, peak, nb = self.system, self.system["matrix_flops"], c["nb"]
        n1, n2, t1, t2 = c["n1"], c["n2"], c["t1"], c["t2"]
        nl = (n // n1).astype(float)
        x, w = W * rows * k / nb, W * k * nl / nb
        forward = self.own(2 * rows * nl * k, W * (rows * k + k * nl + nb * rows * nl), peak)
        backward = self.own(
            rows * k * (2 * nl - 1) + k * nl * (2 * rows - 1),
            W * 2 * (k * nl + nb * rows * nl + rows * k),
            peak,
        )
        panel = _collective("broadcast", x, n1, t1, system) + _collective("broadcast", w, n2, t2, system)
        back = panel + _collective("reduce", x, n1, t1, system) + _collective("reduce", w, n2, t2, system)
        self.add(
            forward + panel + np.maximum(nb * panel - forward, 0.0),
            backward + back + np.maximum(nb * back - backward, 0.0),
            save_input * W * rows * (k // n1),
            W * (k // n2) * nl,
        )

    def vector(self, flops, moved, saved, weights, comm=(0.0, 0.0)):
        peak = self.system["vector_flops"]
        self.add(
            self.own(flops[0], moved[0], peak) + comm[0],
            self.own(flops[1], moved[1], peak) + comm[1],
            saved,
            weights,
        )

    def bias(self, s, columns):
        self.vector((s, s), 2 * (W * (s + columns),), 0.0, W * columns)

    def dropout(self, s):
        self.vector((s, s), 2 * ((2 * W + MASK) * s,), MASK * s, 0.0)

    def layernorm(self, rows, columns, comm):
        s = rows * columns
        self.vector(
            (9 * s, 8 * s + 4 * rows * (columns - 1)),
            (W * (2 * s + 2 * rows + 2 * columns), W * (5 * s + 2 * columns)),
            W * s,
            2 * W * columns,
            comm,
        )

    def attention(self, model, b, c):
        system, peak = self.system, self.system["matrix_flops"]
        length, q = model["l"], model["e"] // model["h"]
        heads, lr = (model["h"] // c["n1"]).astype(float), (length // c["n2"]).astype(float)
        s, z = b * heads * lr * length, b * heads * lr * (length - 1)
        kappa = peak / system["vector_flops"]
        local, full = b * heads * lr * q, b * heads * length * q
        saved = W * (4 * local + 2 * b * heads * lr)
        logits = s * (2 * q - 1) + kappa * (3 * s + z)
        forward = self.own(logits + local * (2 * length - 1), W * (2 * local + 2 * full + b * heads * lr), peak)
        backward = self.own(
            local * (2 * length - 1) + 2 * full * (2 * lr - 1) + kappa * (4 * s + z) + s * (2 * q - 1) + logits,
            W * 2 * (full + local) + saved,
            peak,
        )
        gather = _collective("all_gather", W * full, c["n2"], c["t2"], system)
        self.add(forward + 2 * gather, backward + 4 * gather, saved, 0.0)


def _layer(model, system, strategy, c):
    e, f = model["e"], model["f"]
    n1, b = c["n1"], c["bm"].astype(float)
    lr = model["l"] // c["n2"]
    rows, fl = b * lr, (f // n1).astype(float)
    layer = _Layer(system)
    if strategy == "summa":
        for k, n, save_input in ((e, 3 * e, 1), (e, e, 0), (e, f, 1), (f, e, 1)):
            layer.summa_gemm(rows, k, n, c, save_input)
        out_rows, out_columns = rows, (e // n1).astype(float)
        statistics = _collective("all_reduce", W * 2 * rows, n1, c["t1"], system)
        ln_comm = (statistics, statistics)
    else:
        shard = _collective("reduce_scatter", W * rows * e, n1, c["t1"], system)
        layer.gemm(rows, float(e), (3 * e // n1).astype(float), 0.0, shard, 1)
        layer.gemm(rows, (e // n1).astype(float), float(e), shard, 0.0, 0)
        layer.gemm(rows, float(e), fl, 0.0, shard, 1)
        layer.gemm(rows, fl, float(e), shard, 0.0, 1)
        out_rows, out_columns = b * (lr // n1), float(e)
        ln_comm = (shard, shard)
    out, hidden = out_rows * out_columns, rows * fl
    layer.bias(hidden, fl)
    layer.vector((8 * hidden, 13 * hidden), (2 * W * hidden, 3 * W * hidden), W * hidden, 0.0)
    layer.dropout(hidden)
    for _ in range(2):  # after the attention and after the feed-forward network
        layer.bias(out, out_columns)
        layer.dropout(out)
        layer.layernorm(out_rows, out_columns, ln_comm)
    layer.attention(model, b, c)
    return layer, W * out


def flat_prices(model, system, strategy, columns, global_batch):
    """Step time (s) and peak memory (bytes) of N candidates; columns maps COLUMNS to [N] integers."""
    c = {name: np.asarray(columns[name], dtype=np.int64) for name in COLUMNS if name in columns}
    c.setdefault("nb", np.ones_like(c["n1"]))
    stages = c["np"]
    bs, bf, ls, lf = _links(system)
    layer, boundary = _layer(model, system, strategy, c)
    tf, tb = layer.forward, layer.backward
    layers = model["depth"] // stages
    m = (np.asarray(global_batch, dtype=np.int64) // c["nd"]) // c["bm"]

    hops = np.maximum(stages - 1, 1)
    slow = np.where(c["tp"] == 1, stages - 1, stages // c["tp"] - 1)
    hop = (stages - 1 - slow) / hops * (lf + boundary / bf) + slow / hops * (ls + boundary / bs)

    group, fast = (c["nd"] * c["n2"], c["td"] * c["t2"]) if strategy == "2d" else (c["nd"], c["td"])
    share = _collective("all_gather", layer.weights, group, fast, system)
    dp = 2 * share + (layers - 1) * (np.maximum(share - tf, 0.0) + np.maximum(share - tb, 0.0))
    per_microbatch = layers * (tf + tb) + 2 * hop
    step_time = (m + stages - 1) * per_microbatch + dp

    weights = layers * layer.weights
    peak_bytes = 2 * weights + 6 * weights / group + layers * layer.saved * np.minimum(stages, m)
    return step_time, peak_bytes


def price_space_with_numpy(model, system, strategy, candidates, global_batch):
    """Price a list of configurations at once: the index of the fastest that fits or None, and both arrays."""
    columns = {name: np.array([config.get(name, 1) for config in candidates]) for name in COLUMNS}
    batches = np.full(len(candidates), global_batch)
    step_time, peak_bytes = flat_prices(model, system, strategy, columns, batches)
    fits = peak_bytes <= system["hbm_capacity"]
    index = int(np.argmin(np.where(fits, step_time, np.inf))) if fits.any() else None
    return index, step_time, peak_bytes
