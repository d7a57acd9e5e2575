"""A small model and a sweep of it, as content."""


def model_of(layers, dimensions, name="small", length=2048):
    return {
        "name": name, "source": "a test", "default_sequence_length": length, "dimensions": dimensions, "layers": layers,
    }  # fmt: skip


MODEL = model_of([{"kind": "transformer", "count": 8}], {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 4096})
SWEEP = {
    "model": MODEL, "cluster": "b200-nvs8", "num_gpus": [8, 16], "global_batch_size": 32,
    "assumptions": "paper-2410.00273", "what_if": {"device.hbm_capacity": ["2 GB", "192 GB"]}, "keep": "all",
}  # fmt: skip
# Its head takes as long as several layers, so that even stages are not the fastest.
HEAVY_HEAD = model_of(
    [{"kind": "embedding", "count": 1}, {"kind": "transformer", "count": 6}, {"kind": "head", "count": 1}],
    {"e": 1024, "h": 8, "g": 8, "k": 128, "f": 4096, "v": 100000},
)
