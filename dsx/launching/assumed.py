"""What an assumption set takes for granted of the software, as lines at the head of a launch file.

The fields are those that the set's stack states, with the sources there or, where its framework states them too, in the
framework. A field that an option expresses is listed too: an option switches an overlap on, and the set says how much
of it hides.
"""

from dsx.errors import InputError
from dsx.spec.assumptions import AssumptionsSpec
from dsx.spec.attention_kernels import GENERATIONS
from dsx.spec.cluster import DeviceSpec
from dsx.spec.document import is_sourced
from dsx.spec.stack import load_stack


def assumed_lines(assumptions: AssumptionsSpec, device: DeviceSpec) -> list[str]:
    """Return what is assumed of the software on a device, the stack first."""
    if assumptions.stack is None:
        return [f"The assumption set {assumptions.name} names no software."]
    try:
        stack = load_stack(assumptions.stack)
    except InputError:  # a file of its own that is not here
        return [f"The software is the stack {assumptions.stack}."]
    lines = [f"Assumed of the software (stack {stack.name}: {stack.description.rstrip('.')}):"]
    framework = assumptions.of_framework
    of_framework = {} if isinstance(framework, str) else framework.on(device.family).assume
    for name, stated in stack.assume.items():
        if is_sourced(stated):  # else it is of measured runs alone
            own = "" if _value(assumptions, name) == str(stated["value"]) else f" (of the stack: {stated['value']})"
            source = of_framework.get(name, stated).get("source", "")
            of_device = _newest(assumptions, device) if name == "attention_kernels" else ""
            lines.append(f"  - {name} {_value(assumptions, name)}{own}{of_device}: {source}")
    return lines


def _newest(assumptions: AssumptionsSpec, device: DeviceSpec) -> str:
    """Return which attention kernels a device runs, where it has not the newest of its software."""
    newest = int(assumptions.attention_kernels)
    runs = [age for age in GENERATIONS[:newest] if age in device.attention]
    if not newest or runs[-1:] == [GENERATIONS[newest - 1]]:
        return ""
    return f" ({device.name} runs {runs[-1]})" if runs else f" ({device.name} states none)"


def _value(assumptions: AssumptionsSpec, name: str) -> str:
    value = getattr(assumptions, name)
    if name == "attention_kernels":
        return (("none", *GENERATIONS)[round(value)]) if float(value).is_integer() else f"{value:g}"
    if name.endswith("_latency"):
        return f"{value * 1e6:g} us"
    return f"{value:g}" if isinstance(value, float | int) else str(value)
