"""Referee for the price of one configuration: FORMULAS.md sections 1-4 with the corrections C1-C7.

"Section" below means a section of FORMULAS.md, the restatement of the released code of arXiv 2410.00273.
Units: bytes, FLOP, seconds. Plain Python on purpose; nothing of dsx is imported.

model:  l, e, h, f, depth.
system: matrix_flops, vector_flops, hbm_bandwidth, hbm_capacity, fast_bandwidth, slow_bandwidth, fast_latency,
        slow_latency, fast_size; bandwidths are peaks, and fast_efficiency, slow_efficiency default to 0.7.
config: n1, n2, np, nd, bm, t1, t2, tp, td, and nb for SUMMA.
"""

W = 2  # bytes per element (section 0)
MASK = 1  # bytes per element of a dropout mask (section 0)
FLOP_EFFICIENCY = 0.8  # section 1
OP_LATENCY = 20e-6  # once per operator and direction (section 1)
NETWORK_EFFICIENCY = 0.7  # section 1


def system_from_inputs(entry, fast_size):
    """A system of inputs.json (TFLOP/s, GB/s, GB) in SI units; the vector peak is the fp16 one."""
    return {
        "matrix_flops": entry["matrix_flops_fp16"] * 1e12, "vector_flops": entry["vector_flops_fp16"] * 1e12,
        "hbm_bandwidth": entry["hbm_bandwidth"] * 1e9, "hbm_capacity": entry["hbm_capacity"] * 1e9,
        "fast_bandwidth": entry["nvlink_bandwidth"] * 1e9, "slow_bandwidth": entry["ib_bandwidth"] * 1e9,
        "fast_latency": entry["nvlink_latency"], "slow_latency": entry["ib_latency"],
        "fast_efficiency": entry["nvlink_eff"], "slow_efficiency": entry["ib_eff"], "fast_size": fast_size,
    }  # fmt: skip


def links(system):
    """Effective bandwidth and latency of the slow and the fast tier: bs, bf, ls, lf (section 1)."""
    bs = system["slow_bandwidth"] * system.get("slow_efficiency", NETWORK_EFFICIENCY)
    bf = system["fast_bandwidth"] * system.get("fast_efficiency", NETWORK_EFFICIENCY)
    return bs, bf, system["slow_latency"], system["fast_latency"]


def collective(kind, volume, n, t, system):
    """Time of a collective of the full volume over n GPUs, t of them in one fast domain (section 1, C3)."""
    if volume == 0 or n == 1:
        return 0.0
    bs, bf, ls, lf = links(system)
    domains = n // t
    c = 1.0 if kind in ("broadcast", "reduce") else (n - 1) / n
    if t == 1:
        one_pass = ls * (n - 1) + c * volume / bs
    elif domains == 1:
        one_pass = lf * (n - 1) + c * volume / bf
    else:
        one_pass = max(c * volume / (t * bs), c * volume / bf) + ls * (domains - 1) + lf * (n - domains)
    return 2 * one_pass if kind == "all_reduce" else one_pass


def pass_of(flops, moved, peak, system, tp=0.0, cp=0.0):
    """One direction of one operator (section 1): its own time and the communication booked on it."""
    compute = OP_LATENCY + flops / (FLOP_EFFICIENCY * peak)
    exposed = max(moved / system["hbm_bandwidth"] - compute, 0.0)
    return {
        "flops": flops, "bytes": moved, "compute": compute, "exposed_memory": exposed, "tp_communication": tp,
        "cp_communication": cp, "time": compute + exposed + tp + cp,
    }  # fmt: skip


def operator(forward, backward, saved, weights):
    return {"forward": forward, "backward": backward, "saved": saved, "weights": weights}


def gemm(rows, k, n, system, forward_comm=0.0, backward_comm=0.0, save_input=True):
    """Section 2.1: X (rows x k) times W (k x n), 1d and 2d."""
    forward = pass_of(
        rows * n * (2 * k - 1), W * (rows * k + rows * n + k * n), system["matrix_flops"], system, forward_comm
    )
    backward = pass_of(
        rows * k * (2 * n - 1) + k * n * (2 * rows - 1),
        W * (k * n + rows * k + 2 * rows * n + k * n + rows * k),
        system["matrix_flops"],
        system,
        backward_comm,
    )
    return operator(forward, backward, W * rows * k if save_input else 0, W * k * n)


def summa_gemm(rows, k, n, c, system, save_input=True):
    """Section 2.2: X (rows x k) times W (k x n) with global k and n, in nb panels."""
    n1, n2, nb = c["n1"], c["n2"], c["nb"]
    nl = n // n1
    x, w = W * rows * k / nb, W * k * nl / nb

    def exposed(panel, own):  # one panel's communication, and what nb panels cannot hide behind the GEMM
        return panel + max(nb * panel - (own["compute"] + own["exposed_memory"]), 0.0)

    forward_flops = 2 * rows * nl * k
    forward_bytes = W * (rows * k + k * nl + nb * rows * nl)
    backward_flops = rows * k * (2 * nl - 1) + k * nl * (2 * rows - 1)
    backward_bytes = W * (2 * k * nl + 2 * nb * rows * nl + 2 * rows * k)
    peak = system["matrix_flops"]
    panel_forward = collective("broadcast", x, n1, c["t1"], system) + collective("broadcast", w, n2, c["t2"], system)
    panel_backward = (
        collective("broadcast", w, n2, c["t2"], system)
        + collective("reduce", x, n1, c["t1"], system)
        + collective("broadcast", x, n1, c["t1"], system)
        + collective("reduce", w, n2, c["t2"], system)
    )
    forward_comm = exposed(panel_forward, pass_of(forward_flops, forward_bytes, peak, system))
    backward_comm = exposed(panel_backward, pass_of(backward_flops, backward_bytes, peak, system))
    return operator(
        pass_of(forward_flops, forward_bytes, peak, system, forward_comm),
        pass_of(backward_flops, backward_bytes, peak, system, backward_comm),
        W * rows * (k // n1) if save_input else 0,
        W * (k // n2) * nl,
    )


def attention(model, c, system, strategy):
    """Section 2.3 with C4: fused attention, K and V gathered one by one over n2."""
    b, length, n2 = c["bm"], model["l"], c["n2"]
    q, hl, lr = model["e"] // model["h"], model["h"] // c["n1"], length // n2
    s, z = b * hl * lr * length, b * hl * lr * (length - 1)
    kappa = system["matrix_flops"] / system["vector_flops"]
    softmax_forward, softmax_backward, dropout = kappa * (2 * s + z), kappa * (3 * s + z), kappa * s
    forward_flops = s * (2 * q - 1) + softmax_forward + dropout + b * hl * lr * q * (2 * length - 1)
    backward_flops = (
        b * hl * lr * q * (2 * length - 1)
        + b * hl * length * q * (2 * lr - 1)  # dQ, dK
        + softmax_backward
        + dropout
        + s * (2 * q - 1)
        + b * hl * length * q * (2 * lr - 1)  # dA, dV
        + s * (2 * q - 1)
        + softmax_forward
        + dropout
    )  # recomputed
    local, full = b * hl * lr * q, b * hl * length * q  # one of q, out; one of gathered k, v
    saved = W * (4 * local + 2 * b * hl * lr)
    forward_bytes = W * (local + 2 * full + b * hl * lr + local)
    backward_bytes = W * (2 * full + 2 * local) + saved
    gather = collective("all_gather", W * full, n2, c["t2"], system)
    scatter = collective("reduce_scatter", W * full, n2, c["t2"], system)
    axis = "tp" if strategy == "summa" else "cp"
    peak = system["matrix_flops"]
    return operator(
        pass_of(forward_flops, forward_bytes, peak, system, **{axis: 2 * gather}),
        pass_of(backward_flops, backward_bytes, peak, system, **{axis: 2 * gather + 2 * scatter}),
        saved,
        0,
    )


def bias(elements, columns, system):
    """Section 2.4."""
    one = pass_of(elements, W * (elements + columns), system["vector_flops"], system)
    return operator(one, dict(one), 0, W * columns)


def gelu(s, system):
    """Section 2.4."""
    peak = system["vector_flops"]
    forward, backward = pass_of(8 * s, 2 * W * s, peak, system), pass_of(13 * s, 3 * W * s, peak, system)
    return operator(forward, backward, W * s, 0)


def dropout(s, system):
    """Section 2.4."""
    one = pass_of(s, 2 * W * s + MASK * s, system["vector_flops"], system)
    return operator(one, dict(one), MASK * s, 0)


def layernorm(rows, columns, system, forward_comm, backward_comm):
    """Section 2.4; rows includes the microbatch."""
    s, peak = rows * columns, system["vector_flops"]
    forward = pass_of(9 * s, W * (2 * s + 2 * rows + 2 * columns), peak, system, forward_comm)
    backward = pass_of(8 * s + 4 * rows * (columns - 1), W * (5 * s + 2 * columns), peak, system, backward_comm)
    return operator(forward, backward, W * s, 2 * W * columns)


def layer(model, system, strategy, c):
    """The fourteen operators of one layer (section 2), named as in points.json."""
    e, f, b, n1 = model["e"], model["f"], c["bm"], c["n1"]
    lr = model["l"] // c["n2"]
    rows = b * lr
    if strategy == "summa":
        statistics = collective("all_reduce", W * 2 * rows, n1, c["t1"], system)
        ops = {
            "qkv": summa_gemm(rows, e, 3 * e, c, system),
            "vproj": summa_gemm(rows, e, e, c, system, save_input=False),  # C5
            "fc1": summa_gemm(rows, e, f, c, system),
            "fc2": summa_gemm(rows, f, e, c, system),
        }
        out_rows, out_columns = rows, e // n1
        ln_forward, ln_backward = statistics, statistics  # C7
    else:
        scatter = collective("reduce_scatter", W * rows * e, n1, c["t1"], system)
        ops = {
            "qkv": gemm(rows, e, 3 * e // n1, system, backward_comm=scatter),
            "vproj": gemm(rows, e // n1, e, system, forward_comm=scatter, save_input=False),  # C5
            "fc1": gemm(rows, e, f // n1, system, backward_comm=scatter),
            "fc2": gemm(rows, f // n1, e, system, forward_comm=scatter),
        }
        out_rows, out_columns = b * (lr // n1), e
        ln_forward = collective("all_gather", W * rows * e, n1, c["t1"], system)
        ln_backward = scatter
    out, hidden = out_rows * out_columns, rows * (f // n1)
    ops["fc1-bias"] = bias(hidden, f // n1, system)
    ops["fc2-bias"] = bias(out, out_columns, system)  # C6
    ops["vproj-bias"] = bias(out, out_columns, system)  # C6
    ops["act1"] = gelu(hidden, system)
    ops["dpr1"] = dropout(hidden, system)
    ops["dpr2"] = dropout(out, system)
    ops["dpr_v"] = dropout(out, system)
    ops["ln1"] = layernorm(out_rows, out_columns, system, ln_forward, ln_backward)  # C2
    ops["ln2"] = layernorm(out_rows, out_columns, system, ln_forward, ln_backward)
    ops["fusedla"] = attention(model, c, system, strategy)
    return ops


def pipeline_hop(volume, c, system):
    """p of section 3 with C1: the mean over the np-1 links of a pipeline."""
    if c["np"] == 1:
        return 0.0
    bs, bf, ls, lf = links(system)
    hops = c["np"] - 1
    slow = hops if c["tp"] == 1 else c["np"] // c["tp"] - 1
    return (hops - slow) / hops * (lf + volume / bf) + slow / hops * (ls + volume / bs)


def price(model, system, strategy, config, global_batch):
    """Step time and peak memory of one configuration (sections 3 and 4), with their parts."""
    c = {"nb": 1, **config}
    ops = layer(model, system, strategy, c)
    layers = model["depth"] // c["np"]
    m = (global_batch // c["nd"]) // c["bm"]

    def total(key, directions=("forward", "backward")):
        return sum(op[direction][key] for op in ops.values() for direction in directions)

    tf, tb = total("time", ["forward"]), total("time", ["backward"])
    per_layer = {
        direction: {key: total(key, [direction]) for key in ("tp_communication", "cp_communication")}
        for direction in ("forward", "backward")
    }
    layer_weights = sum(op["weights"] for op in ops.values())
    shard_group, shard_fast = c["nd"], c["td"]  # who shares gradients and optimizer states
    if strategy == "2d":
        shard_group, shard_fast = c["nd"] * c["n2"], c["td"] * c["t2"]

    shared = collective("all_gather", layer_weights, shard_group, shard_fast, system)
    main = m * layers * (tf + tb)
    parts = {
        key: m * layers * total(key) for key in ("compute", "exposed_memory", "tp_communication", "cp_communication")
    }
    parts["dp_communication"] = sum(shared + (layers - 1) * max(shared - cover, 0.0) for cover in (tf, tb))
    parts["pp_communication"] = m * 2 * pipeline_hop(ops["ln1"]["saved"], c, system)
    parts["bubble"] = (c["np"] - 1) * (main + parts["pp_communication"]) / m
    step_time = main + parts["pp_communication"] + parts["bubble"] + parts["dp_communication"]

    weights = layers * layer_weights
    memory = {
        "weights": weights,
        "gradients": weights,
        "optimizer": 6 * weights / shard_group,
        "activations": layers * sum(op["saved"] for op in ops.values()) * min(c["np"], m),
    }
    memory["total"] = sum(memory.values())
    return {
        "step_time": step_time,
        "parts": parts,
        "memory": memory,
        "operators": ops,
        "layer_communication": per_layer,
        "fits": memory["total"] <= system["hbm_capacity"],
    }
