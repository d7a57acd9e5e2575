"""The wire format of traces: messages of MLCommons Chakra, the attributes that dsx writes and reads, and framing.

The package is ChakraProtoMsg (proto3). Its table is here, so no compiler and no generated code is needed. The messages
are in a pool of their own: another Chakra package in the same process may have the same names. In a file each message
stands behind its length in bytes as a varint; files are read in blocks, so their size does not matter.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from dsx.errors import TraceError

Message = Any  # a message of protobuf, or its class

_BLOCK = 1 << 22  # bytes read at once
_LONGEST = 1 << 26  # bytes of a message: a node with a million dependencies has a tenth of it
_LONGEST_VARINT = 10  # bytes of 64 bits, seven a byte


@lru_cache(maxsize=4096)
def varint(number: int) -> bytes:
    """Return a whole number of at least 0 as a varint: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def framed(message: bytes) -> bytes:
    """Return a serialised message with its length before it, as files have it."""
    return varint(len(message)) + message


def messages(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of a file, each with the byte of the file at which it begins; `name` is the file in errors.

    Raises TraceError if the file ends inside a message, or if a length is none of a message.
    """
    block, start, at = b"", 0, 0  # `start` is the byte of the file at which the block begins
    while True:
        begin = end = 0
        while at + 1 < len(block):
            size, begin = block[at], at + 1
            if size >= 0x80:
                high = block[begin]
                # Nearly all lengths have two bytes.
                size, begin = (size & 0x7F | high << 7, at + 2) if high < 0x80 else _length(block, at, start, name)
            end = begin + size
            if end > len(block) or not begin:
                break
            yield start + begin, block[begin:end]
            at = end
        more = file.read(max(_BLOCK, end - len(block)))
        if not more:
            break
        block, start, at = block[at:] + more, start + at, 0
    if block[at:] == b"\0":  # an empty message
        yield start + at + 1, b""
    elif at < len(block):
        cause = "truncated" if start + at else "truncated, or no Chakra trace"
        raise TraceError(f"{name}: ends inside a message, which begins at byte {start + at:,}; it is {cause}")


def _length(block: bytes, at: int, start: int, name: str) -> tuple[int, int]:
    """Return the length of the message at `at`, and where the message begins; zeros if the block ends before that."""
    size = shift = 0
    for place in range(at, min(at + _LONGEST_VARINT, len(block))):
        byte = block[place]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if size > _LONGEST:
                raise TraceError(
                    f"{name}: byte {start + at:,} states a message of {size:,} bytes, too many for a node; this is no "
                    "Chakra trace, or it is damaged"
                )
            return size, place + 1
        shift += 7
    if len(block) - at >= _LONGEST_VARINT:
        raise TraceError(f"{name}: byte {start + at:,} has no length of a message; this is no Chakra trace")
    return 0, 0


PACKAGE = "ChakraProtoMsg"

# Codes of `Node.type`, and of the attribute `comm_type`: their places here.
_TYPES = "INVALID METADATA MEM_LOAD MEM_STORE COMP COMM_SEND COMM_RECV COMM_COLL"
NODE_TYPES = {f"{name}_NODE": code for code, name in enumerate(_TYPES.split())}
MEM_LOAD, MEM_STORE, COMP, COMM_SEND, COMM_RECV, COMM_COLL = range(2, 8)
_COLLECTIVES = "ALL_REDUCE REDUCE ALL_GATHER GATHER SCATTER BROADCAST ALL_TO_ALL REDUCE_SCATTER REDUCE_SCATTER_BLOCK"
COLLECTIVE_NAMES = dict(enumerate([*_COLLECTIVES.split(), "BARRIER"]))
COLLECTIVES = {name: code for code, name in COLLECTIVE_NAMES.items()}

# Streams of a rank, each of which runs its nodes one after the other.
COMPUTE, COMMUNICATION, MEMORY = STREAMS = ("compute", "communication", "memory")
STREAM_OF = {COMP: COMPUTE, **dict.fromkeys((COMM_SEND, COMM_RECV, COMM_COLL), COMMUNICATION)}
STREAM_OF |= dict.fromkeys((MEM_LOAD, MEM_STORE), MEMORY)

# Attributes of an all-to-all of several copies of each token: how the token chooses its experts.
ROUTING = ("copies", "expert_groups", "token_groups")
# `op_type` of the traffic that adds the gradient of a weight to the sum over microbatches.
ACCUMULATION = "accumulation"

# Types of attributes, each followed by its list: `double_val` has number 3, `double_list` 4, and so on.
_INTEGERS = "int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool".split()
_VALUES = ("double", "float", *_INTEGERS, "string", "bytes")
VALUE_FIELDS = {kind: 3 + 2 * place for place, kind in enumerate(_VALUES)}  # numbers of `double_val`, ...
INTEGER_VALUES, INTEGER_LISTS = (tuple(f"{kind}_{form}" for kind in _INTEGERS) for form in ("val", "list"))


class Attribute(NamedTuple):
    """An attribute of a node: the column of `dsx.traces.columns.RankTrace` that has it, and the type dsx writes."""

    column: str
    kind: str


_COLUMN_KINDS = {
    "int32": ("comm_src", "comm_dst", "comm_tag"),
    "int64": ("num_ops", "matrix_flops", "vector_flops", "launches", "comm_type", "comm_size", "partner", "panels"),
    "uint64": ("tensor_size", "unfused_bytes"),
    "double": ("overlap", "duration_ns"),
    "int64_list": ("multiplies",),
}
ATTRIBUTES = {name: Attribute(name, kind) for kind, names in _COLUMN_KINDS.items() for name in names}
ATTRIBUTES |= {name: Attribute(name, "int64") for name in ROUTING}
ATTRIBUTES |= {
    "is_cpu_op": Attribute("on_host", "bool"),
    "op_type": Attribute("op_types", "string"),
    "kernel": Attribute("kernels", "string"),
    "axis": Attribute("axes", "string"),
    "pg_name": Attribute("groups", "string"),
    "comm_group": Attribute("groups", "string"),  # of older versions, an integer
}

# Fields of a message: name, number, type ("*" marks a repeated one).
_NODE = (
    ("id", 1, "uint64"),
    ("name", 2, "string"),
    ("type", 3, "NodeType"),
    ("ctrl_deps", 4, "uint64*"),
    ("data_deps", 5, "uint64*"),
    ("start_time_micros", 6, "uint64"),
    ("duration_micros", 7, "uint64"),
    ("inputs", 8, "IOInfo"),
    ("outputs", 9, "IOInfo"),
)
_FIELDS = {
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "AttributeProto*")),
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "Node": (*_NODE, ("attr", 10, "AttributeProto*")),
    # The same on the wire, for readers: attributes stay bytes, so equal ones are parsed once, and lists of texts too.
    "RawNode": (*_NODE, ("attr", 10, "bytes*")),
    "RawAttribute": (("name", 1, "string"), ("string_list", 30, "bytes")),
}
_FIELDS |= {f"{kind.capitalize()}List": (("values", 1, f"{kind}*"),) for kind in _VALUES}
# Of an attribute one value is set.
_ONE_OF = [(f"{kind}_val", number, kind) for kind, number in VALUE_FIELDS.items()]
_ONE_OF += [(f"{kind}_list", number + 1, f"{kind.capitalize()}List") for kind, number in VALUE_FIELDS.items()]
_FIELDS["AttributeProto"] = (("name", 1, "string"), ("doc_string", 2, "string"), *_ONE_OF)
_ENUMS = {"NodeType": NODE_TYPES, "CollectiveCommType": COLLECTIVES}


def _message_classes(*names: str) -> list[Message]:
    """Return the classes of messages of the package by their names."""
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=PACKAGE, syntax="proto3")
    for name, codes in _ENUMS.items():
        file.enum_type.add(name=name, value=[{"name": member, "number": code} for member, code in codes.items()])
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for field_name, number, kind in fields:
            scalar = kind.removesuffix("*")
            field = message.field.add(name=field_name, number=number)
            field.label = field.LABEL_OPTIONAL if kind == scalar else field.LABEL_REPEATED
            if scalar in _VALUES:
                field.type = getattr(field, f"TYPE_{scalar.upper()}")
            else:
                field.type = field.TYPE_ENUM if scalar in _ENUMS else field.TYPE_MESSAGE
                field.type_name = f".{PACKAGE}.{scalar}"
            if (field_name, number, kind) in _ONE_OF:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names]


GlobalMetadata, Node, RawNode, AttributeProto, RawAttribute, StringList = _message_classes(
    "GlobalMetadata", "Node", "RawNode", "AttributeProto", "RawAttribute", "StringList"
)
