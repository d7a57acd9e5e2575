"""Run tables written by tests: a row that can be modelled, and files with changes to it."""

import csv
from pathlib import Path

ROW = {
    "id": "own-1", "source_id": "own", "layers": "32", "hidden": "4096", "ffn_hidden": "11008", "heads": "32",
    "kv_heads": "32", "seq": "2048", "vocab": "32000", "experts": "", "topk": "", "gated_mlp": "1",
    "gpu": "A100-80GB-SXM", "gpus_per_node": "8", "n_gpus": "16", "precision": "bf16", "framework": "", "flash": "1",
    "kernels": "norm + softmax", "tp": "2", "sp": "1", "pp": "2", "vpp": "1", "dp": "4", "cp": "1", "ep": "1",
    "zero_stage": "1", "microbatch": "2", "global_batch": "64", "recompute": "none", "measured_iter_s": "3.5",
    "measured_tokens_per_s_per_gpu": "", "measured_tflops_per_gpu": "", "flops_kind": "", "measured_mfu": "",
    "measured_mem_gb": "", "mem_unit": "", "oom": "0", "trust": "A",
}  # fmt: skip


def write(path: Path, *changes: dict[str, str], without: tuple[str, ...] = ()) -> Path:
    """Write a table with one row per entry of `changes`, each `ROW` with that changed, and ids of their own."""
    rows = [ROW | {"id": f"own-{number}"} | change for number, change in enumerate(changes or ({},), 1)]
    columns = [name for row in rows for name in row if name not in without]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(columns)), restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path
