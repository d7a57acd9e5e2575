"""Referee for the search: FORMULAS.md section 5 by plain nested loops, and the optimum by brute force."""

from oracles.formulas import price


def divisors(n):
    return [i for i in range(1, n + 1) if n % i == 0]


def tensor_degrees(model, strategy, num_gpus):
    """The (n1, n2) of section 5."""
    length, e, h = model["l"], model["e"], model["h"]
    found = []
    for n1 in divisors(num_gpus):
        if h % n1 or e % n1:
            continue
        if strategy == "1d":
            if 3 * e // n1 >= 128:
                found.append((n1, 1))
            continue
        for n2 in divisors(num_gpus // n1):
            if e // n1 < 128 or length // n2 < 128:
                continue
            if strategy == "summa" and e % n2:
                continue
            found.append((n1, n2))
    return found


def pipeline_degrees(model, num_gpus, nt):
    """The np of section 5."""
    depth = model["depth"]
    return [np for np in divisors(min(num_gpus // nt, depth)) if depth % np == 0 and num_gpus % (nt * np) == 0]


def microbatches(model, strategy, n1, n2, nd, global_batch):
    """The bm of section 5."""
    split = {"1d": n1, "2d": n1 * n2, "summa": n2}[strategy]
    return [bm for bm in divisors(global_batch // nd) if (bm * model["l"]) % split == 0]


def panel_counts(model, strategy, n1, n2):
    """The nb of section 5; one panel outside SUMMA."""
    if strategy != "summa":
        return [1]
    e, s = model["e"], max(n1, n2)
    if e / s < 512:
        return [s]
    found, nb = [], s
    while nb < e:  # s * 2^i with i < log2(e // s)
        if e % nb == 0 and e // nb >= 512:
            found.append(nb)
        nb *= 2
    return found


def assignments(fast_size, n1, n2, np, nd):
    """(t1, t2, tp, td), each a divisor of its group, that fill the fast domain exactly (section 5).

    The one extension: where none does, all those of the largest product that does not exceed fast_size. The
    rule of section 5 for num_gpus <= fast_size (t = the group sizes) is the case where that is num_gpus.
    """
    fitting = []
    for t1 in divisors(n1):
        for t2 in divisors(n2):
            for tp in divisors(np):
                for td in divisors(nd):
                    if t1 * t2 * tp * td <= fast_size:
                        fitting.append((t1, t2, tp, td))
    largest = max(t1 * t2 * tp * td for t1, t2, tp, td in fitting)
    return [t for t in fitting if t[0] * t[1] * t[2] * t[3] == largest]


def enumerate_candidates(model, fast_size, strategy, num_gpus, global_batch):
    """Every configuration of section 5, feasible or not, as dicts."""
    found = []
    for n1, n2 in tensor_degrees(model, strategy, num_gpus):
        for np in pipeline_degrees(model, num_gpus, n1 * n2):
            nd = num_gpus // (n1 * n2 * np)
            if nd > global_batch or global_batch % nd:
                continue
            placed = assignments(fast_size, n1, n2, np, nd)
            for bm in microbatches(model, strategy, n1, n2, nd, global_batch):
                for nb in panel_counts(model, strategy, n1, n2):
                    for t1, t2, tp, td in placed:
                        found.append(
                            {
                                "n1": n1, "n2": n2, "np": np, "nd": nd, "bm": bm, "nb": nb, "t1": t1, "t2": t2,
                                "tp": tp, "td": td,
                            }
                        )  # fmt: skip
    return found


def best(model, system, strategy, num_gpus, global_batch):
    """The fastest configuration that fits, by pricing every one; ties go to the first enumerated."""
    candidates = enumerate_candidates(model, system["fast_size"], strategy, num_gpus, global_batch)
    feasible, config, result = 0, None, None
    for candidate in candidates:
        priced = price(model, system, strategy, candidate, global_batch)
        if not priced["fits"]:
            continue
        feasible += 1
        if result is None or priced["step_time"] < result["step_time"]:
            config, result = candidate, priced
    return {"candidates": len(candidates), "feasible": feasible, "config": config, "price": result}
