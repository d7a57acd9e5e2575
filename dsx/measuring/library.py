"""The array library that runs kernels, and the choice of one."""

from collections.abc import Callable
from importlib.util import find_spec
from os import cpu_count, sysconf
from typing import Any, Protocol

from dsx.errors import InputError, UnknownNameError
from dsx.measuring.kernel_program import Program
from dsx.measuring.timing import Call

JAX, TORCH = "jax", "torch"
LIBRARIES = (JAX, TORCH)


class Library(Protocol):
    """What runs kernels on the first device."""

    name: str
    device: str  # its name for people
    software: str  # the library and its release
    accelerated: bool  # whether the device is an accelerator
    memory_bytes: float  # of the device

    def wait(self, result: Any) -> object:
        """Return when a result is there."""
        ...

    def multiply(self, rows: int, columns: int, contracted: int, batch: int, dtype: str) -> Call:
        """Return the call of `batch` multiplies of (rows x contracted) by (contracted x columns)."""
        ...

    def forward(self, program: Program, dtype: str) -> Call:
        """Return the call of a kernel."""
        ...

    def backward(self, program: Program, dtype: str) -> Call:
        """Return the call of the backward of a kernel: the gradients of its inputs, from what its forward has kept."""
        ...

    def runs(self, kind: str) -> bool:
        """Return whether there is a function for an operator."""
        ...


def find_library(name: str | None) -> Library:
    """Return an array library; by default the one that has an accelerator, else JAX.

    Raises UnknownNameError for another name, InputError if it is not installed.
    """
    if name is None:
        found = _jax()
        return _torch() if not found.accelerated and _torch_has_accelerator() else found
    if name not in LIBRARIES:
        raise UnknownNameError("array library", str(name), LIBRARIES)
    makers: dict[str, Callable[[], Library]] = {JAX: _jax, TORCH: _torch}
    return makers[name]()


def _jax() -> Library:
    from dsx.measuring.jax_library import JaxLibrary

    return JaxLibrary()


def _torch() -> Library:
    if find_spec("torch") is None:
        raise InputError("--with torch: torch is not installed here: install it, or give --with jax")
    from dsx.measuring.torch_library import TorchLibrary

    return TorchLibrary()


def _torch_has_accelerator() -> bool:
    if find_spec("torch") is None:
        return False
    import torch  # pyright: ignore[reportMissingImports]

    return bool(torch.cuda.is_available())


def host_device() -> str:
    """Return the name of the host as a device."""
    return f"a CPU of {cpu_count()} cores"


def host_memory_bytes() -> int:
    """Return the bytes of the host's memory."""
    return sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE")
