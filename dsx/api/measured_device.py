"""The device at hand as a cluster file, and its collectives as a table of measured times."""

import json
from collections.abc import Sequence

from dsx.measuring.collectives import CollectiveTime
from dsx.measuring.device_rates import DeviceRates
from dsx.units import exact_quantity

# The first four columns are those of data/validation/nccl.csv, to which the network's parameters are fitted.
_COLUMNS = ("collective", "num_nodes", "gpus_per_node", "message_bytes", "time_us", "spread")
# Of a device without neighbours; no plan on one device uses them.
_BANDWIDTH, _LATENCY = 1e10, 1e-6


def collectives_file(measured: Sequence[CollectiveTime]) -> str:
    """Return measured collectives as CSV, a row for each; all devices are on one node."""
    rows = [
        (
            one.kind.replace("-", ""),
            "1",
            str(one.num_devices),
            str(one.num_bytes),
            f"{1e6 * one.timing.median_s:.6g}",
            f"{one.timing.spread:.3f}",
        )
        for one in measured
    ]
    return "".join(f"{','.join(cells)}\n" for cells in (_COLUMNS, *rows))


def device_file(name: str, measured_with: str, rates: DeviceRates, collectives: Sequence[CollectiveTime]) -> str:
    """Return a cluster file of the local devices, with what they reach in place of the peaks of a data sheet."""
    source = f"dsx measure with {measured_with}"
    devices = max((one.num_devices for one in collectives), default=1)
    of_all = [one for one in collectives if one.num_devices == devices]
    bandwidth = max((one.num_bytes / one.timing.median_s for one in of_all), default=_BANDWIDTH)
    latency = min((one.timing.median_s for one in of_all), default=_LATENCY)
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
