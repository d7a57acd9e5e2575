"""The flags of a plan as lines for a shell."""

from dsx.launching import LAUNCHED
from dsx.launching.request import LaunchSettings, Option
from dsx.launching.writers import FRAMEWORKS, launch_text


def test_every_framework_that_is_offered_has_a_writer():
    assert (*FRAMEWORKS,) == LAUNCHED


def test_no_line_is_wider_than_a_hundred_columns():
    modules = [f"module_{number}" for number in range(12)]
    layout = "Et|" + "t*2|tt|" * 10 + "L"
    options = (
        Option("--recompute-modules", " ".join(modules), ""),
        Option("--layout", layout, ""),
        Option("--bf16", "", ""),
    )
    for filler in range(40):
        launch = LaunchSettings((Option(f"--{'x' * filler}", "", ""), *options), ())
        lines = launch_text(launch, "a plan").splitlines()
        assert max(map(len, lines)) <= 100
        assert all(line.endswith(" \\") for line in lines[1:-1])


def test_a_plan_without_flags_says_why():
    lost = ("2d tensor parallelism", "head layers with SUMMA " + 30 * "more ")
    text = launch_text(LaunchSettings((), lost, "the rest would start another plan"), "plan 1")
    first, *lines = text.splitlines()
    assert first.endswith(" of plan 1: none, since the rest would start another plan")
    assert " ".join(" ".join(lines).split()) == " ".join(f"cannot be expressed: {part.strip()}" for part in lost)
