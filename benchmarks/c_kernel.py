"""The flat arithmetic in C (flat_kernel.c): built with the system's compiler, called through ctypes.

The kernel takes layer costs and blocks, and returns the smallest step time of each group of choices. So it is a
baseline for the hot loop alone, without enumeration and layer pricing.
"""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsx.cost.recomputation import NONE
from dsx.plans.choices import CHOICE_COLUMNS
from dsx.pricing.keys import KeyCosts
from dsx.pricing.problem import Problem

FLAGS = ("-O3", "-march=native", "-ffast-math", "-fPIC")

_SOURCE = Path(__file__).parent / "flat_kernel.c"
_PRICED = ("pp", "dp", "num_microbatches", "pp_nvs", "dp_nvs")
_PER_KEY = ("forward_s", "backward_s", "replicated_gradient_s", "stash_bytes", "boundary_bytes")
_PER_GROUP = ("weight_bytes", "group_size", "group_share")

# (positions of keys in the table [U], choices [len(CHOICE_COLUMNS), G], group of each choice [G])
PlainBlock = tuple[np.ndarray, np.ndarray, np.ndarray]


class _Terms(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_float)
        for name in (
            "num_layers", "hbm_capacity", "hbm_seconds_per_byte",
            "nvs_latency", "nvs_seconds_per_byte", "net_latency", "net_seconds_per_byte",
            "gradient_per_weight_byte", "optimizer_per_weight_byte", "traffic_per_weight_byte", "overhead_bytes",
        )
    ]  # fmt: skip


class _Table(ctypes.Structure):
    _fields_ = [
        ("num_keys", ctypes.c_int64),
        ("num_groups", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in (*_PER_KEY, *_PER_GROUP)),
    ]


class _Blocks(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("key_start", "choice_start", "keys", "group", *_PRICED)),
    ]


class _Winners(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("time", "key", "choice")),
        ("feasible", ctypes.c_int64),
    ]


@dataclass(frozen=True, slots=True)
class Winners:
    """The best candidate of each of R groups of choices, and the number of candidates that fit."""

    time: np.ndarray  # [R] step time in seconds; infinite if nothing fits
    key: np.ndarray  # [R] position in the key table
    choices: np.ndarray  # [len(CHOICE_COLUMNS), R]
    feasible: int


@dataclass(frozen=True, slots=True)
class Share:
    """The blocks of one thread as the arrays that the kernel reads."""

    terms: _Terms
    table: dict[str, np.ndarray]
    blocks: dict[str, np.ndarray]
    choices: np.ndarray  # [len(CHOICE_COLUMNS), all choices]
    num_groups: int


def shares(
    problem: Problem, table: KeyCosts, blocks: Iterable[PlainBlock], num_groups: int, threads: int
) -> list[Share]:
    """Divide blocks among threads, about as many candidates each; group codes are below `num_groups`.

    `table` has [H, U] costs of one layer kind; the first hardware point is priced.
    """
    dealt: list[list[PlainBlock]] = [[] for _ in range(threads)]
    for index, block in enumerate(sorted(blocks, key=lambda block: -len(block[0]) * block[1].shape[1])):
        # Back and forth: the thread with the larger block of one round gets the smaller one of the next.
        turn = index % (2 * threads)
        dealt[min(turn, 2 * threads - 1 - turn)].append(block)
    floats = {name: _floats(getattr(table[0], name)[0]) for name in (*_PER_KEY, *_PER_GROUP)}
    floats["stash_bytes"] = floats["stash_bytes"][NONE]
    return [_share(_terms(problem), floats, part, num_groups) for part in dealt if part]


def _share(terms: _Terms, table: dict[str, np.ndarray], blocks: Sequence[PlainBlock], num_groups: int) -> Share:
    choices = _floats(np.concatenate([matrix for _, matrix, _ in blocks], axis=1))
    arrays = {
        "key_start": np.cumsum([0, *(len(keys) for keys, _, _ in blocks)], dtype=np.int64),
        "choice_start": np.cumsum([0, *(matrix.shape[1] for _, matrix, _ in blocks)], dtype=np.int64),
        "keys": np.concatenate([keys for keys, _, _ in blocks]).astype(np.int32),
        "group": np.concatenate([group for _, _, group in blocks]).astype(np.int32),
    }
    arrays |= {name: choices[CHOICE_COLUMNS.index(name)] for name in _PRICED}
    return Share(terms, table, arrays, choices, num_groups)


def _terms(problem: Problem) -> _Terms:
    hardware, assumptions = problem.at_point(0)
    device, network = hardware.device, hardware.network
    return _Terms(
        num_layers=problem.workload.stack.num_body_layers,
        hbm_capacity=device.hbm_capacity,
        hbm_seconds_per_byte=1.0 / (assumptions.hbm_efficiency * device.hbm_bandwidth),
        nvs_latency=network.nvs.latency,
        nvs_seconds_per_byte=1.0 / (assumptions.nvs_efficiency * network.nvs.bandwidth),
        net_latency=network.net.latency,
        net_seconds_per_byte=1.0 / (assumptions.net_efficiency * network.net.bandwidth),
        gradient_per_weight_byte=assumptions.gradient_bytes / assumptions.weight_bytes,
        optimizer_per_weight_byte=assumptions.optimizer_bytes_per_parameter / assumptions.weight_bytes,
        traffic_per_weight_byte=assumptions.optimizer_traffic_per_parameter / assumptions.weight_bytes,
        overhead_bytes=assumptions.overhead,
    )


class CKernel:
    """The built kernel."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._price_blocks: Any = library.price_blocks
        self._price_blocks.restype = None

    def price(self, parts: Sequence[Share]) -> Winners:
        """Price all candidates of the shares, one thread each, and return the best of each group."""
        if len(parts) == 1:
            return self._price(parts[0])
        with ThreadPoolExecutor(len(parts)) as pool:
            return _best_of(list(pool.map(self._price, parts)))

    def _price(self, share: Share) -> Winners:
        largest = np.finfo(np.float32).max
        time = np.full(share.num_groups, largest, dtype=np.float32)
        key = np.full(share.num_groups, -1, dtype=np.int32)
        choice = np.zeros(share.num_groups, dtype=np.int64)
        table = _Table(
            num_keys=share.table["forward_s"].shape[0],
            num_groups=share.table["weight_bytes"].shape[0],
            **{name: column.ctypes.data for name, column in share.table.items()},
        )
        blocks = _Blocks(
            count=len(share.blocks["key_start"]) - 1,
            **{name: column.ctypes.data for name, column in share.blocks.items()},
        )
        winners = _Winners(time.ctypes.data, key.ctypes.data, choice.ctypes.data, 0)
        self._price_blocks(ctypes.byref(share.terms), ctypes.byref(table), ctypes.byref(blocks), ctypes.byref(winners))
        found = np.where(time < largest, time, np.inf).astype(np.float64)
        return Winners(found, key, share.choices[:, choice].astype(np.int64), winners.feasible)


def _best_of(parts: Sequence[Winners]) -> Winners:
    """Return the best of each group over all parts."""
    time = np.stack([part.time for part in parts])
    first, group = time.argmin(axis=0), np.arange(time.shape[1])
    return Winners(
        time[first, group],
        np.stack([part.key for part in parts])[first, group],
        np.stack([part.choices for part in parts])[first, :, group].T,
        sum(part.feasible for part in parts),
    )


def build() -> CKernel | None:
    """Build the kernel; return None if the system has no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        compiled, library = Path(folder) / "flat_kernel.o", Path(folder) / "flat_kernel.so"
        subprocess.run([compiler, *FLAGS, "-c", str(_SOURCE), "-o", str(compiled)], check=True)
        # Linked with -ffast-math, the library would turn subnormal numbers to 0 in the whole process that loads it.
        subprocess.run([compiler, "-shared", str(compiled), "-o", str(library), "-lm"], check=True)
        # The library stays loaded after its file is removed.
        return CKernel(ctypes.CDLL(str(library)))


def _floats(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=np.float32)
