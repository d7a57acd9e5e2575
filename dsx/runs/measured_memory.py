"""The measured memory of a row in bytes, and which bytes the tool counted."""

from dsx.runs.reasons import Reason
from dsx.runs.run_table import Run

# Prefixes of mem_unit, ignoring case; a blank cell means GB.
UNITS = {"gib": 2.0**30, "mib": 2.0**20, "gb": 1e9, "mb": 1e6}

# What a tool counted: tensors alone, all memory that the framework's allocator holds, or all memory in use on the
# device, with its context and the buffers of the collective library.
ALLOCATED, RESERVED, DEVICE = "allocated", "reserved", "device"
# A word in mem_unit, the first one that is there -> what was counted. Without any it is the peak that the framework
# logs (`logs` of its stack).
COUNTED = {
    **dict.fromkeys(("nvidia-smi", "rocm-smi", "nvml", "driver", "device"), DEVICE),
    "reserved": RESERVED,
    "allocated": ALLOCATED,
}


def measured_bytes(run: Run) -> float | Reason | None:
    """Return the measured bytes on the fullest GPU; None if the row has none, a Reason if the unit is unknown."""
    if run.measured_mem_gb is None:
        return None
    unit = (run.mem_unit or "GB").lower()
    factor = next((factor for name, factor in UNITS.items() if unit.startswith(name)), None)
    if factor is None:
        return Reason("mem_unit is not known", f"{run.mem_unit!r}, known: GB, GiB, MB, MiB")
    return run.measured_mem_gb * factor


def counted_bytes(run: Run, logs: str = ALLOCATED) -> str:
    """Return which bytes were counted: "allocated", "reserved" or "device"; `logs` where mem_unit says nothing."""
    unit = (run.mem_unit or "").lower()
    return next((kind for word, kind in COUNTED.items() if word in unit), logs)
