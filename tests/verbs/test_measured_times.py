"""Measured times of kernels in evaluate, best, why and a sweep, and what is said of them."""

import pytest
from verbs.small import MODEL

import dsx
from dsx.errors import SpecError, StoreError

PLAN = "dp=8 nvs.dp=8"
TIMES = """operator,direction,m,n,k,batch,time
einsum,,2048,4096,1024,,900 us
gelu,forward,2048,4096,,,50 us
silu,forward,2048,4096,,,50 us
"""
SWEEP = {"model": MODEL, "cluster": "b200-nvs8", "num_gpus": 8, "global_batch_size": 8, "operator_times": "times.csv"}


@pytest.fixture
def times(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "times.csv").write_text(TIMES)
    return tmp_path / "times.csv"


def job(**options):
    return dsx.Job(MODEL, "b200-nvs8", num_gpus=8, global_batch_size=8, **options)


def test_an_evaluation_says_what_was_measured(times):
    found, plain = dsx.evaluate(job(operator_times="times.csv"), PLAN), dsx.evaluate(job(), PLAN, operators=True)
    lines = [" ".join(line.split()) for line in str(found).splitlines()]
    first = next(line for line in lines if line.startswith("operator times of times.csv, 22 kernels of this plan: "))
    assert "3 measured (" in first and "10 extrapolated (" in first and "interpolated" not in first
    shown = [line for line in lines if line.startswith("transformer feed-forward.z forward einsum 2048 x 4096 x 1024")]
    assert len(shown) == 1 and shown[0].endswith("900 us line 2")
    assert sum(line.endswith("beyond the rows") for line in lines) == 10
    assert "1 row of times.csv: no kernel of this plan is of that operator, direction and type" in lines
    assert "line 4: silu forward 2048 x 4096" in lines
    said = found.to_data()["operator_times"]
    assert (said["num_interpolated"], said["interpolated_share"]) == (0, 0)
    assert 0 < said["measured_share"] < said["measured_share"] + said["extrapolated_share"] < 1
    known = [one for one in said["kernels"] if one["known"] == "measured"]
    assert [(one["line"], one["kernel"], one["direction"], one["time_s"]) for one in known] == [
        (2, "feed-forward.z", "forward", 9e-4),
        (2, "feed-forward.output", "backward", 9e-4),
        (3, "feed-forward.u", "forward", 5e-5),
    ]
    assert "operator_times" not in plain.to_data() and plain.step_time_s < found.step_time_s
    # The shapes of an evaluation are what a file can hold.
    rows = (("" if cell is None else str(cell) for cell in shape.values()) for shape in plain.to_data()["shapes"])
    times.write_text("\n".join([TIMES.splitlines()[0], *(",".join((*cells, "1 ms")) for cells in rows)]))
    said = dsx.evaluate(job(operator_times="times.csv"), PLAN).to_data()["operator_times"]
    assert (said["num_measured"], said["idle"]) == (said["num_kernels"], [])
    assert said["measured_share"] > 0.99  # the rest is the accumulation of gradients


@pytest.mark.slow
def test_best_and_sweep_and_why_price_alike(times, caplog):
    found = dsx.best(job(operator_times="times.csv"), 2)
    assert [one["line"] for one in found.to_data()["idle_operator_times"]] == [4]
    assert "1 row of times.csv: no kernel of any plan is" in str(found)
    caplog.set_level("INFO", "dsx")
    swept = dsx.sweep(SWEEP | {"keep": {"top": 2}, "precision": "float64"}, "set")
    assert "2 of 3 rows of times.csv are of kernels of these plans; 22 kernels of the fastest: " in caplog.text
    (row, explained) = (swept.priced[0], dsx.why_row("set", swept.plans[0]["candidate"]))
    assert [row["step_time_s"], explained.step_time_s] == pytest.approx([found.step_time_s] * 2, rel=1e-12)
    times.write_text(TIMES.replace("900", "950"))
    with pytest.raises(StoreError, match=r"differ in resolved\.operator_times"):
        dsx.sweep(SWEEP | {"keep": {"top": 2}, "precision": "float64"}, "set")


@pytest.mark.parametrize(
    ("change", "varied"),
    [
        ({"cluster": ["b200-nvs8", "h200-nvs8"]}, "cluster"),
        ({"what_if": {"network.nvs.size": [4, 8]}}, "network.nvs.size"),
    ],
)
def test_a_sweep_of_several_machines_is_refused(times, change, varied):
    said = f"operator_times: times are measured on one machine, but the sweep varies {varied}"
    with pytest.raises(SpecError, match=said):
        dsx.sweep(SWEEP | change)


def test_a_price_is_no_other_machine(times):
    """A price changes no time, so measured times stay valid; a job of no tokens has no cost."""
    priced = dsx.evaluate(job(operator_times="times.csv", set={"cluster.price": "2 USD/h"}), PLAN)
    data = priced.to_data()
    assert data["tokens_per_s_per_gpu"] == pytest.approx(data["tokens_per_s"] / 8)
    assert (data["cost_usd"], data["goodput"], data["gpu_hours"]) == (None, None, None)
