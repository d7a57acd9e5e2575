"""The measured memory of a row in bytes, and what was measured: not every tool counts the same bytes."""

from dsx.runs.reasons import Reason
from dsx.runs.table import Run

# Beginnings of mem_unit, without regard to case; blank is GB.
UNITS = {"gib": 2.0**30, "mib": 2.0**20, "gb": 1e9, "mb": 1e6}

# What the unit says beside its name -> what was measured: tensors alone, with what the allocator keeps beside them, or
# all that is in use on the device, the CUDA context included.
COUNTED = {"nvidia-smi": "device", "reserved": "reserved"}
ALLOCATED = "allocated"


def measured_bytes(run: Run) -> float | Reason | None:
    """Return the measured bytes on the fullest GPU; None where the row has none, a Reason if the unit is unknown."""
    if run.measured_mem_gb is None:
        return None
    unit = (run.mem_unit or "GB").lower()
    factor = next((factor for name, factor in UNITS.items() if unit.startswith(name)), None)
    if factor is None:
        return Reason("mem_unit is not known", f"{run.mem_unit!r}, known: GB, GiB, MB, MiB")
    return run.measured_mem_gb * factor


def counted_bytes(run: Run) -> str:
    """Return which bytes were counted: "allocated", "reserved" or "device"."""
    unit = (run.mem_unit or "").lower()
    return next((what for word, what in COUNTED.items() if word in unit), ALLOCATED)
