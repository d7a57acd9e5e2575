"""Figures 4, 5 and A4: the fastest plans on 128 to 16,384 GPUs, and those of three strategies on nine systems."""

from itertools import groupby

import numpy as np
import pandas as pd

from claims.claim import PARTLY, Claim, Difference, percent, span
from claims.runs import Runs, fastest, fastest_by, plan, where

_B200 = ["b200-nvs4", "b200-nvs8", "b200-nvs64"]


def placement(runs: Runs) -> Claim:
    """Figure 4a, the axes that share the fast domain."""
    by_n = fastest_by(runs["figure-4a"], "num_gpus")
    shares = {n: plan(row, "tp_nvs", "pp_nvs", "dp_nvs") for n, row in by_n.items()}
    released = {256: 116.199, 512: 56.788, 1024: 30.129, 2048: 16.189, 4096: 9.039}
    return Claim(
        "Fig. 4a: in the fast domain are (TP, PP) = (4, 2) at 2,048 GPUs, (TP, PP, DP) = (2, 2, 2) at 1,024, all TP "
        "from 8,192",
        "yes; (4, 2) only because slow pipeline links are free",
        "(tp, pp, dp): " + ", ".join(f"{n:,} {share}" for n, share in shares.items()),
        (shares[2048] == (4, 2, 1), shares[1024] == (2, 2, 2), shares[8192] == shares[16384] == (8, 1, 1)),
        {PARTLY: "All but (4, 2): with C1 a slow link between stages costs time, and DP takes the place of PP"},
        ("figure-4a",),
        tuple(
            Difference(f"Fig. 4a, step time at {n:,} GPUs", "s", time, by_n[n].step_time_s, "C1")
            for n, time in released.items()
        ),
    )


def depth(runs: Runs) -> Claim:
    """Figure 4a, the pipeline."""
    plans = {n: plan(row, "tp", "pp") for n, row in fastest_by(runs["figure-4a"], "num_gpus").items()}
    tp, pp = ({n: degrees[i] for n, degrees in plans.items()} for i in (0, 1))
    return Claim(
        "Fig. 4a: np grows to 128 until 4,096 GPUs, then falls; few GPUs use more TP",
        "(nt, np): 128 (8, 16), 256 (4, 64), 512 (2, 128), 1,024 (2, 128), 2,048 (4, 128), 4,096 (4, 128), "
        "8,192 (8, 64), 16,384 (8, 64)",
        "(tp, pp): " + ", ".join(f"{n:,} {degrees}" for n, degrees in plans.items()),
        (pp[4096] == 128 > pp[8192] and min(pp[n] for n in (512, 1024, 2048)) == 128, tp[128] > tp[256] > tp[512]),
        {PARTLY: "pp reaches 128 only at 512 GPUs: C1 makes deep pipelines more expensive. Few GPUs do use more TP"},
        ("figure-4a",),
    )


def grid_of_the_transformer(runs: Runs) -> Claim:
    """Figure 4b."""
    rows = runs["figure-4b"]
    large = [n for n in sorted(rows.num_gpus.unique()) if n >= 2048]
    best = {n: plan(row, "tp", "cp", "pp") for n, row in fastest_by(rows, "num_gpus").items()}
    slower = [fastest(rows, num_gpus=n, tp=4, cp=4).step_time_s / fastest(rows, num_gpus=n).step_time_s for n in large]
    wide = where(runs["figure-5-vit-era5"], cluster="b200-nvs64", strategy="2d")
    on_nvs64 = {n: plan(row, "tp", "cp", "pp") for n, row in fastest_by(wide, "num_gpus").items()}
    return Claim(
        "Fig. 4b: the vision transformer's common grid at scale is (n1, n2) = (4, 4)",
        "B200 in domains of 8: (1, 16) with np = 4 up to 1,024 GPUs, (4, 4) with np = 2 from 2,048. "
        "A100 mostly (2, 16), H200 mostly (2, 8)",
        f"B200 in domains of 8, (tp, cp, pp): {_equal_blocks(best)}; from 2,048 GPUs (4, 4) is "
        f"{span([ratio - 1 for ratio in slower])} slower. In domains of 64: {_equal_blocks(on_nvs64)}",
        (all(best[n][:2] == (4, 4) for n in large), sum(on_nvs64[n][:2] == (4, 4) for n in large) > len(large) / 2),
        {
            PARTLY: "In domains of 64 yes, in domains of 8 no: C5 makes room for (2, 8) with two stages, which is "
            "slightly faster"
        },
        ("figure-4b",),
    )


def transformer_needs_2d(runs: Runs) -> Claim:
    """No 1d plan of the vision transformer fits."""
    rows = runs["figure-5-vit-era5"]
    settings = rows.attrs["spec"]
    cases = len(settings["cluster"]) * len(settings["num_gpus"])
    fits = len(where(rows, strategy="1d"))
    return Claim(
        "No 1D plan of the vision transformer fits on any GPU",
        "none in 72 of 72 cases (GPU, domain, number of GPUs)",
        f"none in {cases - fits} of {cases} cases",
        (fits == 0,),
    )


def bottleneck_of_the_transformer(runs: Runs) -> Claim:
    """Figure 4b, the parts of a step."""
    best = fastest_by(runs["figure-4b"], "num_gpus")
    tensor = [(row.tp_comm_s + row.cp_comm_s) / row.step_time_s for row in best.values()]
    bubble = [row.bubble_s / row.step_time_s for row in best.values()]
    rest = [(row.dp_comm_s + row.pp_comm_s + row.memory_s) / row.step_time_s for row in best.values()]
    return Claim(
        "Fig. 4b: TP communication is the only bottleneck of the vision transformer",
        "TP 23-26 % of a step; the bubble reaches 11 % at 16,384 GPUs",
        f"TP and CP communication {span(tensor)}; the bubble reaches {percent(bubble[-1])} % at 16,384 GPUs, all "
        f"others together {percent(max(rest))} %",
        (all(t > b + r for t, b, r in zip(tensor, bubble, rest, strict=True)), max(bubble + rest) < 0.05),
        {PARTLY: "It is the largest everywhere; at 16,384 GPUs it is not the only one"},
        ("figure-4b",),
    )


def summa_for_the_transformer(runs: Runs) -> Claim:
    """2D against SUMMA for the vision transformer."""
    times = _step_times(runs["figure-5-vit-era5"])
    saved = (1 - times["summa"] / times["2d"]).dropna()
    faster = saved[saved > 0]
    texts = []
    for cluster, part in faster.groupby(level="cluster", observed=True):
        counts = part.index.get_level_values("num_gpus").tolist()
        texts.append(f"{cluster} {_counts(counts)} ({span(part.tolist())})")
    return Claim(
        "2D tensor parallelism is the best for the vision transformer, better than SUMMA",
        "not everywhere: SUMMA takes less time on A100 in domains of 64 at all GPU counts (3-13 %), B200 in domains of "
        "64 from 4,096 and of 8 at 16,384 (1.8 %), H200 in domains of 64 at 512 to 4,096",
        f"SUMMA takes less time in {len(faster)} of the {len(saved)} cases where both fit: {', '.join(texts)}",
        tuple((saved < 0).tolist()),
        {
            PARTLY: "2D is ahead in fewer cases than in the released code, where SUMMA is ahead in 16: C2 and C5 "
            "together free enough of SUMMA's memory that smaller grids fit"
        },
    )


def days(runs: Runs) -> Claim:
    """Figure 5."""
    at = {
        cluster: row.training_days for cluster, row in _largest(where(runs["figure-5-gpt3-1t"], strategy="1d")).items()
    }
    gpus = {gpu: "/".join(f"{at[f'{gpu}-nvs{size}']:.2f}" for size in (4, 8, 64)) for gpu in ("a100", "h200", "b200")}
    released = {"a100-nvs4": 33.0, "a100-nvs8": 28.2, "a100-nvs64": 25.5}
    return Claim(
        "Fig. 5: GPT3-1T takes about 30 days on 16K A100, 3-5 days on B200",
        "domains of 4/8/64: A100 33.0/28.2/25.5, H200 11.8/10.3/9.5, B200 5.24/4.46/3.99 days",
        "domains of 4/8/64: " + ", ".join(f"{gpu.upper()} {text}" for gpu, text in gpus.items()) + " days",
        (
            all(abs(at[cluster] - 30) <= 5 for cluster in released),
            all(3 <= round(at[cluster]) <= 5 for cluster in _B200),
        ),
        pictures=("figure-5-gpt3-1t",),
        differences=tuple(
            Difference(f"Fig. 5, training time on {cluster}", "days", number, at[cluster], "C6", 1)
            for cluster, number in released.items()
        ),
    )


def speedup_of_2d(runs: Runs) -> Claim:
    """Figure A4, the size of the speed-ups."""
    gains = _gains(runs["figure-5-gpt3-1t"])
    inside = {strategy: [bool(0.05 <= gain <= 0.10) for gain in gains[strategy]] for strategy in gains}
    texts = []
    for strategy, column in gains.items():
        low, high = np.percentile(column, [10, 90])
        texts.append(
            f"{strategy} median {percent(column.median())} % (p10-p90 {percent(low)}-{percent(high)}, "
            f"min {percent(column.min())}, max {percent(column.max())}, {sum(inside[strategy])}/{len(column)} inside)"
        )
    return Claim(
        "Fig. A4: 2D plans are 5-10 % faster than 1D",
        "63 cases (GPU, domain, number of GPUs): 2D median 4.0 % (p10-p90 0.9-9.9, max 15.4, 19/63 inside 5-10 %); "
        "SUMMA median 7.6 % (3.0-15.7, min -0.3, max 43.4, 39/63 inside)",
        f"{len(gains)} cases: " + "; ".join(texts),
        (*inside["2d"], *inside["summa"]),
        {
            PARTLY: "The median of SUMMA is inside, that of 2D below, and the spread is wide. C2 lowers the median of "
            "SUMMA, C6 that of 2D"
        },
        ("figure-a4",),
        (
            Difference("Fig. A4, median speed-up of 2d", "%", 4.0, 100 * gains["2d"].median(), "C6 and C1", 1),
            Difference("Fig. A4, median speed-up of SUMMA", "%", 7.6, 100 * gains["summa"].median(), "C2", 1),
        ),
    )


def where_summa_helps(runs: Runs) -> Claim:
    """Figure A4, where SUMMA's speed-up is largest."""
    gain = _gains(runs["figure-5-gpt3-1t"])["summa"]
    medians = {gpu: gain[[gpu in cluster for cluster, _ in gain.index]].median() for gpu in ("a100", "h200", "b200")}
    largest = {}  # {GPU: the case with the largest speed-up}
    for gpu in medians:
        largest[gpu] = gain[[gpu in cluster for cluster, _ in gain.index]].idxmax()
    first = {cluster: part.index[0] == part.idxmax() for cluster, part in gain.groupby(level="cluster", observed=True)}
    peaks = ", ".join(f"{cluster} at {n:,} ({percent(gain[cluster, n])} %)" for cluster, n in largest.values())
    return Claim(
        "Fig. A4: SUMMA helps most at small scale, on A100, in small domains",
        "A100 in domains of 4 at 512 GPUs 30.7 %, B200 in domains of 4 at 128 GPUs 43.4 %; the error that C2 corrects "
        "flatters SUMMA's memory here",
        f"largest speed-up of each GPU: {peaks}. On {sum(first.values())} of {len(first)} systems it is at the "
        "smallest number of GPUs that a 1d plan fits. Medians "
        + ", ".join(f"{gpu.upper()} {percent(median)} %" for gpu, median in medians.items()),
        (
            all(cluster.endswith("nvs4") and first[cluster] for cluster, _ in largest.values()),
            medians["a100"] == max(medians.values()),
        ),
        pictures=("figure-a4",),
        differences=(
            Difference("Fig. A4, SUMMA on a100-nvs4 at 512", "%", 30.7, 100 * gain["a100-nvs4", 512], "C2", 1),
            Difference("Fig. A4, SUMMA on b200-nvs4 at 128", "%", 43.4, 100 * gain["b200-nvs4", 128], "C2", 1),
        ),
    )


def _step_times(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest step time by (cluster, num_gpus) and strategy; NaN if nothing fits."""
    return rows.pivot_table(index=["cluster", "num_gpus"], columns="strategy", values="step_time_s", observed=True)


def _gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the speed-up of 2d and summa over 1d by (cluster, num_gpus), where all three fit; 0.05 is 5 %."""
    times = _step_times(rows)
    return pd.DataFrame({strategy: times["1d"] / times[strategy] - 1 for strategy in ("2d", "summa")}).dropna()


def _largest(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the fastest row of each cluster at the largest number of GPUs."""
    most = where(rows, num_gpus=rows["num_gpus"].max())
    return {str(cluster): fastest(most, cluster=cluster) for cluster in most["cluster"].unique()}


def _equal_blocks(plans: dict[int, tuple[int, ...]]) -> str:
    """Return "128 (1, 16, 4), 256-16,384 (2, 8, 2)"."""
    blocks = [(degrees, [n for n, _ in group]) for degrees, group in groupby(plans.items(), key=lambda item: item[1])]
    return ", ".join(f"{_counts(counts)} {degrees}" for degrees, counts in blocks)


def _counts(counts: list[int]) -> str:
    """Return "256-16,384" if the counts are all powers of two in between, otherwise every count."""
    first, last = counts[0], counts[-1]
    if len(counts) > 1 and last == first << (len(counts) - 1):
        return f"{first:,}-{last:,}"
    return ", ".join(f"{count:,}" for count in counts)
