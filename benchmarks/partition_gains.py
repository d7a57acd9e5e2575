"""The losses of network-agnostic plans and of even cuts: all models, on clusters with a topology.

    python benchmarks/partition_gains.py [--models NAME ...] [--clusters NAME ...] [--write docs/partition.md]

For each model on each cluster five plans are priced on the true network. The result is how much longer their steps are
than that of the first plan.

* optimal: the best plan of `partition: optimal`, as `dsx partition --model` finds it;
* network-agnostic, flat: the best plan of that search if all GPUs share one fast domain;
* network-agnostic, free: the best plan of that search if the network costs nothing;
* even: the best plan of `partition: even`;
* same plan, even: the degrees of the optimal plan, with its body layers divided as evenly as possible.

A network-agnostic plan keeps its degrees, its microbatch and its cut; its ranks get the best placement on the true
network. The first run takes half an hour or more on one core, nearly all of it compilation, which later runs reuse.
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
    """Price all cases, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", metavar="NAME", default=sorted(path.stem for path in MODELS.glob("*")))
    parser.add_argument("--clusters", nargs="+", metavar="NAME", default=CLUSTERS)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into the section of this document")
    options = parser.parse_args()
    dsx.keep_compiled()
    text = report(list(cases(options.models, options.clusters)))
    if options.write:
        write_section(options.write, "partition_gains", text)
    else:
        print(text, end="")


def cases(models: Sequence[str], clusters: Sequence[str]) -> Iterator[Case]:
    """Yield the cases of models on clusters; print the progress on stderr."""
    start = time.monotonic()
    for name in models:
        model = Model(name)
        for cluster in clusters:
            case = model.on(cluster)
            losses = {way: case.loss(way) for way in WAYS_OF_CASE}
            shown = " ".join(f"{way} {'-' if loss is None else f'{100 * loss:.2f}'}" for way, loss in losses.items())
            passed = time.monotonic() - start
            print(f"{passed:5.0f} s  {name} on {case.num_gpus} of {cluster}: {shown}", file=sys.stderr, flush=True)
            yield case
        jax.clear_caches()  # they grow with every model; code that the next model shares is on disk


def report(found: Sequence[Case]) -> str:
    """Return the section of the document."""
    parts = [summary(found)]
    if left := sorted({path.stem for path in MODELS.glob("*")} - {case.model for case in found}):
        parts.append(f"Models that this run did not price: {', '.join(left)}.\n")
    titles = {"flat": "a network-agnostic plan", "even": "the best even plan", "recut": "the optimal plan, cut evenly,"}
    for way, title in titles.items():
        parts += [f"The case of each cluster in which {title} loses most:\n", largest(found, way)]
    return "\n".join(parts)


if __name__ == "__main__":
    main()
