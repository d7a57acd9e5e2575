"""A large sweep says what it is about to price and write; a row takes about the bytes that it says."""

import shutil
from collections import namedtuple

import pytest
from verbs.small import SWEEP

import dsx
from dsx.results.set_columns import ROW_BYTES
from dsx.units import format_quantity


@pytest.fixture
def large(monkeypatch):
    """Make the small sweep a large one."""
    monkeypatch.setattr("dsx.verbs.sweep._LARGE", 10)


def said(caplog, folder, **changes):
    caplog.set_level("INFO", "dsx")
    found = dsx.sweep(SWEEP | changes, folder)
    return found, [message for message in caplog.messages if "to price" in message]


@pytest.mark.parametrize(("precision", "keep"), [("float32", "all"), ("float64", "feasible")])
def test_rows_and_bytes_are_said_before_the_sweep_starts(large, caplog, tmp_path, precision, keep):
    found, (message,) = said(caplog, tmp_path / "set", keep=keep, precision=precision)
    begins = f"{found.candidates:,} candidates to price; {'at most ' if keep == 'feasible' else ''}{found.candidates:,}"
    size = format_quantity(found.candidates * ROW_BYTES[precision], "B")
    assert message == f"{begins} rows, about {size}, go into {tmp_path / 'set'}"
    assert caplog.messages.index(message) < len(caplog.messages) - 1


def test_of_the_best_few_the_rows_are_bounded_and_of_a_front_they_are_unknown(large, caplog, tmp_path):
    found, (message,) = said(caplog, tmp_path / "top", keep={"top": 2})
    assert f"; at most {found.rows} rows, about " in message
    caplog.clear()
    _, (message,) = said(caplog, tmp_path / "front", keep={"pareto": ["step_time_s", "peak_bytes"]})
    assert message.endswith(f"; the rows of each front go into {tmp_path / 'front'}")


def test_a_small_sweep_and_parts_that_are_there_say_nothing(caplog, tmp_path, monkeypatch):
    assert said(caplog, tmp_path / "set")[1] == []
    monkeypatch.setattr("dsx.verbs.sweep._LARGE", 10)
    assert said(caplog, tmp_path / "set")[1] == []


def test_a_full_disk_is_warned_of(large, caplog, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: namedtuple("Usage", "free")(1000))
    said(caplog, tmp_path / "set", keep="all")
    assert any(f"{tmp_path / 'set'} has 1,000 B free; keep: {{top: 10}}" in message for message in caplog.messages)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ROW_BYTES)
def test_a_row_takes_about_the_bytes_that_are_said(precision, tmp_path):
    spec = {"model": "gpt3-1t", "cluster": "b200-nvs8", "num_gpus": [1024, 4096, 16384], "global_batch_size": 4096}
    spec |= {
        "strategy": ["1d", "2d", "summa"],
        "assumptions": "paper-2410.00273",
        "keep": "all",
        "precision": precision,
    }
    found = dsx.sweep(spec, tmp_path / "set")
    size = sum(file.stat().st_size for file in (tmp_path / "set").rglob("*") if file.is_file())
    assert 0.75 < size / found.rows / ROW_BYTES[precision] < 1.1
