"""The files of ``dsx measure``: operator times that grow row by row, collectives, and the device as a cluster file."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsx.config.operator_files import DTYPES, WRITTEN, OperatorTime, read_operator_times, written_row
from dsx.config.search_path import shown
from dsx.errors import InputError
from dsx.measuring.array_library import Timing
from dsx.measuring.cases import Case
from dsx.measuring.device import CollectiveTime, DeviceRates
from dsx.units import exact_quantity
from dsx.verbs.arguments import write_output_file

if TYPE_CHECKING:
    from dsx.measuring.device import CollectiveTime


# The first four columns are those of data/validation/nccl.csv, to which the network's parameters are fitted.
_COLUMNS = ("collective", "num_nodes", "gpus_per_node", "message_bytes", "time_us", "spread")


# Of a device without neighbours; no plan on one device uses them.
_BANDWIDTH, _LATENCY = 1e10, 1e-6


def collectives_file(measured: Sequence[CollectiveTime]) -> str:
    """Return measured collectives as CSV, a row for each; all devices are on one node."""
    rows = [
        (
            collective.kind.replace("-", ""),
            "1",
            str(collective.num_devices),
            str(collective.num_bytes),
            f"{1e6 * collective.timing.median_s:.6g}",
            f"{collective.timing.spread:.3f}",
        )
        for collective in measured
    ]
    return "".join(f"{','.join(cells)}\n" for cells in (_COLUMNS, *rows))


def device_file(name: str, measured_with: str, rates: DeviceRates, collectives: Sequence[CollectiveTime]) -> str:
    """Return a cluster file of the local devices, with what they reach in place of the peaks of a data sheet."""
    source = f"dsx measure with {measured_with}"
    devices = max((collective.num_devices for collective in collectives), default=1)
    of_all = [collective for collective in collectives if collective.num_devices == devices]
    bandwidth = max((collective.num_bytes / collective.timing.median_s for collective in of_all), default=_BANDWIDTH)
    latency = min((collective.timing.median_s for collective in of_all), default=_LATENCY)
    network = (
        f"{source}: the best rate and the shortest time of a collective over all devices"
        if of_all
        else "assumption: one device has no neighbours"
    )

    def sourced(value: float, unit: str, source: str) -> str:
        return f"{{value: {exact_quantity(float(f'{value:.4g}'), unit)}, source: {json.dumps(source)}}}"

    tier = [f"bandwidth: {sourced(bandwidth, 'bytes/s', network)}", f"latency: {sourced(latency, 's', network)}"]
    lines = [
        f"name: {json.dumps(name)}",
        f"description: {json.dumps(f'The local devices, measured with {measured_with}.')}",
        "device:",
        f"  name: {json.dumps(name)}",
        f"  matrix_flops: {sourced(rates.matrix_flops, 'flop/s', f'{source}: the best rate of square multiplies')}",
        f"  vector_flops: {sourced(rates.vector_flops, 'flop/s', f'{source}: multiplies and additions of float32')}",
        f"  hbm_bandwidth: {sourced(rates.bandwidth, 'bytes/s', f'{source}: the sum of two arrays')}",
        f"  hbm_capacity: {sourced(rates.memory_bytes, 'bytes', f'{source}: memory of the device')}",
        "network:",
        "  nvs:",
        f"    size: {{value: {devices}, source: {json.dumps(f'{source}: the local devices')}}}",
        *(f"    {line}" for line in tier),
        "  net:",
        *(f"    {line}" for line in tier),
    ]
    return "".join(f"{line}\n" for line in lines)


_MADE_BY = "# measured with "


_HEADER = ",".join(WRITTEN)


class MeasuredFile:
    """The operator times of one device, in a file or, without a path, in memory."""

    def __init__(self, path: Path | None, measured_with: str) -> None:
        """Begin a file, or go on with the one that is there.

        `measured_with` names the library and the device, in one line. Raises OperatorTimesError for a file that cannot
        be read, InputError for one that `dsx measure` has not written, or on another device or with another library.
        """
        if path is not None and path.exists() and not path.is_file():
            raise InputError(f"-o {shown(path)}: is no file, and times are written one by one; choose a file")
        self.path = path
        self._lines = [f"{_MADE_BY}{measured_with}", _HEADER]
        self.kept: tuple[OperatorTime, ...] = ()  # rows that were there
        if path is not None and path.is_file() and path.stat().st_size:
            self.kept = read_operator_times(str(path)).rows
            lines = path.read_text(encoding="utf-8").splitlines()
            self._check(path, lines)
            self._lines = lines
        self._there = {key for row in self.kept for key in _keys(row)}

    def _check(self, path: Path, lines: list[str]) -> None:
        if not lines[0].startswith(_MADE_BY) or lines[1:2] != [_HEADER]:
            raise InputError(
                f"-o {shown(path)}: is no file of dsx measure, which begins with {_MADE_BY!r} and the columns "
                f"{_HEADER}; choose another file"
            )
        if lines[0] != self._lines[0]:
            raise InputError(
                f"-o {shown(path)}: was {lines[0].removeprefix('# ')}, and this is "
                f"{self._lines[0].removeprefix(_MADE_BY)}; choose another file"
            )

    def has(self, case: Case) -> bool:
        """Return whether a kernel has a row."""
        return case.key in self._there

    def add(self, case: Case, timing: Timing) -> None:
        """Add a row and write the file; raises StoreError if that fails."""
        row = written_row(case.operator, case.direction, case.shape, case.dtype, timing.median_s, timing.spread)
        self._lines.append(row)
        self._there.add(case.key)
        if self.path is not None:
            write_output_file(self.path, self.text)

    @property
    def text(self) -> str:
        """The content of the file."""
        return "".join(f"{line}\n" for line in self._lines)


def _keys(row: OperatorTime) -> Iterator[tuple[str, int | None, tuple[int, int, int, int], int]]:
    """Yield the keys of the kernels (`Case.key`) that a row gives the time of."""
    for width in [DTYPES[row.dtype]] if row.dtype else dict.fromkeys(DTYPES.values()):
        for direction in (None,) if len(row.directions) > 1 else row.directions:
            yield row.operator, direction, row.shape, width
