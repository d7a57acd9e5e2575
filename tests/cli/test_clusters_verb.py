"""``dsx clusters show``: tiers, tables of collectives, and their picture."""


def test_tiers_and_tables_for_people(run):
    done = run("clusters", "show", "perlmutter")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0].startswith("perlmutter: NERSC Perlmutter")
    assert "tier GPUs per GPU latency subscription" in lines
    assert "nvs 4 300 GB/s 2.50 us 1" in lines
    assert "global 7168 12.5 GB/s 6.00 us 2" in lines
    assert "all-reduce by group size in GPUs, under default" in lines
    assert "bytes 2 4 8 16 32 512 1024 7168" in lines
    tables = [line for line in lines if line.startswith(("1.00 kB", "1.00 GB"))]
    assert len(tables) == 4


def test_a_picture(run, tmp_path):
    done = run("clusters", "show", "tpu-v4-pod", "--plot", tmp_path / "pod.svg")
    assert (done.code, done.err) == (0, "")
    drawn = (tmp_path / "pod.svg").read_text(encoding="utf-8")
    for text in ("tpu-v4-pod", "time of an all-reduce", "time of an all-to-all", "size of the tensor", "GPUs"):
        assert text in drawn


def test_jobs_larger_than_a_cluster_and_unknown_topologies_are_refused(run):
    done = run(
        "best", "--model", "gpt3-5b", "--cluster", "dgx-a100-superpod", "--num-gpus", 2048, "--global-batch-size", 2048
    )
    assert (done.code, done.out) == (2, "")
    assert "cluster 'dgx-a100-superpod' has nvs=8 * rail=20 * spine=7 = 1120 GPUs, 928 too few" in done.err
    done = run("clusters", "show", "h100-nvs8", "--set", "cluster.network.topology={kind: tree}")
    assert (done.code, done.out) == (2, "") and "kind: 'tree' is not one of fat_tree, " in done.err
