"""Reading a run table: types, blanks, and errors with file, line, column and value."""

from dataclasses import fields

import pandas as pd
import pytest
from runs.tables import ROW, write

from dsx.config.assumption_set import load_assumptions
from dsx.errors import RunTableError, SpecError
from dsx.plans.choices import CODES
from dsx.runs.table import COLUMNS, FUSABLE, IN_PLANS, MeasuredRun, NodeNetwork, read_runs


def test_types_operators_and_columns_of_tables(tmp_path):
    (run,) = read_runs(write(tmp_path / "runs.csv", {"year": "2024", "measured_iter_s": "2.5e0", "further": "x"}))
    assert (run.line, run.id, run.year, run.tp, run.measured_iter_s) == (2, "own-1", 2024, 2, 2.5)
    assert (run.sp, run.oom, run.flash) == (True, False, True)
    assert (run.experts, run.framework, run.schedule, run.notes) == (None, None, None, None)
    # Operators and columns of tables.
    assert load_assumptions("default").unfused_operators.keys() == FUSABLE
    # Every field is a column.
    own = {field.name for field in fields(MeasuredRun)} - {"line", "further"}
    assert {*COLUMNS} == own | {"zero_replicas", "stored_layers", "offload"}


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("kernels", "norm", {"norm"}),
        ("kernels", "softmax + norm", {"norm", "softmax"}),
        ("kernels", "Norm,softmax", {"norm", "softmax"}),
        ("kernels", "none", set()),
        ("node_network", "400 Gb/s", NodeNetwork(50e9, None)),
        ("node_network", "4x100 Gb/s", NodeNetwork(50e9, 12.5e9)),
        ("node_network", "8 x 25 GB/s", NodeNetwork(200e9, 25e9)),
    ],
)
def test_cells_that_are_words(column, text, value):
    assert COLUMNS[column](text) == value


def test_columns_of_a_table(tmp_path):
    (run,) = read_runs(write(tmp_path / "runs.csv", {"offload": "optimizer", "zero_replicas": "2"}))
    assert dict(run.further) == {"offload": CODES["offload"].index("optimizer"), "zero_replicas": 2}
    with pytest.raises(RunTableError, match="offload: offload = 'optimiser' is not known; did you mean 'optimizer'"):
        read_runs(write(tmp_path / "wrong.csv", {"offload": "optimiser"}))
    # Columns of a plan may have the names that they have in result sets.
    table = pd.read_csv(write(tmp_path / "runs.csv"))
    table.rename(columns={name: column for column, name in IN_PLANS.items()}).to_csv(tmp_path / "as.csv", index=False)
    assert ",num_gpus," in (tmp_path / "as.csv").read_text(encoding="utf-8")
    assert read_runs(tmp_path / "as.csv") == read_runs(tmp_path / "runs.csv")
    table.assign(num_gpus=16).to_csv(tmp_path / "both.csv", index=False)
    with pytest.raises(RunTableError, match=r"both.csv:1: has 'n_gpus' and 'num_gpus', which are the same column"):
        read_runs(tmp_path / "both.csv")
    # A column that is left out is blank.
    (run,) = read_runs(write(tmp_path / "runs.csv", without=("cp", "ep", "vpp", "zero_stage", "flops_kind")))
    assert (run.cp, run.ep, run.vpp, run.zero_stage) == (None, None, None, None)


def test_rows_as_files_have_them(tmp_path):
    path = write(tmp_path / "runs.csv", {"notes": "two\nlines"}, {"notes": "one"})
    assert [run.line for run in read_runs(path)] == [2, 4]
    # Whole numbers and flags with blanks among them become fractions there.
    path = write(
        tmp_path / "runs.csv", {"zero_stage": "3", "sp": "0", "vpp": "2"}, {"zero_stage": "", "sp": "", "vpp": ""}
    )
    pd.read_csv(path).to_csv(tmp_path / "again.csv", index=False)
    assert "3.0" in (tmp_path / "again.csv").read_text(encoding="utf-8")
    assert read_runs(tmp_path / "again.csv") == read_runs(path)
    # Blank lines and a byte order mark are passed over.
    path = write(tmp_path / "runs.csv")
    path.write_text("\ufeff" + path.read_text(encoding="utf-8") + ",,\n\n", encoding="utf-8")
    assert len(read_runs(path)) == 1


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("tp", "0", "'0' is not a whole number from 1 to"),
        ("tp", "-2", "'-2' is not a whole number from 1"),
        ("dp", "2.5", "'2.5' is not a whole number"),
        ("pp", "two", "'two' is not a whole number, as in 512"),
        ("experts", "-1", "'-1' is not a whole number from 0"),
        ("sp", "2", "'2' is neither 0 nor 1"),
        ("zero_stage", "4", "'4' is not a ZeRO stage: 0, 1, 2 or 3"),
        ("measured_iter_s", "0", "'0' is not above 0"),
        ("measured_iter_s", "nan", "'nan' is not a finite number"),
        ("measured_mfu", "41.2", "'41.2' is not a fraction of at most 1; 41.2 % is 0.412"),
        (
            *("measured_iter_s", "26.5 s"),
            "'26.5 s' has a unit; this column holds plain numbers, in seconds: write 26.5",
        ),
        ("measured_iter_s", "26500ms", "plain numbers, in seconds: write 26.5"),
        ("measured_iter_s", "26.5 sec", "'26.5 sec' has a unit; this column holds plain numbers, in seconds"),
        ("measured_tflops_per_gpu", "0.45 PFLOP/s", "plain numbers, in TFLOP/s: write 450"),
        ("measured_tokens_per_s_per_gpu", "4096 tokens/s", "plain numbers, in tokens per second: write 4096"),
        ("measured_mfu", "41.2 %", "plain numbers, in fractions of 1: write 0.412"),
        (
            "measured_mem_gb",
            "61.5 GiB",
            "plain numbers, in the unit that mem_unit names: write 61.5, and GiB in the column mem_unit",
        ),
        ("seq", "8k", "'8k' has a unit; this column holds plain numbers: write 8000 or 8192"),
        ("vocab", "128K", "write 128000 or 131072"),
        ("n_gpus", "64 GPUs", "'64 GPUs' has a unit; this column holds plain numbers: write 64"),
        ("id", "", "is blank; every row needs one"),
        ("source_id", " ", "is blank; every row needs one"),
        ("n_gpus", "9" * 12, "is not a whole number from 1 to 2147483647"),
        (
            *("kernels", "norms"),
            "'norms' is not an operator of this column; did you mean 'norm'? (norm, softmax, both as 'norm + softmax'",
        ),
        ("kernels", "flash_attention + norm", "'flash_attention' is not an operator"),
        ("kernels", "norm +", "'' is not an operator"),
        ("kernels", "none, norm", "'none, norm' lists none with other operators"),
        ("cross_entropy", "fuse", "'fuse' is neither fused nor unfused; did you mean 'fused'?"),
        ("gradient_bytes", "8", "'8' is not the bytes of a gradient: 2 (BF16, FP16) or 4 (FP32)"),
        *(
            (
                *("node_network", text),
                f"{text!r} is not the network of a node: write for example '400 Gb/s', or '4x100 Gb/s' for its NICs",
            )
            for text in (
                *("400", "0 Gb/s", "-1 Gb/s", "four NICs", "4x", "0x100 Gb/s", "400 Gb", "4x100Gb", "1e400 Gb/s"),
                *("9999x1e307 GB/s", "99999x1 GB/s", "8 * 400 Gb/s", "400 Gb/s each"),
            )
        ),
    ],
)
def test_a_cell_that_its_column_does_not_accept(tmp_path, column, value, says):
    path = write(tmp_path / "runs.csv", {}, {column: value})
    with pytest.raises(RunTableError) as caught:
        read_runs(path)
    assert str(caught.value).startswith(f"{path}:3: {column}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("without", "more", "says"),
    [
        (("hidden",), {}, "1: lacks the column 'hidden'"),
        (("hidden",), {"hiden": "1"}, "1: lacks the column 'hidden'; did you mean 'hiden'?"),
        (("tp", "dp"), {}, "lacks the columns 'tp', 'dp'"),
        (("vpp",), {"vp": "2"}, "column 'vp' is not known; did you mean 'vpp'?"),
        (("recompute",), {"recompte": "full"}, "column 'recompte' is not known; did you mean 'recompute'?"),
        (("kv_heads",), {"KV_heads": "8"}, "column 'KV_heads' is not known; did you mean 'kv_heads'?"),
        ((), {"node_netwrok": "10 Gb/s"}, "column 'node_netwrok' is not known; did you mean 'node_network'?"),
        (tuple(name for name in ROW if name.startswith("measured") or name == "oom"), {}, "has no measurement"),
    ],
)
def test_a_header_that_lacks_something(tmp_path, without, more, says):
    path = write(tmp_path / "runs.csv", more, without=without)
    with pytest.raises(RunTableError) as caught:
        read_runs(path)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "1: is empty: a run table begins with the names of its columns"),
        ("id,id\n", "1: has the column 'id' twice"),
        (",".join(ROW) + "\n", "has no rows below its header"),
        (",".join(ROW) + "\na,b\n", "2: has 2 cells, but the header has "),
        (",".join(ROW) + '\n"a\n', "is not a CSV file in UTF-8: "),
    ],
)
def test_a_file_that_is_no_table(tmp_path, text, says):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunTableError) as caught:
        read_runs(path)
    assert says in str(caught.value)


def test_files_that_are_no_tables(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunTableError, match="is not a CSV file in UTF-8"):
        read_runs(path)
    # Two rows of one id.
    path = write(tmp_path / "runs.csv", {"id": "a"}, {"id": "a"})
    with pytest.raises(RunTableError, match=r"3: id: 'a' is already in line 2"):
        read_runs(path)
    # No such file.
    write(tmp_path / "runs.csv")
    with pytest.raises(SpecError, match=r"is not a file; did you mean 'runs.csv'\?"):
        read_runs(tmp_path / "run.csv")
