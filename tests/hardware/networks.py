"""Networks with round numbers: domains of eight, 400 GB/s and 2 us inside, 50 GB/s and 5 us on a NIC."""

from dsx.config.topology import NetworkSpec
from dsx.hardware.network import network_from_spec


def network(topology, size=8, inside="400 GB/s", outside="50 GB/s"):
    """A network as a cluster file describes it."""
    facts = {
        "nvs": {"size": size, "bandwidth": inside, "latency": "2 us"},
        "net": {"bandwidth": outside, "latency": "5 us"},
    }
    return NetworkSpec.model_validate(facts | ({"topology": topology} if topology else {}))


def derived(spec):
    return network_from_spec(spec)


def stated(spec):
    return spec.model_dump(mode="json")
