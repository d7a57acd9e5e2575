"""Arguments and answers of the API, which the shell and Python share.

Arguments are counts, amounts, names, fields and output files. An output file is checked before the computation, which
can take minutes, and written after it.

Answers are printed as in the shell, shown in a notebook, and converted to plain data.
"""

import html
import json
import math
import operator
import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import SupportsIndex, TypeVar

from dsx.config.documents import Plain, whole_characters
from dsx.config.load import Assignment
from dsx.config.search_path import shown
from dsx.errors import InputError, SpecError, StoreError, file_path, function, wrong
from dsx.files import MANIFEST, write_whole
from dsx.plans.plan import Plan
from dsx.progress import Watch
from dsx.text import Data, DataFrame, versioned
from dsx.units import Dimension, parse_count, parse_quantity, parse_share, parse_total


def optional_path(name: str, path: object) -> Path | None:
    """Return the argument called `name` as a path, or None; InputError if it is neither."""
    return None if path is None else file_path(name, path)


def output_file(name: str, path: object, read: Iterable[Path], option: str = "-o", suffix: str = "") -> Path | None:
    """Return the argument called `name` as a file that can be written, or None; errors as of `check_output_file`."""
    output = optional_path(name, path)
    if output is not None:
        check_output_file(output, read, option, suffix)
    return output


def check_output_file(output: Path, read: Iterable[Path], option: str = "-o", suffix: str = "") -> None:
    """Raise StoreError if the `output` of an option cannot be written, or would destroy what is no such output.

    That is one of the input files `read`, the manifest of a result set or of traces, and with a `suffix` (".csv") a
    file of another one.
    """
    folder, fault = output.absolute().parent, ""
    if not folder.is_dir():
        fault = f"{shown(output.parent)} is no folder; make it, or choose another file"
    elif output.is_dir():
        fault = "is a folder; name a file in it"
    elif not os.access(output if output.exists() else folder, os.W_OK):
        fault = "may not be written; choose another file"
    elif any(output.exists() and file.exists() and output.samefile(file) for file in read):
        fault = "is read by this command; choose another file"
    elif output.is_file() and output.name == MANIFEST:
        fault = "is the manifest of a folder that dsx wrote; choose another file"
    elif output.is_file() and suffix and output.suffix.lower() != suffix:
        fault = f"is there, and is no {suffix} file; choose another one"
    if fault:
        raise StoreError(f"{option} {shown(output)}: {fault}")


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


def keep_compiled() -> None:
    """Keep compiled code on disk, and use the code that earlier processes kept.

    The command line does this by default. Python code has to ask for it, since it changes JAX's settings for the whole
    process. The folder is `~/.cache/dsx/compiled`, or that of JAX_COMPILATION_CACHE_DIR.
    """
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if not folder:
        with suppress(OSError, RuntimeError):  # no permission to make the folder, or no home folder
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsx" / "compiled"
            cache.mkdir(parents=True, exist_ok=True)
            folder = str(cache) if os.access(cache, os.W_OK) else None
        if not folder:
            return
    # An entry that cannot be used is compiled again, without a warning.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    settings = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    for name, value in settings.items():
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, value)
        else:  # JAX reads these when it is loaded, if something is compiled
            os.environ[name.upper()] = str(value)


# Overridden fields, as in {"cluster.device.hbm_capacity": "141 GB"} or ["cluster.device.hbm_capacity=141 GB"].
Fields = Mapping[str, object] | Sequence[str]

T = TypeVar("T")
_LONGEST_S = 1e6  # of a latency or a search


def parsed(parse: Callable[[], T], place: str) -> T:
    """Return what `parse` returns; the place precedes what it finds wrong, an InputError."""
    try:
        return parse()
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def count(name: str, value: object) -> int:
    """Return an argument as an int of at least 1; NumPy integers are accepted. InputError names the argument."""
    number = value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        with suppress(TypeError):  # of an array, of which only one without axes is a number
            number = operator.index(value)
    return parsed(lambda: parse_count(number), name)


def counts(name: str, value: object) -> list[int]:
    """Return one or several counts, ascending, each once; InputError for none, and for what `count` refuses."""
    values = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    numbers = sorted({count(name, number) for number in values})
    if not numbers:
        raise InputError(f"{name}: an empty list; give a number, or leave it out")
    return numbers


def total(name: str, value: object) -> float | None:
    """Return an argument that may have a suffix, as "15T", as a number above zero; None for None."""
    if value is None:
        return None
    number = float(parsed(lambda: parse_total(value), option_of(name)))
    if number <= 0:
        raise InputError(f"{option_of(name)}: {value} is not above zero")
    return number


def strategy_name(strategy: object) -> str | None:
    """Return the name or the path of one strategy; None for that of the assumption set. InputError for anything else.

    A list is refused too: one plan has one strategy, and a search compares several.
    """
    if strategy is None or (isinstance(strategy, str | Path) and str(strategy)):
        return None if strategy is None else str(strategy)
    hint = "the name of one strategy (dsx list strategies) or a .layer file is wanted"
    several = "; dsx.best and dsx.sweep compare several" if isinstance(strategy, list | tuple) else ""
    raise InputError(f"--strategy {strategy!r:.60}: {hint}{several}")


def strategy_names(strategies: object) -> list[str]:
    """Return the names or paths of strategies: a text with commas between them, or a sequence; none for None.

    Raises InputError for anything else, and for a strategy that is named twice.
    """
    if strategies is None:
        return []
    parts = strategies.split(",") if isinstance(strategies, str) else strategies
    if isinstance(parts, Path) or not isinstance(parts, Sequence) or not parts:
        parts = [parts]
    names = [str(strategy_name(name.strip() if isinstance(name, str) else name or "")) for name in parts]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--strategy {twice[0]} is named twice")
    return names


def watcher(watch: Watch | None) -> Watch | None:
    """Return the argument `watch`; InputError if it is no function."""
    return None if watch is None else function("watch", watch)


def assignments(name: str, fields: Fields | None) -> list[str | Assignment]:
    """Return the fields of the argument called `name`: FIELD=VALUE of a list, pairs of a mapping.

    Raises InputError for any other argument, and for a value that is no plain data.
    """
    if fields is None:
        return []
    if isinstance(fields, str):
        return [fields]
    if isinstance(fields, Sequence) and all(isinstance(field, str) for field in fields):
        return list(fields)
    if not isinstance(fields, Mapping):
        raise wrong(name, fields, "a mapping of fields to values is wanted, or a list of texts such as 'FIELD=VALUE'")
    pairs: list[str | Assignment] = []
    for path, value in fields.items():
        try:
            pairs.append((str(path), value if isinstance(value, str) else _plain(value)))
        except TypeError:
            raise InputError(f"set {path}: {value!r} is not a number, text, list or mapping") from None
        except ValueError as error:
            raise SpecError(f"--set {path}: {error}") from None
    return pairs


def _plain(value: object) -> Plain:
    """Return a value as a file would state it; TypeError for one that no file can, ValueError for half a character."""
    if callable(numbers := getattr(value, "tolist", None)):  # of NumPy
        value = numbers()
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)  # a text, which no field takes for a number
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return whole_characters(value)
    raise TypeError


def margin_setting(margin: float | None) -> dict[str, float]:
    """Return the field that `memory_margin` sets, none if it is None; InputError for what is no share."""
    if margin is None:
        return {}
    return {"assumptions.memory_margin": parsed(lambda: parse_share(margin), "memory_margin")}


def amount(name: str, value: object, dimension: Dimension, zero: bool = False) -> float | None:
    """Return a quantity in its SI unit, None for None; raises InputError for one that is not above zero."""
    if value is None:
        return None
    option = option_of(name)
    quantity = parsed(lambda: parse_quantity(value, dimension), option)
    if quantity < 0.0 or (quantity == 0.0 and not zero):
        raise InputError(f"{option}: {value} is {'below' if zero else 'not above'} zero")
    if dimension == "bytes/s" and quantity < 1.0:
        raise InputError(f"{option}: {value} is less than 1 B/s")
    if dimension == "s" and quantity > _LONGEST_S:
        raise InputError(f"{option}: {value} is more than {_LONGEST_S:g} s")
    return quantity


def seconds_from(name: str, value: object) -> float:
    """Return a time; raises InputError for one that is not above zero."""
    seconds = amount(name, value, "s")
    if seconds is None:
        raise InputError(f"{option_of(name)}: a time is wanted, as in '60 s'")
    return seconds


def option_of(name: str) -> str:
    """Return the option of the shell for an argument: --time-limit for time_limit."""
    return f"--{name.replace('_', '-')}"


class Answer(ABC):
    """An answer of the API. `str(answer)` is what the shell prints, `to_data()` what it prints with --json.

    Two answers are equal if their plain data are.
    """

    __slots__ = ()

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def _data(self) -> Data:
        """Return the answer as plain data, without a version."""

    def to_data(self) -> Data:
        """Return the answer as plain data with its `schema_version`; times in seconds, sizes in bytes.

        What is no finite number is None.
        """
        return versioned(self._data())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and type(self) is type(other) and self.to_data() == other.to_data()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>\n{self}"

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class PricedPlans(Answer):
    """An answer that has plans with their costs."""

    __slots__ = ()

    priced: Sequence[Data]  # each plan, under `plan`, and its costs by column

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans, the best first; `frame` has their costs too."""
        return tuple(priced["plan"] for priced in self.priced)

    @cached_property
    def frame(self) -> DataFrame:
        """The plans as rows, in the order of `plans`, with the columns of a result set; units in `attrs`."""
        from dsx.tables.plans import plans_frame

        return plans_frame(self.priced)

    def _plans_data(self) -> list[Data]:
        """Return the plans with their costs as plain data."""
        return [{**priced, "plan": priced["plan"].data} for priced in self.priced]


def paragraphs(parts: Iterable[str]) -> str:
    """Join texts with an empty line between them; empty ones are left out."""
    return "\n\n".join(filter(None, parts))


def with_units(rows: object, flops: str = "FLOP") -> DataFrame:
    """Return rows or columns as a DataFrame, whose `attrs` have the units that the names of its columns end in."""
    import pandas as pd

    frame = pd.DataFrame(rows)  # pyright: ignore[reportArgumentType]
    of_endings = {"s": "s", "bytes": "bytes", "flops": flops}
    units = {name: of_endings.get(str(name).rpartition("_")[2]) for name in frame.columns}
    frame.attrs["units"] = {name: unit for name, unit in units.items() if unit}
    return frame
