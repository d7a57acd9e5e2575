"""What must be stated for the columns of a training run, which hold no number without it.

`training_days` needs the tokens of the training, `cost_usd` also the price of a GPU. A sweep states the tokens, a
cluster file its price, power and failures.
"""

from collections.abc import Iterable

from dsx.printable import printable
from dsx.spec.cluster import ClusterSpec

OF_TOKENS = ("training_days", "gpu_hours", "cost_usd", "energy_kwh")
_PRICE = "price: give --set cluster.price='2.5 USD/h' (of one GPU), or 'price: 2.5 USD/h' in its file"
_POWER = "power of its device: give --set cluster.device.power='700 W', or 'power: 700 W' in its file"
_FAILURES = (
    "failures: give --set cluster.failures='{mtbf: 50000 h, restart: 10 min, checkpoint: 1 min}' with your numbers, "
    "or 'failures:' in its file"
)


def without_tokens(columns: Iterable[str]) -> str:
    """Return the first of some columns, or objectives, that needs `train_tokens`; empty if none does."""
    return next((name for name in map(_column, columns) if name in OF_TOKENS), "")


def missing_of_cluster(columns: Iterable[str], cluster: ClusterSpec) -> str:
    """Return what a cluster does not state and a column needs, with what to write; empty if it states all of it."""
    stated = {
        "cost_usd": (cluster.price, _PRICE),
        "energy_kwh": (cluster.device.power, _POWER),
        "goodput": (cluster.failures, _FAILURES),
    }
    for name in map(_column, columns):
        value, what = stated.get(name, (True, ""))
        if value is None:
            return f"{name} is asked for, and cluster {printable(cluster.name)!r} states no {what}"
    return ""


def _column(objective: str) -> str:
    return objective.removeprefix("-")
