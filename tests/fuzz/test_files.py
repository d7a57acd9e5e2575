"""Files with faults are read, or refused with dsx's own errors: quickly, in little memory, and nothing is written."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from cli.conftest import MODEL, SWEEP, call
from fuzz import guard
from fuzz.kinds import KINDS, Kind

_QUICK = 50  # inputs of each kind
_LONG = 5_420
_SHOWN = 20  # faults in a message


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory) -> Path:
    """A working directory with a finished result set, `set`, beside files that are somebody's."""
    place = tmp_path_factory.mktemp("fuzz")
    folder = place / "work"
    for name in ("families", "victim"):
        (folder / name).mkdir(parents=True)
    (place / "victim.txt").write_text("somebody's")
    (folder / "victim" / "file.txt").write_text("somebody's")
    (folder / "small.yaml").write_text(MODEL)
    (folder / "sweep.yaml").write_text(SWEEP.replace("keep: all", "keep: {top: 3, per: [tp]}"))
    assert call("sweep", folder / "sweep.yaml", "-o", folder / "set") == 0
    return folder


def fuzz(kind: Kind, numbers: range, sandbox: Path) -> int:
    """Read mutations of good files of a kind, by their numbers; return how many were taken."""
    good = kind.good(sandbox)
    path = sandbox / kind.file
    original = path.read_bytes() if path.exists() else None
    taken = 0
    faults: list[str] = []
    for number in numbers:
        rng = random.Random(f"{kind.name} {number}")
        data = kind.mutate(rng.choice(good), rng)
        path.write_bytes(data)
        before = guard.files_below(sandbox.parent)
        try:
            taken += guard.read(lambda: kind.read(path))
            guard.refuse_changes(before, guard.files_below(sandbox.parent), [path.parent / "config.json"])
        except guard.Fault as fault:
            kept = sandbox.parent.with_name(f"fault-{kind.name}-{number}")
            kept.write_bytes(data)
            faults.append(f"{kind.name} {number}, kept as {kept}: {fault}")
    path.unlink() if original is None else path.write_bytes(original)
    if faults:
        raise guard.Fault(f"{len(faults)} of {len(numbers)}:\n" + "\n".join(faults[:_SHOWN]))
    return taken


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_files_with_faults(kind, sandbox):
    # Not so tame that nothing is refused. Hardly any mutated part of a result set is taken.
    assert fuzz(kind, range(_QUICK), sandbox) < _QUICK


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_good_files_are_taken(kind, sandbox):
    for number, data in enumerate(kind.good(sandbox)):
        kept = replace(kind, good=lambda _, data=data: [data], mutate=lambda data, _: data)
        assert fuzz(kept, range(number, number + 1), sandbox) == 1


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_many_files_with_faults(kind, sandbox):
    fuzz(kind, range(_QUICK, _LONG), sandbox)
