"""Place the single operators of a training step on the GPUs of a small cluster.

placed = dsx.place("alexnet.json", devices=4, inter="25 GB/s")
graph = dsx.place.from_jax(step, params, batch)      # or from_fx(graph_module), or measure(step, params, batch)
dsx.place(graph, devices=8, cluster="h100-nvs8").frame
"""

from collections.abc import Sequence
from time import monotonic
from typing import Literal

from dsx.api.arguments import seconds_from, watcher
from dsx.api.operator_placement import OperatorPlacement
from dsx.api.place_inputs import GraphLike, Hardware, devices_from, graph_from, network_from
from dsx.argument_types import wrong
from dsx.errors import InputError, SpecError
from dsx.operator_placement.graph_sources.from_fx import from_fx
from dsx.operator_placement.graph_sources.from_jax import from_jax
from dsx.operator_placement.graph_sources.measured_times import measure
from dsx.operator_placement.place import place as placed_on
from dsx.operator_placement.placed import Placed
from dsx.progress import Watch, progress
from dsx.spec.load import Given
from dsx.units import parse_count, parse_share

_TICKS = 10  # of the progress, a second


class Placer:
    """Places operators when it is called; its functions make graphs of them."""

    from_jax = staticmethod(from_jax)
    from_fx = staticmethod(from_fx)
    measure = staticmethod(measure)

    def __call__(
        self,
        graph: GraphLike | None = None,
        devices: int | None = None,
        inter: str | None = None,
        *,
        intra: str | None = None,
        gpus_per_server: int | None = None,
        latency: str | None = None,
        memory: str | None = None,
        speeds: Sequence[float] | str | None = None,
        model: Given | None = None,
        cluster: Given | None = None,
        assumptions: Given = "default",
        bandwidth: Literal["uniform", "joint"] | None = None,
        nics: int | None = None,
        nic_bandwidth: str | None = None,
        time_limit: str = "60 s",
        gap: float = 0.05,
        seed: int = 0,
        watch: Watch | None = None,
    ) -> OperatorPlacement:
        """Return the best placement of a graph's operators that is found in a time, with a bound below all of them.

            dsx.place("alexnet.json", devices=4, inter="25 GB/s").makespan_s

        Args:
            graph: a JSON file ([placement.md](placement.md)), its content as a dict, FILE.py:NAME with a function that
                returns a step of JAX and the shapes of its arguments (the file is run as it is), or what `from_jax`,
                `from_fx` and `measure` return.
            devices: the number of GPUs.
            inter: the bandwidth between any two servers.
            intra: that between the GPUs of a server, with `gpus_per_server`.
            gpus_per_server: GPUs of a server; one by default.
            latency: that of each transfer; none by default.
            memory: that of each GPU; without limit by default.
            speeds: how fast each GPU is, 1 for one that takes the times of the graph.
            model: a model, in place of a graph: the layers of one microbatch, on the device of `cluster`.
            cluster: a cluster that gives links, latency, memory, and the times of operators that have none.
            assumptions: the assumption set of these times.
            bandwidth: what servers send is shared uniformly, or as the placement needs ("joint"); with `nics`.
            nics: network cards of a server.
            nic_bandwidth: of each of them; by default `inter`.
            time_limit: of the whole search.
            gap: the search may end once the step is at most this share longer than the shortest.
            seed: of the search.
            watch: told of the time that has gone by, instead of a progress bar.

        Raises InputError and SpecError for bad arguments and files, NothingFeasible if memory has no room.
        """
        hardware = Hardware(
            devices,
            inter,
            intra,
            gpus_per_server,
            latency,
            memory,
            speeds,
            cluster,
            assumptions,
            nics,
            nic_bandwidth,
        )
        if bandwidth not in (None, "uniform", "joint"):
            raise InputError(f"--bandwidth {bandwidth!r}: uniform or joint is wanted")
        if bandwidth is not None and nics is None:
            raise InputError(f"--bandwidth {bandwidth} needs --nics, the number of network cards of a server")
        seconds, share = seconds_from("time_limit", time_limit), _share("--gap", gap)
        number = _seed(seed)
        watch = watcher(watch)
        found, name = graph_from(graph, model, hardware)
        on = devices_from(hardware, found)
        network = network_from(hardware, on)
        begin, total = monotonic(), max(round(seconds * _TICKS), 1)
        with progress(total, "place", watch) as advance:
            done = 0

            def told(_: Placed) -> None:
                nonlocal done
                now = min(int((monotonic() - begin) * _TICKS), total)
                advance(now - done)
                done = now

            made = placed_on(found, on, seconds, share, number, network, bandwidth == "joint", told=told)
            advance(total - done)
        return OperatorPlacement(made, name, None if network is None else bandwidth or "uniform")


place = Placer()


def _share(name: str, value: object) -> float:
    try:
        return parse_share(value)
    except SpecError as error:
        raise InputError(f"{name}: {error}") from None


def _seed(value: object) -> int:
    try:
        return 0 if value == 0 and not isinstance(value, bool) else parse_count(value)
    except SpecError:
        raise wrong("--seed", value, "a whole number from 0 to 2147483647 is wanted") from None
