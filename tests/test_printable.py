"""Names are shown without what a terminal obeys."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsx.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("llama-3-70b", "llama-3-70b"),
        ("Größe 字 \N{NO-BREAK SPACE}", "Größe 字 \N{NO-BREAK SPACE}"),
        ("a\x1b[31mb\x07", r"a\x1b[31mb\x07"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}gnp", r"\u202egnp"),
        ("\udcff\N{LINE SEPARATOR}\x9b", r"\udcff\u2028\x9b"),
    ],
)
def test_what_a_terminal_obeys_is_escaped(text, shown):
    assert printable(text) == shown


def test_lines_stay_lines_where_they_are_kept():
    assert printable("a\nb\x1b\r\n", keep="\n") == "a\nb\\x1b\\r\n"


@given(st.text(st.characters(codec=None)))
def test_nothing_that_is_obeyed_is_left(text):
    shown = printable(text)
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert printable(shown) == shown
    shown.encode()
