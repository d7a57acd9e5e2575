"""Result sets on disk: the interface for the rest of dsx.

    if store.finished("results/a", manifest) is None:
        with store.create("results/a", manifest, num_parts) as writer:    # begins or continues a run
            for number in writer.missing():
                writer.write(number, rows, counts)    # {column: [n] array}, and the counts of the part
            writer.finish()                           # only now does `load` see the set
    df = store.load("results/a")

A set is a folder with Parquet parts and a manifest (schema.py has the columns, folder.py the layout on disk). For sets
that do not fit in memory use other tools: DuckDB and Polars read `<folder>/*.parquet` directly.
"""

from dsx.results.reading import load, load_chosen, load_small, read_manifest
from dsx.results.runs import create, finished
from dsx.results.writer import Writer

__all__ = ["Writer", "create", "finished", "load", "load_chosen", "load_small", "read_manifest"]
