"""``dsx best --train-tokens``: days and cost over numbers of GPUs, a goal that nothing meets, and bad input."""

import pytest

BEST = ("best", "--model", "small.yaml", "--cluster", "b200-nvs8", "--global-batch-size", 32)
BEST = (*BEST, "--assumptions", "paper-2410.00273", "--strategy", "1d", "--partition", "even")
PRICE = ("--set", "cluster.price=3 USD/h")
RUN = (*BEST, "--num-gpus", "8,16", "--train-tokens", "2B")


@pytest.mark.slow
def test_the_answer_names_gpus_days_cost_and_plan_or_that_none_fits(run, folder):
    done = run(*RUN, *PRICE, "--deadline", "30d", "--plot", "cost.png")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "small on b200-nvs8 at 3 USD/h: 2 B tokens, in 30 days"
    assert lines[3].startswith("8 GPUs, the cheapest of those compared that is done in time: ")
    assert " USD, " in lines[4] and "GPU hours" in lines[4]
    assert (folder / "cost.png").exists() and "wrote cost.png" in done.err
    # A deadline that nothing meets.
    done = run(*RUN, *PRICE, "--deadline", "10 s")
    assert done.code == 3
    said = " ".join(done.out.split())
    assert "no plan on 8 to 16 GPUs trains 2 B tokens in 0.000115741 days; the fastest takes " in said
    assert done.err.endswith("dsx: error: no plan meets the goal\n")
    assert done.out.count(" late ") == 2
    # No plan fits.
    done = run(*RUN, "--set", "cluster.device.hbm_capacity=1 kB", "--plot", "none.png")
    assert (done.code, done.out) == (3, "")
    assert not (folder / "none.png").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((*BEST, "--num-gpus", "8", "--deadline", "3d"), "--deadline is about a training run: give its tokens too"),
        ((*BEST, "--num-gpus", "8,x", "--train-tokens", "2B"), "'x' is not a whole number, as in 512"),
        (BEST, "--num-gpus: a number of GPUs is wanted, as in 512"),
    ],
)
def test_bad_input_is_named(run, folder, options, says):
    done = run(*options)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_the_chosen_plan_can_be_launched(run, folder):
    done = run(*RUN, "--deadline", "30d", "--launch", "launch")
    assert done.code == 0
    assert [*(folder / "launch").iterdir()]
