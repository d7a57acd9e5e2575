"""Strict JAX, two CPU devices, and examples that are the same on every CI run."""

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import jax
import pytest
import shapes

ROOT = Path(__file__).parent.parent
# What one test process compiles, the other processes and later runs need not: most of the time goes there.
_COMPILED = ROOT / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)

hypothesis.settings.register_profile("dsx", deadline=None, max_examples=50, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("dsx")

shapes.install("dsx.cost")

_LONGEST = "test_frozen_predictions"


@pytest.fixture(scope="session")
def benchmark_script() -> Iterator[Callable[[str], ModuleType]]:
    """Import a script of benchmarks/ by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the file that takes longest, or one process would wait for it at the end."""
    items.sort(key=lambda item: _LONGEST not in item.nodeid)
