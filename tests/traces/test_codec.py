"""The wire format of Chakra: messages are bytes written by hand, and files of them are split where they were joined."""

import io

import pytest

from dsx.errors import InputError, TraceError
from dsx.traces import codec as m
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
    monkeypatch.setattr(m, "_BLOCK", block)
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
        begin = max(at for at in ends if at <= end)
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


def test_a_node_by_hand():
    node = m.Node(id=3, name="a", type=m.COMP, ctrl_deps=[1], data_deps=[2, 300], duration_micros=5)
    node.attr.add(name="x").int64_val = -1
    attribute = b"\x0a\x01x" + b"\x48" + b"\xff" * 9 + b"\x01"
    by_hand = b"\x08\x03\x12\x01a\x18\x04\x22\x01\x01\x2a\x03\x02\xac\x02\x38\x05\x52" + bytes([len(attribute)])
    assert node.SerializeToString() == by_hand + attribute
    assert m.Node.FromString(by_hand + attribute) == node


@pytest.mark.parametrize(
    ("field", "value", "tag"),
    [
        ("double_val", 1.0, b"\x19"),
        ("float_val", 1.0, b"\x2d"),
        ("int32_val", 1, b"\x38"),
        ("int64_val", 1, b"\x48"),
        ("uint32_val", 1, b"\x58"),
        ("uint64_val", 1, b"\x68"),
        ("sint32_val", 1, b"\x78"),
        ("sint64_val", 1, b"\x88\x01"),
        ("fixed32_val", 1, b"\x9d\x01"),
        ("fixed64_val", 1, b"\xa9\x01"),
        ("sfixed32_val", 1, b"\xbd\x01"),
        ("sfixed64_val", 1, b"\xc9\x01"),
        ("bool_val", True, b"\xd8\x01"),
        ("string_val", "a", b"\xea\x01"),
        ("bytes_val", b"a", b"\xfa\x01"),
    ],
)
def test_types_of_attributes_have_their_numbers(field, value, tag):
    written = m.AttributeProto(**{field: value}).SerializeToString()
    assert written.startswith(tag)
    attribute = m.AttributeProto.FromString(written)
    assert attribute.WhichOneof("value") == field and getattr(attribute, field) == value
    # Its list has the next number, and is a message.
    values = m.AttributeProto()
    getattr(values, field.replace("_val", "_list")).values.append(value)
    number = m.AttributeProto.DESCRIPTOR.fields_by_name[field].number
    key = (number + 1) << 3 | 2
    start = bytes([key]) if key < 0x80 else bytes([key & 0x7F | 0x80, key >> 7])
    assert values.SerializeToString().startswith(start)


def test_a_value_of_an_attribute_replaces_the_one_before():
    attribute = m.AttributeProto(int64_val=0)
    assert attribute.WhichOneof("value") == "int64_val"  # zero is a value
    attribute.string_val = ""
    assert attribute.WhichOneof("value") == "string_val"


def test_codes():
    assert (m.MEM_LOAD, m.MEM_STORE, m.COMP, m.COMM_SEND, m.COMM_RECV, m.COMM_COLL) == (2, 3, 4, 5, 6, 7)
    assert m.NODE_TYPES["COMM_COLL_NODE"] == m.COMM_COLL and m.NODE_TYPES["COMP_NODE"] == m.COMP
    assert (m.COLLECTIVES["ALL_GATHER"], m.COLLECTIVES["REDUCE_SCATTER"]) == (2, 7)


def test_a_raw_node_is_a_node_whose_attributes_are_bytes():
    node = m.Node(id=1, name="a", type=m.COMP)
    node.attr.add(name="num_ops").int64_val = 7
    raw = m.RawNode.FromString(node.SerializeToString())
    assert raw.SerializeToString() == node.SerializeToString()
    assert m.AttributeProto.FromString(raw.attr[0]).int64_val == 7


def test_the_pool_is_private():
    from google.protobuf import descriptor_pool

    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName(f"{m.PACKAGE}.Node")
