"""Progress is told to who watches, or shown: as lines on stderr, on a terminal as a bar, in a notebook as one line."""

import io
import re
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from dsx.progress import _lines, early, progress, working


@pytest.fixture
def clock(monkeypatch):
    """Set what the clock says, time after time."""

    def set_to(*seconds):
        left = iter(seconds)
        monkeypatch.setattr("dsx.progress.time.monotonic", lambda: next(left))

    return set_to


class Handle:
    """A display of a notebook: what it showed, one thing after the other."""

    def __init__(self):
        self.shown = []

    def update(self, content, *, raw):
        assert raw
        self.shown.append(content["text/plain"])


@pytest.fixture
def displays(monkeypatch):
    """The displays of a notebook in which the test seems to run."""
    made = []

    def display(content, *, raw, display_id):
        assert display_id
        made.append(Handle())
        made[-1].update(content, raw=raw)
        return made[-1]

    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return made


def test_who_watches_is_told_and_nothing_is_shown(capsys, displays):
    told = []
    with progress(300, "pricing", lambda *told_now: told.append(told_now)) as advance:
        for _ in range(3):
            advance(100)
    assert told == [(100, 300, "pricing"), (200, 300, "pricing"), (300, 300, "pricing")]
    assert capsys.readouterr() == ("", "") and not displays


def test_in_a_notebook_a_line_changes_and_vanishes(capsys, displays, clock):
    clock(0.0, 1.0, 2.0, 3.0)
    with progress(300_000, "pricing") as advance:
        for _ in range(3):
            advance(100_000)
    (handle,) = displays
    assert handle.shown == ["pricing: 33 %, 100 k/s, 2 s left", "pricing: 67 %, 100 k/s, 1 s left", ""]
    assert capsys.readouterr() == ("", "")


def test_work_that_goes_on_when_everything_is_counted_says_how_long():
    shown = []
    with _lines(100, "pricing", 0.02, shown.append) as advance:
        advance(100)
        time.sleep(0.15)
    assert len(shown) > 1
    assert {*shown} == {"pricing: 0 s so far"}, "what follows is not counted, so no share says how much is done"


def test_what_is_quick_leaves_nothing_in_a_notebook(displays, clock):
    clock(0.0, 0.1, 40.0)
    with progress(200, "pricing") as advance:
        advance(100)
        advance(100)
    assert not displays


def test_a_notebooks_line_vanishes_when_work_fails(displays, clock):
    clock(0.0, 1.0)
    with pytest.raises(KeyboardInterrupt), progress(200, "pricing") as advance:
        advance(100)
        raise KeyboardInterrupt
    assert displays[0].shown[-1] == ""


def test_ipython_on_a_terminal_is_no_notebook(capsys, displays, clock):
    sys.modules["IPython"].get_ipython = lambda: SimpleNamespace()
    clock(0.0, 31.0)
    with progress(200, "pricing") as advance:
        advance(100)
    assert not displays
    assert capsys.readouterr() == ("", "dsx: pricing: 50 %, 3.23/s, 31 s left\n")


def test_without_a_terminal_a_line_is_printed_now_and_then(capsys, clock):
    clock(0.0, 5.0, 31.0, 40.0)
    with progress(400_000, "pricing") as advance:
        for _ in range(3):
            advance(100_000)
    assert capsys.readouterr() == ("", "dsx: pricing: 50 %, 6.45 k/s, 31 s left\n")


@pytest.fixture
def ticks(monkeypatch):
    """Set how often what waits is shown, and return how to wait until something is."""
    monkeypatch.setattr("dsx.progress.LINE_INTERVAL_S", 0.002)
    monkeypatch.setattr("dsx.progress._NOTEBOOK_INTERVAL_S", 0.002)

    def until(there):
        for _ in range(5_000):
            if there():
                return
            time.sleep(0.001)
        raise AssertionError("nothing was shown")

    return until


def test_work_that_counts_nothing_yet_says_how_long_it_takes(capsys, ticks):
    shown = []

    def there():
        shown.append(capsys.readouterr().err)
        return "dsx: enumerating: 0 s so far\n" in "".join(shown)

    with working("enumerating"):
        ticks(there)
    shown.clear()
    with progress(1000, "enumerating") as advance:
        advance(9)  # so few that the rest cannot be estimated from them
        ticks(there)
        advance(991)


def test_in_a_notebook_what_counts_nothing_is_a_line_that_vanishes(displays, ticks):
    with working("enumerating"):
        ticks(lambda: displays)
    assert displays[0].shown[0] == "enumerating: 0 s so far" and displays[0].shown[-1] == ""


def test_who_watches_is_shown_nothing_that_is_not_counted(capsys, displays, ticks):
    with working("enumerating", lambda *told: None):
        time.sleep(0.01)
    assert capsys.readouterr() == ("", "") and not displays


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self):
        return True


def test_a_bar_moves_before_anything_is_counted_and_has_a_length_afterwards(monkeypatch, ticks):
    terminal = Terminal()
    for name in ("stderr", "__stderr__"):
        monkeypatch.setattr(f"sys.{name}", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress(1000, "pricing") as advance:
        ticks(lambda: len({*filter(re.compile("pricing").search, terminal.getvalue().split("\r"))}) > 1)
        assert "%" not in terminal.getvalue() and "0 s" in terminal.getvalue()
        advance(9)
        advance(500)
        ticks(lambda: "51%" in terminal.getvalue())
        advance(491)
        shown = len(terminal.getvalue())
        ticks(lambda: terminal.getvalue().count("pricing", shown) > 2)
        assert "%" not in terminal.getvalue()[shown:], "what follows when all are counted is not done"


def test_a_first_answer_of_long_work_is_shown(capsys, clock):
    clock(0.5, 15.0)
    early("a short search", since=0.0)
    early("a long one", since=0.0)
    early("of which somebody is told", since=0.0, watch=lambda *_: None)
    assert capsys.readouterr() == ("", "dsx: a long one\n")
