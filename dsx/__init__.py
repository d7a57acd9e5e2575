"""dsx: a design-space explorer for distributed training.

    import dsx
    df = dsx.load("results/gpt3-1t-b200")                  # a pandas DataFrame; units in df.attrs
    best = dsx.pareto(df, "step_time_s", "peak_bytes")     # the feasible rows that nothing beats
    dsx.plot.save(dsx.plot.front(df), "front.png")
    table = dsx.compare(df, dsx.load("results/141-gb"))    # where the best plan changes, and by how much

The names are resolved when they are first used, so that `import dsx` alone loads neither JAX nor pandas.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsx.results import plot as plot
    from dsx.results.compare import compare as compare
    from dsx.results.pareto import pareto as pareto
    from dsx.results.store import load as load

    __version__: str

__all__ = ["__version__", "compare", "load", "pareto", "plot"]


def __getattr__(name: str) -> Any:
    match name:
        case "__version__":
            value = importlib.import_module("importlib.metadata").version("dsx")
        case "compare":
            value = importlib.import_module("dsx.results.compare").compare
        case "load":
            value = importlib.import_module("dsx.results.store").load
        case "pareto":
            value = importlib.import_module("dsx.results.pareto").pareto
        case "plot":
            value = importlib.import_module("dsx.results.plot")
        case _:
            raise AttributeError(f"module 'dsx' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
