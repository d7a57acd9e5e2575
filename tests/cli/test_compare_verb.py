"""``dsx compare``: two result sets side by side."""

import json

import pytest
from cli.conftest import STRATEGY

import dsx


@pytest.fixture(scope="module")
def made(swept, command):
    """Make a result set beside `swept`, whose sweep file it shares."""

    def make(name: str, *assignments: str, code: int = 0):
        options = [option for assignment in assignments for option in ("--set", assignment)]
        assert command("sweep", swept.parent / "sweep.yaml", "-o", swept.parent / name, *options) == code
        return swept.parent / name

    return make


@pytest.fixture(scope="module")
def smaller(made):
    """The same sweep with less memory and a slower network."""
    return made("smaller", "cluster.device.hbm_capacity=3 GB", "cluster.network.nvs.bandwidth=50 GB/s")


@pytest.fixture(scope="module")
def two(made):
    """The same sweep on two clusters, with two strategies."""
    return made("two", "sweep.cluster=[a100-nvs8, b200-nvs8]", "sweep.num_gpus=[4, 8]", "sweep.strategy=[1d, 2d]")


def test_as_json(run, swept, smaller):
    done = run("compare", swept, smaller, "--json")
    assert (done.code, done.err) == (0, "")
    data = json.loads(done.out)
    assert set(data) == {"schema_version", "a", "b", "per", "differences", "summary", "groups"}
    assert set(data["differences"]) == {
        "clusters.b200-nvs8.device.hbm_capacity",
        "clusters.b200-nvs8.network.nvs.bandwidth",
    }
    (group,) = data["groups"]
    assert (group["a"]["in_b"], group["a"]["step_time_s_in_b"], group["same_plan"]) == ("does not fit", None, False)
    table = dsx.compare(dsx.load(swept), dsx.load(smaller))  # tests/results/test_set_comparison.py has its numbers
    assert [group["ratio"], group["b"]["step_time_s_in_a"]] == [table["ratio"][0], table["b_in_a_step_time_s"][0]]
    assert [group[side]["plan"]["candidate"] for side in "ab"] == [table[f"candidate_{side}"][0] for side in "ab"]
    assert data["summary"]["joined"] == table.attrs["summary"]["joined"]


def test_each_side_has_the_stages_of_its_own_rows(run, made):
    """Sets of even and of best cuts have the same candidates, in other stages; so may hardware points of one set."""
    pipelines = ("sweep.fix.pp=[2]", "sweep.fix.vpp=[1]")
    even = made("even", *pipelines)
    best = made("best", *pipelines, "sweep.partition=optimal", "sweep.what_if={device.hbm_capacity: [3 GB, 192 GB]}")
    for sides, of_best in (((even, best), "b"), ((best, even), "a")):
        done = run("compare", *sides, "--json")
        groups = json.loads(done.out)["groups"]
        assert len(groups) == 2
        rows = dsx.load(best).set_index(["device.hbm_capacity", "candidate"])
        for group in filter(lambda group: group[of_best], groups):
            plan = group[of_best]["plan"]
            row = rows.loc[group["per"]["device.hbm_capacity"], plan["candidate"]]
            assert plan["stage_layers"] == row["stage_layers"]
            assert not (group["ab".replace(of_best, "")] or {"plan": {}})["plan"].get("stage_layers")
        told = run("compare", *sides).out
        assert "stage_layers=" in told and ("with other stages" in told or "A: " in told)


def test_for_people(run, swept, smaller):
    done = run("compare", swept, smaller)
    assert (done.code, done.err) == (0, "")
    about, table, summary = done.out.split("\n\n")
    assert f"A: {swept}: small on b200-nvs8; kept all: " in about
    assert "; 32 sequences of 2,048 tokens, 65,536 tokens a step\n" in about
    assert "clusters.b200-nvs8.device.hbm_capacity 192 GB 3.00 GB" in " ".join(about.split())
    common, above, header, first, second = table.splitlines()
    assert common == "best plans, num_gpus=8, global_batch_size=32:"
    assert above.split() == ["A's", "best", "B's", "best"]
    assert header.split() == ["A", "B", "B/A", "in", "B", "in", "A", "plan"]
    assert "does not fit" in first
    assert first.index("  A: ") == second.index("  B: ")
    assert summary.startswith("The best plan changes in 1 of 1 group.\n")


def test_groups_and_clusters(run, swept, two):
    data = json.loads(run("compare", two, two, "--json").out)
    assert data["per"] == ["num_gpus", "global_batch_size", "cluster"]
    assert [tuple(group["per"].values()) for group in data["groups"]] == [
        (gpus, 32, cluster) for gpus in (4, 8) for cluster in ("a100-nvs8", "b200-nvs8")
    ]
    one = json.loads(run("compare", swept, two, "--per", "strategy", "--json").out)
    assert [group["per"] for group in one["groups"]] == [{"strategy": "1d"}, {"strategy": "2d"}]
    assert {group["b"]["hardware"]["cluster"] for group in one["groups"]} == {"b200-nvs8"}
    assert one["differences"]["cluster"] == {"a": ["b200-nvs8"], "b": ["a100-nvs8", "b200-nvs8"]}
    people = run("compare", swept, two)
    assert "not in A" in people.out
    assert "rows missing from a set were not priced for it, or not kept (A kept all; B kept all)" in people.err
    common, _, header, *_ = people.out.split("\n\n")[1].splitlines()
    assert common == "best plans, global_batch_size=32:"
    assert header.split()[:3] == ["GPUs", "cluster", "A"]


@pytest.mark.slow
def test_a_table_over_what_if_values_is_not_too_wide(run, made):
    what_if = "sweep.what_if={network.nvs.bandwidth: [300 GB/s, 900 GB/s], device.hbm_capacity: [3 GB, 80 GB]}"
    a = made("points", what_if)
    b = made("pipelines", what_if, "sweep.limit.pp='>1'")
    table = run("compare", a, b).out.split("\n\n")[1].splitlines()
    assert table[0] == "best plans, num_gpus=8, global_batch_size=32:"
    assert table[1].split()[:2] == ["network.nvs.", "device."]
    assert table[2].split()[:3] == ["bandwidth", "hbm_capacity", "A"]
    assert max(map(len, table)) < 160


@pytest.mark.slow
def test_another_layer_text_is_named_and_not_hashed(run, folder):
    for name, more in (("one", ""), ("two", "require f % tp == 0   feed_forward_not_divisible\n")):
        (folder / "mine.layer").write_text(STRATEGY + more)
        assert run("sweep", "sweep.yaml", "-o", name, "--set", "sweep.strategy=[mine.layer]").code == 0
    about = run("compare", "one", "two").out.partition("\n\n")[0].splitlines()
    assert about[2:] == ["layer definition of mine differs"]
    assert run("sweep", "sweep.yaml", "-o", "three", "--set", "sweep.strategy=[mine.layer, 1d]").code == 0
    about = run("compare", "one", "three").out.partition("\n\n")[0].splitlines()
    assert [" ".join(line.split()) for line in about[2:]] == [
        "they differ in A B",
        "strategy mine mine, 1d",
        "layer definition of mine differs",
    ]


def test_with_itself(run, swept):
    done = run("compare", swept, swept.parent / "." / swept.name)
    assert done.code == 0
    assert "Both sweeps state the same." in done.out
    assert "\nbest plans, num_gpus=8, global_batch_size=32, the same plan in A and B:\n" in done.out
    assert "best\n" not in done.out
    assert "The best plan changes in 0 of 1 group." in done.out
    assert done.err == f"dsx: A and B are the same folder, {swept}\n"


@pytest.mark.slow
def test_what_is_not_in_both_sets_is_said(run, swept, made):
    top = made("top", "sweep.keep={top: 2}", "cluster.device.hbm_capacity=3 GB")
    done = run("compare", swept, top)
    assert "not in B" in done.out
    assert "or not kept (A kept all; B kept the 2 fastest)" in done.err
    assert "2 in B, 2 in both" in done.out
    # No group in common.
    done = run("compare", swept, made("four", "sweep.num_gpus=4"))
    assert (done.code, done.out) == (2, "")
    assert "no feasible group in common (num_gpus 8 and 4); try others with --per" in done.err
    assert run("compare", swept, swept.parent / "four", "--per", "strategy").code == 0
    # No candidate in common.
    one, other = (
        made("one", "sweep.strategy=1d", "sweep.fix.tp=2"),
        made("other", "sweep.strategy=2d", "sweep.limit.cp='>1'"),
    )
    done = run("compare", one, other)
    assert done.code == 0
    assert "dsx: no candidate is in both sets: the sweeps differ in strategy, fix.tp, limit.cp\n" in done.err
    # Other models are compared with a note.
    done = run("compare", swept, made("deeper", "model.layers.0.count=16", "model.name=deeper"))
    assert done.code == 0
    assert "dsx: the models differ (small, deeper): a candidate is the same choices, not the same work\n" in done.err


def test_nothing_feasible(run, swept, made, nothing_fits):
    done = run("compare", swept, nothing_fits)
    assert done.code == 0
    assert "none fits" in done.out
    assert "does not fit" in done.out
    assert "dsx: nothing in B is feasible\n" in done.err
    assert json.loads(run("compare", swept, nothing_fits, "--json").out)["groups"][0]["b"] is None
    done = run("compare", nothing_fits, nothing_fits)
    assert (done.code, done.out) == (3, "")
    empty = made("empty", "sweep.keep=feasible", "cluster.device.hbm_capacity=1 kB", code=3)
    done = run("compare", swept, empty)
    assert done.code == 0
    assert "not in B" in done.out
    done = run("compare", swept, swept, "--per", "mfu")
    assert (done.code, done.out) == (2, "") and "'mfu' is a cost, but groups are formed by choices" in done.err
