"""What it costs not to know the network, and to cut evenly: all models, on clusters with a topology.

    python benchmarks/partition_gains.py [--models NAME ...] [--clusters NAME ...] [--write docs/partition.md]

For each model on each cluster five plans are priced on the true network; by how much longer their steps are than that
of the first is the result.

* optimal: the best plan of `partition: optimal`, as `dsx partition --model` finds it;
* network-agnostic, flat: the best plan of that search where all GPUs share one fast domain;
* network-agnostic, free: the best plan of that search where the network costs nothing;
* even: the best plan of `partition: even`;
* same plan, even: the degrees of the optimal plan, its body layers as evenly over the stages as they go.

A network-agnostic plan keeps its degrees, its microbatch and its cut; its ranks get the best placement on the true
network. The first run takes half an hour or more on a core, nearly all of it compilation, which is kept for the next.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
from gains.plans import WAYS_OF_CASE, Case, Model
from gains.tables import largest, summary
from sections import write_section

import dsx

CLUSTERS = (
    "h100-nvs8",
    "dgx-a100-superpod",
    "h100-nvl8-rail",
    "gb200-nvl72-rail",
    "h100-spine-leaf",
    "tpuv4-fat-tree",
    "tpu-v4-pod",
    "perlmutter",
)
MODELS = Path(__file__).resolve().parent.parent / "data" / "models"


def main() -> None:
    """Price all cases, and print or write what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", metavar="NAME", default=sorted(path.stem for path in MODELS.glob("*")))
    parser.add_argument("--clusters", nargs="+", metavar="NAME", default=CLUSTERS)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put it between the markers of this document")
    options = parser.parse_args()
    dsx.keep_compiled()
    text = report(list(cases(options.models, options.clusters)))
    if options.write:
        write_section(options.write, "partition_gains", text)
    else:
        print(text, end="")


def cases(models: Sequence[str], clusters: Sequence[str]) -> Iterator[Case]:
    """Yield the cases of some models on some clusters; says on stderr how far it is."""
    start = time.monotonic()
    for name in models:
        model = Model(name)
        for cluster in clusters:
            case = model.on(cluster)
            losses = {way: case.loss(way) for way in WAYS_OF_CASE}
            told = " ".join(f"{way} {'-' if loss is None else f'{100 * loss:.2f}'}" for way, loss in losses.items())
            passed = time.monotonic() - start
            print(f"{passed:5.0f} s  {name} on {case.num_gpus} of {cluster}: {told}", file=sys.stderr, flush=True)
            yield case
        jax.clear_caches()  # which grow with every model; what the next one shares with it lies on disk


def report(found: Sequence[Case]) -> str:
    """Return the section of the document."""
    parts = [summary(found)]
    if left := sorted({path.stem for path in MODELS.glob("*")} - {case.model for case in found}):
        parts.append(f"Models that this run did not price: {', '.join(left)}.\n")
    titles = {"flat": "a network-agnostic plan", "even": "the best even plan", "alike": "the optimal plan, cut evenly,"}
    for way, title in titles.items():
        parts += [f"Where {title} loses most on each cluster:\n", largest(found, way)]
    return "\n".join(parts)


if __name__ == "__main__":
    main()
