"""``--operator-times``: measured times of kernels in evaluate, best and sweep."""

import json

import pytest

JOB = ("--model", "small.yaml", "--cluster", "b200-nvs8", "--num-gpus", 8, "--global-batch-size", 8)
PLAN = ("dp=8", "nvs.dp=8")
TIMES = """operator,direction,m,n,k,batch,time
einsum,,2048,4096,1024,,900 us
gelu,forward,2048,4096,,,50 us
silu,forward,2048,4096,,,50 us
"""


@pytest.fixture
def times(folder):
    (folder / "times.csv").write_text(TIMES)
    return "times.csv"


def test_evaluate_says_what_was_measured(run, times, folder):
    done = run("evaluate", *JOB, *PLAN, "--operator-times", times)
    assert done.code == 0
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    first = next(line for line in lines if line.startswith("operator times of times.csv, 22 kernels of this plan: "))
    assert "3 measured (" in first and "10 extrapolated (" in first and "interpolated" not in first
    shown = [line for line in lines if line.startswith("transformer feed-forward.z forward einsum 2048 x 4096 x 1024")]
    assert len(shown) == 1 and shown[0].endswith("900 us line 2")
    assert sum(line.endswith("beyond the rows") for line in lines) == 10
    assert "1 row of times.csv: no kernel of this plan is of that operator, direction and type" in lines
    assert "line 4: silu forward 2048 x 4096" in lines
    # Evaluate says it as json.
    data = json.loads(run("evaluate", *JOB, *PLAN, "--operator-times", times, "--json").out)
    said = data["operator_times"]
    assert (said["file"], said["num_kernels"], said["num_measured"]) == ("times.csv", 22, 3)
    assert (said["num_interpolated"], said["num_extrapolated"], said["interpolated_share"]) == (0, 10, 0)
    assert 0 < said["measured_share"] < said["measured_share"] + said["extrapolated_share"] < 1
    known = [one for one in said["kernels"] if one["known"] == "measured"]
    assert [(one["line"], one["kernel"], one["direction"], one["time_s"]) for one in known] == [
        (2, "feed-forward.z", "forward", 9e-4),
        (2, "feed-forward.output", "backward", 9e-4),
        (3, "feed-forward.u", "forward", 5e-5),
    ]
    assert [(one["line"], one["operator"], one["m"], one["n"], one["k"]) for one in said["idle"]] == [
        (4, "silu", 2048, 4096, None)
    ]
    plain = json.loads(run("evaluate", *JOB, *PLAN, "--json").out)
    assert "operator_times" not in plain
    assert plain["step_time_s"] < data["step_time_s"]
    # Operators list what a file can hold.
    data = json.loads(run("evaluate", *JOB, *PLAN, "--operators", "--json").out)
    lines = ["operator,direction,m,n,k,batch,time"]
    for shape in data["shapes"]:
        cells = ("" if value is None else str(value) for value in shape.values())
        lines.append(",".join((*cells, "1 ms")))
    (folder / "all.csv").write_text("\n".join(lines))
    said = json.loads(run("evaluate", *JOB, *PLAN, "--operator-times", "all.csv", "--json").out)["operator_times"]
    assert (said["num_measured"], said["idle"]) == (said["num_kernels"], [])
    # The rest is the accumulation of gradients.
    assert said["measured_share"] > 0.99


@pytest.mark.slow
def test_best_and_sweep_and_why_price_alike(run, folder, times):
    done = run("best", *JOB, "--top", 2, "--operator-times", times, "--json")
    data = json.loads(done.out)
    assert [one["line"] for one in data["idle_operator_times"]] == [4]
    fastest = data["plans"][0]
    assert fastest["operator_times"]["file"] == "times.csv"
    assert "1 row of times.csv: no kernel of any plan is" in run("best", *JOB, "--operator-times", times).out
    (folder / "sub").mkdir()
    (folder / "sub" / "times.csv").write_text(TIMES)
    (folder / "sub" / "sweep.yaml").write_text(
        "model: ../small.yaml\ncluster: b200-nvs8\nnum_gpus: 8\nglobal_batch_size: 8\noperator_times: times.csv\n"
        "keep: {top: 2}\nprecision: float64\n"
    )
    done = run("sweep", "sub/sweep.yaml", "-o", "set", "--json")
    assert "2 of 3 rows of times.csv are of kernels of these plans; 22 kernels of the fastest: " in done.err
    row = json.loads(done.out)["plans"][0]
    assert row["step_time_s"] == pytest.approx(fastest["step_time_s"], rel=1e-12)
    why = json.loads(run("why", "set", row["plan"]["candidate"], "--json").out)
    assert why["step_time_s"] == pytest.approx(row["step_time_s"], rel=1e-12)
    # Other times are another sweep.
    (folder / "sub" / "times.csv").write_text(TIMES.replace("900", "950"))
    assert "differ in resolved.operator_times" in run("sweep", "sub/sweep.yaml", "-o", "set").err


@pytest.mark.parametrize(
    ("change", "varied"),
    [("cluster: [b200-nvs8, h200-nvs8]", "cluster"), ("what_if: {network.nvs.size: [4, 8]}", "network.nvs.size")],
)
def test_a_sweep_of_several_machines_is_refused(run, folder, times, change, varied):
    text = (folder / "sweep.yaml").read_text().replace("cluster: b200-nvs8\n", "")
    text += change if "cluster" in change else f"cluster: b200-nvs8\n{change}"
    (folder / "sweep.yaml").write_text(f"{text}\noperator_times: times.csv\n")
    done = run("sweep", "sweep.yaml")
    assert done.code == 2
    assert f"operator_times: times are measured on one machine, but the sweep varies {varied}" in done.err
    assert not (folder / "results").exists()
