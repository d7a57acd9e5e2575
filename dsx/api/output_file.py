"""The output file of ``-o`` or another option.

It is checked before the computation, which can take minutes, and written after it.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from dsx.errors import StoreError
from dsx.files import write_whole
from dsx.spec.locate import shown


def check_output_file(output: Path, read: Iterable[Path], option: str = "-o") -> None:
    """Raise StoreError if the `output` of an option cannot be written, or if it is one of the input files `read`."""
    folder = output.absolute().parent
    if not folder.is_dir():
        raise StoreError(
            f"{option} {shown(output)}: {shown(output.parent)} is no folder; make it, or choose another file"
        )
    if output.is_dir():
        raise StoreError(f"{option} {shown(output)}: is a folder; name a file in it")
    if not os.access(output if output.exists() else folder, os.W_OK):
        raise StoreError(f"{option} {shown(output)}: may not be written; choose another file")
    for file in read:
        if output.exists() and file.exists() and output.samefile(file):
            raise StoreError(f"{option} {shown(output)}: is read by this command; choose another file")


def write_output_file(output: Path, text: str) -> None:
    """Write `text` to `output` atomically; raise StoreError if that fails.

    Devices and pipes are written through, as a shell does, and so is /dev/stdout wherever it leads. Another link is
    replaced, since somebody may have planted it in a folder that several people write to.
    """
    content = text.encode("utf-8")
    try:
        is_stream = output.absolute().parent.is_relative_to("/dev") or output.absolute().parent.is_relative_to("/proc")
        if is_stream or (output.exists() and not output.is_file()):
            output.write_bytes(content)
        else:
            write_whole(output, content)
    except OSError as error:
        raise StoreError(f"cannot write {shown(output)}: {error.strerror or error}") from error
