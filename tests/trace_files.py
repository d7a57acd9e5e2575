"""Small traces made by hand, through the messages of protobuf."""

import json
from pathlib import Path
from typing import Any

from dsx.traces import codec as m
from dsx.traces.codec import framed

ALL_REDUCE, ALL_GATHER, BARRIER = (m.COLLECTIVES[name] for name in ("ALL_REDUCE", "ALL_GATHER", "BARRIER"))

_TYPES = {"tensor_size": "uint64_val", "unfused_bytes": "uint64_val"} | dict.fromkeys(
    ("comm_src", "comm_dst", "comm_tag"), "int32_val"
)


def set_attribute(message: Any, name: str, value: object) -> None:
    """Add an attribute of the type that dsx writes."""
    attribute = message.attr.add(name=name)
    if isinstance(value, bool):
        attribute.bool_val = value
    elif isinstance(value, int):
        setattr(attribute, _TYPES.get(name, "int64_val"), value)
    elif isinstance(value, float):
        attribute.double_val = value
    elif isinstance(value, str):
        attribute.string_val = value
    elif all(isinstance(part, int) for part in value):
        attribute.int64_list.values.extend(value)
    else:
        attribute.string_list.values.extend(value)


def node(number: int, name: str, kind: int, ctrl=(), data=(), reads=None, writes=None, micros=0, **attributes) -> Any:
    """A node; `reads` and `writes` are {tensor: bytes}."""
    made = m.Node(id=number, name=name, type=kind, ctrl_deps=ctrl, data_deps=data, duration_micros=micros)
    set_attribute(made, "is_cpu_op", False)
    for attribute, tensors in (("inputs", reads), ("outputs", writes)):
        if tensors is not None:
            texts = made.attr.add(name=attribute).string_list.values
            for tensor, size in tensors.items():
                texts.extend([tensor, str(size)])
    for attribute, value in attributes.items():
        set_attribute(made, attribute, value)
    return made


def comp(number: int, name: str = "", **more) -> Any:
    return node(number, name or f"comp{number}", m.COMP, **{"num_ops": 100, "tensor_size": 10} | more)


def send(number: int, dst: int, tag: int = 1, size: int = 8, **more) -> Any:
    return node(number, f"send{number}", m.COMM_SEND, comm_dst=dst, comm_tag=tag, comm_size=size, **more)


def receive(number: int, src: int, tag: int = 1, size: int = 8, **more) -> Any:
    return node(number, f"receive{number}", m.COMM_RECV, comm_src=src, comm_tag=tag, comm_size=size, **more)


def coll(number: int, group: str = "1", kind: int = ALL_REDUCE, size: int = 8, **more) -> Any:
    return node(number, f"coll{number}", m.COMM_COLL, comm_type=kind, comm_size=size, pg_name=group, **more)


def groups_of_a_process(number: int, values: str) -> Any:
    """The node in which PyTorch's profiler states process groups."""
    made = m.Node(id=number, name="## process_group:init ##", type=m.NODE_TYPES["METADATA_NODE"])
    made.inputs.values = values
    return made


def content(nodes, rank: int = 0, version: str = "1.0.0", **metadata_of: Any) -> bytes:
    """The bytes of a trace file; `metadata_of` are further attributes of the metadata."""
    metadata = m.GlobalMetadata(version=version)
    for name, value in {"rank": rank, **metadata_of}.items():
        set_attribute(metadata, name, value)
    return b"".join(framed(message.SerializeToString()) for message in (metadata, *nodes))


def write_folder(
    path: Path, ranks: dict[int, list], groups: dict[str, list[int]] | None = None, **metadata_of: Any
) -> Path:
    """Write a folder of traces; `metadata_of` are further attributes of their metadata."""
    for rank, nodes in ranks.items():
        (path / f"trace.{rank}.et").write_bytes(content(nodes, rank, **metadata_of))
    if groups is not None:
        (path / "comm_groups.json").write_text(json.dumps(groups))
    return path
