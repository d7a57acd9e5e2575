"""Messages in a file: each preceded by its length in bytes as a varint.

A file is read in blocks, so its size does not matter.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO

from dsx.errors import TraceError

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
        whole = "truncated" if start + at else "truncated, or no Chakra trace"
        raise TraceError(f"{name}: ends inside a message, which begins at byte {start + at:,}; it is {whole}")


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
