"""Result sets on disk: what the rest of dsx uses of them.

    if store.finished("results/a", manifest) is None:
        with store.create("results/a", manifest, num_parts) as writer:    # begins, or goes on with what is there
            for number in writer.missing():
                writer.write(number, rows, counts)    # {column: [n] array}, and the counts of the part
            writer.finish()                           # only now does `load` see the set
    df = store.load("results/a")

A set is a folder of Parquet parts and a manifest (schema.py has its columns, folder.py how it lies on disk). Reading
one that does not fit in memory is left to others: DuckDB and Polars read `<folder>/*.parquet` as it is.
"""

from dsx.results.reading import load, load_chosen, read_manifest
from dsx.results.runs import create, finished
from dsx.results.writer import Writer

__all__ = ["Writer", "create", "finished", "load", "load_chosen", "read_manifest"]
