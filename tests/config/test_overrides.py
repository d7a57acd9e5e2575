"""`--set`: splitting by target, setting, adding what the schema allows, and refusing the rest."""

import pytest

from dsx.config.assumption_set import load_assumptions
from dsx.config.documents import Document
from dsx.config.load import override, split
from dsx.config.schema import FileKind, Spec
from dsx.errors import SpecError

DATA = {
    "name": "x",
    "device": {"hbm_capacity": {"value": "80 GB", "source": "s"}, "rate": 1},
    "layers": [{"kind": "transformer", "count": 4}],
}


class Failures(Spec):
    mtbf: str


class Machine(Spec):
    file_kind = FileKind("cluster", "a cluster", "--cluster")
    open_keys = ("fix",)

    price: float | None = None
    failures: Failures | None = None
    linear_dtype: str = "bf16"


def applied(data, assignments):
    """The data with some paths set."""
    return override(Document(data, {(): "f:1"}), assignments, Machine).data


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("clutser.device.rate=1", "unknown target 'clutser'; did you mean 'cluster'?"),
        ("device.rate=1", "unknown target 'device'"),
        ("cluster=1", "expected TARGET.PATH=VALUE"),
        ("cluster.device.rate", "expected TARGET.PATH=VALUE"),
        ("", "unknown target ''"),
    ],
)
def test_a_bad_assignment_says_the_form(text, says):
    with pytest.raises(SpecError) as caught:
        split([text])
    assert says in str(caught.value)


def test_values_are_set_with_their_place():
    changed = applied(DATA, [("device.hbm_capacity", "141 GB"), ("layers.0.count", "8"), ("device.rate", "[1, 1e3]")])
    assert changed == {
        "name": "x",
        "device": {"hbm_capacity": "141 GB", "rate": [1, 1000.0]},
        "layers": [{"kind": "transformer", "count": 8}],
    }
    assert DATA["device"]["hbm_capacity"]["value"] == "80 GB"
    # The place of what was set is the option.
    document = Document(
        {"a": [1, 2], "ab": 3}, {(): "f:1", ("a",): "f:1", ("a", 0): "f:1", ("a", 1): "f:2", ("ab",): "f:3"}
    )
    changed = override(document, [("a", "[{b: 1}]")], Machine)
    assert changed.data == {"a": [{"b": 1}], "ab": 3}
    assert changed.place(("a", 0, "b")) == "--set cluster.a"
    assert changed.place(("ab",)) == "f:3"
    # Assignments are split by target.
    by_target = split(["cluster.device.hbm_capacity=141 GB", "model.name=a=b", "cluster.name=c"])
    assert by_target == {
        "model": [("name", "a=b")],
        "cluster": [("device.hbm_capacity", "141 GB"), ("name", "c")],
        "assumptions": [],
        "sweep": [],
    }


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("device.hbm_capcity", "unknown path 'device.hbm_capcity'; did you mean 'device.hbm_capacity'?"),
        ("device.hbm_capacity.value", "did you mean 'device.hbm_capacity'?"),
        ("layers.1.count", "did you mean 'layers.0.count'?"),
        ("device..rate", "did you mean 'device.rate'?"),
        ("nam", "did you mean 'name'?"),
        ("", "unknown path ''"),
    ],
)
def test_an_unknown_path_names_the_nearest(path, says):
    with pytest.raises(SpecError) as caught:
        applied(DATA, [(path, "1")])
    assert f"--set cluster.{path}: unknown path" in str(caught.value)
    assert says in str(caught.value)


def test_misspelt_moved_and_missing_fields():
    assert applied(DATA, [("failures.mtbf", "2 h")])["failures"] == {"mtbf": "2 h"}
    for path, meant in (("pricee", "price"), ("mtbf", "failures.mtbf"), ("nam", "name")):
        with pytest.raises(SpecError, match=f"unknown path '{path}'; did you mean '{meant}'"):
            applied(DATA, [(path, "2")])
    # Another word for a field is told the field.
    for word in ("precision", "dtype"):
        with pytest.raises(SpecError, match="did you mean 'linear_dtype'"):
            applied(DATA, [(word, "fp8")])
    # A missing value is refused.
    with pytest.raises(SpecError, match=r"--set cluster\.name: no value is given"):
        applied(DATA, [("name", " ")])
    # A field that moved to the cluster.
    with pytest.raises(SpecError, match=r"it is 'cluster\.node\.host_memory_bandwidth' now, of a whole node"):
        load_assumptions("default", [("host_memory_bandwidth", "40 GB/s")])
    # What may be added is added with the section around it.
    assert applied({}, [("fix.pp", "4"), ("fix.tp", "2")]) == {"fix": {"pp": 4, "tp": 2}}
    for section in (5, [1], None):
        with pytest.raises(SpecError, match="has no part 'pp'"):
            applied({"fix": section}, [("fix.pp", "4")])
