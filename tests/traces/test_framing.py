"""A file of messages, each with its length before it, is split where it was joined, or refused with the byte."""

import io

import pytest

from dsx.errors import InputError, TraceError
from dsx.traces import codec as framing
from dsx.traces.codec import framed, messages, varint

LENGTHS = (0, 1, 127, 128, 300, 16_383, 16_384, 70_000)


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (2**63, b"\x80" * 9 + b"\x01")],
)
def test_varints(number, encoded):
    assert varint(number) == encoded


@pytest.mark.parametrize("block", [1, 2, 7, 1000, 1 << 22])
def test_messages_come_back_from_blocks_of_any_size(block, monkeypatch):
    monkeypatch.setattr(framing, "_BLOCK", block)
    wanted = [bytes([at]) * length for at, length in enumerate((*LENGTHS, 0))]
    content = b"".join(map(framed, wanted))
    found = list(messages(io.BytesIO(content), "t.0.et"))
    assert [message for _, message in found] == wanted
    assert all(content[at : at + len(message)] == message for at, message in found)


def test_an_empty_file_has_no_messages():
    assert list(messages(io.BytesIO(), "t.0.et")) == []


def test_every_truncation_is_named():
    content = framed(b"a" * 5) + framed(b"b" * 300) + framed(b"")
    ends = {0, 6, 308, 309}
    for end in range(len(content) + 1):
        file = io.BytesIO(content[:end])
        if end in ends:
            list(messages(file, "t.0.et"))
            continue
        begin = max(whole for whole in ends if whole <= end)
        with pytest.raises(
            TraceError, match=f"t.0.et: ends inside a message, which begins at byte {begin}; it is trun"
        ):
            list(messages(file, "t.0.et"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (framed(b"ab") + varint(2**40), "t.0.et: byte 3 states a message of 1,099,511,627,776 bytes"),
        (framed(b"ab") + b"\xff" * 20, "t.0.et: byte 3 has no length of a message"),
    ],
)
def test_lengths_of_no_message(content, message):
    with pytest.raises(TraceError, match=message) as raised:
        list(messages(io.BytesIO(content), "t.0.et"))
    assert isinstance(raised.value, InputError) and raised.value.exit_code == 2
