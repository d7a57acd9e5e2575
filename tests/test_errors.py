"""What a message shows of bad input is bounded, however long the input is, and so is what is compared to name it."""

import pickle
import time

import pytest

from dsx import errors
from dsx.errors import DsxError, InputError, NotationError, UnknownNameError, did_you_mean, nearest_names

STATED_S = 2.0  # within which anything that is read is read or refused


def test_long_messages_are_bounded():
    lines = "\n".join(["x" * 3000] * 50)
    assert str(InputError(lines)) == lines
    # The middle of a long line is left out with how long it is.
    message = str(InputError(f"a.yaml:1: {'x' * 10**6!r} has no unit"))
    assert message.startswith("a.yaml:1: 'xxx") and message.endswith("x' has no unit")
    assert "[... 997,024 characters ...]" in message
    assert len(message) < 4000
    # Faults behind the first ones are counted.
    message = str(InputError("\n".join(f"fault {index}" for index in range(100_000))))
    assert message.endswith("\nfault 49\n... and 99,950 more lines")


@pytest.mark.parametrize(
    "error",
    [
        UnknownNameError("model", "x" * 10**6, [f"name-{index}" for index in range(100_000)]),
        NotationError("y" * 10**6, "a.layer", 3, 4),
    ],
)
def test_errors_with_parts_of_their_own_are_bounded_too(error):
    assert len(str(error)) < 4000


def test_nearest_names():
    assert did_you_mean("TP", ["pp", "tp2", "tp"]) == "; did you mean 'tp'?"
    assert nearest_names("F", ["e", "f"], cutoff=0.5) == ["f"]
    assert did_you_mean("device.hbm", ["device.name", "device.hbm_capacity"]) == "; did you mean 'device.hbm_capacity'?"
    # Long names and long lists are not compared.
    begun = time.perf_counter()
    assert did_you_mean("ab" * 50_000, ["ba" * 50_000]) == ""
    assert did_you_mean("abc", ["a" * 100_000, "abd"]) == "; did you mean 'abd'?"
    assert nearest_names("layer", (f"layer{index}" for index in range(10**6)), cutoff=0.5, most=2) != []
    assert time.perf_counter() - begun < STATED_S


EVERY = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DsxError)]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_an_error_reaches_another_process_as_it_is(kind):
    arguments = {UnknownNameError: ("model", "lama", ["llama"]), NotationError: ("wrong", "a.layer", 3, 4)}
    error = kind(*arguments.get(kind, ("wrong: 'a'; 'b' is wanted",)))
    error.add_note("of a worker")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is kind
    assert (str(copied), vars(copied), copied.exit_code) == (str(error), vars(error), error.exit_code)
