"""The file of ``dsx measure``: it grows by a row as soon as a kernel is timed, and a later run goes on with it."""

from collections.abc import Iterator
from pathlib import Path

from dsx.api.output_file import write_output_file
from dsx.errors import InputError
from dsx.measuring.cases import Case
from dsx.measuring.timing import Timing
from dsx.spec.locate import shown
from dsx.spec.operator_times import DTYPES, WRITTEN, OperatorTime, read_operator_times, written_row

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
