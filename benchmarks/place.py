"""Operator placement in numbers: reduction, answers, seconds, alpha, bandwidth, simulator, and the sources' claims.

    python benchmarks/place.py [--graphs DIR] [--only NAME ...] [--cases NAME ...] [--results FILE]
        [--write docs/placement.md]

The reference graphs, alexnet_tf.json, vgg16_tf.json and bert_base_jax.json, are read from DIR; they are not in the
repository. The steps of examples/steps are traced. Each table is a section of the document. What is measured is kept in
FILE, and `claims` is made of what is there; without FILE it is made of the tables of this run.

All tables take some 22 minutes on two idle cores. Code is compiled before it is timed. `--only example` runs the
document's command and draws its picture.
"""

import argparse
import json
import time
from pathlib import Path

from placing import alphas, answers, bandwidths, claims, example, reductions, simulators, timings
from placing.cases import EXAMPLES, REFERENCE, Row, cases
from sections import write_section

import dsx

TABLES = {
    "reduction": (reductions.measured, reductions.text),
    "schemes": (reductions.schemes_measured, reductions.schemes_text),
    "answers": (answers.measured, answers.text),
    "seconds": (timings.measured, timings.text),
    "alpha": (alphas.measured, alphas.text),
    "bandwidth": (bandwidths.measured, bandwidths.text),
    "simulator": (simulators.measured, simulators.text),
}


def main() -> None:
    """Measure, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=Path, metavar="DIR", help="folder of the reference graphs")
    parser.add_argument("--only", nargs="+", choices=("example", *TABLES, "claims"), default=(*TABLES, "claims"))
    parser.add_argument("--cases", nargs="+", choices=(*REFERENCE, *EXAMPLES), default=(), metavar="NAME")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep what is measured in this JSON file")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into the sections of this document")
    options = parser.parse_args()
    dsx.keep_compiled()
    kept: dict[str, list[Row]] = {}
    if options.results and options.results.is_file():
        kept = json.loads(options.results.read_text(encoding="utf-8"))
    graphs = cases(options.graphs, options.cases) if {*options.only} & {*TABLES} else []
    for name in options.only:
        begun = time.perf_counter()
        if name in TABLES:
            measured, text_of = TABLES[name]
            kept[name] = measured(graphs)
            if not kept[name]:
                parser.error(f"{name} is of the reference graphs: --graphs DIR")
            text = text_of(kept[name])
        elif name == "claims" and not kept:
            parser.error("claims are made of other tables: --results FILE")
        else:
            text = claims.text(kept) if name == "claims" else example.text()
        print(f"\n{text}\n{name}: {time.perf_counter() - begun:.0f} s", flush=True)
        if options.results:
            options.results.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        if options.write:
            write_section(options.write, "place", text, name)


if __name__ == "__main__":
    main()
