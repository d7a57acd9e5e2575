"""Remarks on values far beyond any machine's or any run's: they may be of another unit, or have a zero too many.

A number of a cluster is compared with those of the packaged clusters, a size of a job with those of measured runs
(data/measured/runs.yaml).
"""

from collections.abc import Iterator
from functools import cache

from dsx.spec.cluster import ClusterSpec, load_cluster
from dsx.spec.load import Spec
from dsx.spec.locate import packaged_data
from dsx.spec.measured_runs import measured_runs
from dsx.spec.what_if import field, is_field
from dsx.units import format_quantity

_OF_MACHINES = 3.0  # times the most, or below the least, of all machines: bits for bytes are 8
_OF_RUNS = 10.0  # the same of runs: more may be asked than was tried


def unusual_cluster(cluster: ClusterSpec) -> list[str]:
    """Return what to say once of numbers of a cluster that are far beyond those of all packaged clusters."""
    said: list[str] = []
    for path, value in _numbers(cluster):
        least, most = _of_machines().get(path, (value, value))
        if least / _OF_MACHINES <= value <= most * _OF_MACHINES:
            continue
        unit = field(path).unit
        shown, low, high = (format_quantity(number, unit) for number in (value, least, most))
        in_bits = f" ({format_quantity(8 * value, unit)[:-3]}b/s in bits)" if unit == "bytes/s" else ""
        said.append(f"cluster.{path} is {shown}{in_bits}: packaged clusters have {low} to {high}")
    return said


def unusual_job(parameters: int, num_gpus: int, global_batch_size: int, sequence_length: int) -> list[str]:
    """Return what to say once of sizes of a job that are far beyond those of all measured runs."""
    sizes = {
        "num_gpus": num_gpus,
        "global_batch_size": global_batch_size,
        "sequence_length": sequence_length,
        "parameters_per_gpu": parameters / num_gpus,
    }
    said: list[str] = []
    for name, value in sizes.items():
        known = measured_runs().sizes[name]
        if not known.least / _OF_RUNS <= value <= known.most * _OF_RUNS:
            said.append(f"{name} is {value:,.0f}: measured runs have {known.least:,.0f} to {known.most:,.0f}")
    return said


@cache
def _of_machines() -> dict[str, tuple[float, float]]:
    """Return the least and the most of each number of the packaged clusters."""
    found: dict[str, tuple[float, float]] = {}
    for file in sorted((packaged_data() / "clusters").glob("*.yaml")):
        for path, value in _numbers(load_cluster(str(file))):
            least, most = found.get(path, (value, value))
            found[path] = min(least, value), max(most, value)
    return found


def _numbers(spec: Spec, before: str = "") -> Iterator[tuple[str, float]]:
    """Yield the real numbers of a cluster with their paths, zeros left out."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Spec):
            yield from _numbers(value, f"{before}{name}.")
        elif isinstance(value, float) and value and is_field(f"{before}{name}"):
            yield f"{before}{name}", value
