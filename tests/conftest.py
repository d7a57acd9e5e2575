"""Strict JAX that compiles quickly, pricing on one of two CPU devices, and the same examples in every CI run."""

import gc
import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import jax
import pytest
import shapes

from dsx import records

ROOT = Path(__file__).parent.parent
# Most tests run what they compile once: less optimised code takes less time. Tests that price many plans run the code
# of users (the fixture `optimised`); `JAX_DISABLE_MOST_OPTIMIZATIONS=0 make test` does so in all.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
_OPTIMISE_LITTLE = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1"
jax.config.update("jax_disable_most_optimizations", _OPTIMISE_LITTLE)
# What one test process compiles, the other processes and later runs need not: most of the time goes there.
_COMPILED = ROOT / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)

hypothesis.settings.register_profile("dsx", deadline=None, max_examples=30, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("dsx")

_SHAPED = tuple(f"dsx.{package}" for package in ("cost", "plans", "pricing", "search"))  # whose annotations say shapes
shapes.install(*_SHAPED)
records.make_pytrees()
gc.disable()  # while tests are read

_LONGEST = (
    *("test_reproduction", "test_how_to", "test_readme", "test_frozen_predictions", "test_resume", "test_locks"),
    *("test_replays", "laws/test_traces", "traces/test_write", "test_calibration", "test_sweep", "test_frameworks"),
)


@pytest.fixture(scope="session", autouse=True)
def all_workers() -> Iterator[Callable[[], list[jax.Device]]]:
    """Price on one device, as on a CPU by default; two devices would compile everything twice.

    The value is the function that returns the true workers.
    """
    devices = importlib.import_module("dsx.pricing.compiled")  # after the annotations of dsx.cost are checked
    workers = devices.workers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "workers", lambda: [jax.local_devices()[0]] * 2)
        yield workers


@pytest.fixture(scope="session", autouse=True)
def models_built_once() -> Iterator[None]:
    """Derive each model of packaged layers once in a process: jobs of the tests price few models, and in all ways."""
    problem = importlib.import_module("dsx.pricing.problem")
    build, models = problem.build_model, {}

    def built(spec, assumptions, strategy, near=None):
        key = (*(stated.model_dump_json(warnings=False) for stated in (spec, assumptions)), strategy)
        own = near is not None and (
            [*near.parent.glob("*.layer")] or near.with_name(f"{assumptions.operators}.yaml").exists()
        )
        if (
            own or "DSX_PATH" in os.environ or any(".layer" in text for text in key[:3])
        ):  # definitions of the user may change
            return build(spec, assumptions, strategy, near)
        if key not in models:
            models[key] = build(spec, assumptions, strategy, None)
        return models[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "build_model", built)
        yield


@pytest.fixture(scope="session", autouse=True)
def collecting() -> None:
    """Collect young garbage alone: tests and what JAX has compiled are much, stay, and would be searched each time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 1000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Check the shapes in the functions of a package in its tests, fixtures included."""
    with shapes.checking(f"dsx.{item.path.relative_to(ROOT / 'tests').parts[0]}"):
        return (yield)


@pytest.fixture(scope="module")
def optimised() -> Iterator[None]:
    """Price with the optimised code of users, in this process and in those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
        jax.clear_caches()
        jax.config.update("jax_disable_most_optimizations", False)
        yield
        jax.clear_caches()
        jax.config.update("jax_disable_most_optimizations", _OPTIMISE_LITTLE)


@pytest.fixture(scope="module")
def float64() -> Iterator[None]:
    """Compute in double precision, as prices of plans do."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def benchmark_script() -> Iterator[Callable[[str], ModuleType]]:
    """Import a script of benchmarks/ by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module


def pytest_unconfigure() -> None:
    """Undo `collecting`: libraries complain at exit of objects that are not collected."""
    gc.unfreeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a sample leaves out, and begin with the files that take longest.

    Of the cases of a test, ``sampled(n)`` leaves every n-th to the quick tests, none if n is 0, and the others to the
    slow ones; ``sampled(n, m)`` leaves every m-th of the others to these, and the rest to ``make fuzz``. Files that
    take longest begin, as otherwise one process would wait for them at the end.
    """
    cases: Counter[str] = Counter()
    for item in items:
        if sampled := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            quick, slow = (*sampled.args, 1)[:2]
            if not quick or cases[test] % quick:
                item.add_marker("fuzz" if cases[test] % slow else "slow")
            cases[test] += 1
    items.sort(key=lambda item: not any(name in item.nodeid for name in _LONGEST))
