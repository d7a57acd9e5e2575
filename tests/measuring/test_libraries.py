"""Libraries that run kernels, and measurements of a network and a device."""

import jax
import numpy as np
import pytest
from measuring.layers import cases

from dsx.errors import InputError, UnknownNameError
from dsx.measuring import array_library as libraries
from dsx.measuring import jax_library as collectives
from dsx.measuring.array_library import (
    KernelProgram,
    Operand,
    Step,
    Timing,
    attention_of,
    find_library,
    run,
    subscripts,
)
from dsx.measuring.jax_library import JaxLibrary, collective_times, device_rates, groups
from dsx.notation.sharded_layer import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

TOKENS = Operand(("b", "s", "e"), (2, 4, 6))
JAX = JaxLibrary()
WEIGHT = Operand(("e",), (6,))


def program(kind, *inputs, shape="same", result=TOKENS):
    return KernelProgram(inputs, (Step(kind, shape, "", tuple(range(len(inputs)))),), (result,), (len(inputs),))


def computed(made, *arrays):
    (found,) = run(made, [jax.numpy.asarray(array) for array in arrays], JAX.apply)
    return np.asarray(found, dtype=float)


X = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
Z = np.random.default_rng(1).standard_normal((2, 4, 6)).astype(np.float32)
GAMMA = np.linspace(0.5, 1.5, 6, dtype=np.float32)
SILU = X / (1 + np.exp(-X))


@pytest.mark.parametrize(
    ("kind", "arrays", "expected"),
    [
        ("norm", (X, GAMMA), X / np.sqrt((X**2).mean(-1, keepdims=True)) * GAMMA),
        ("layernorm", (X, GAMMA, GAMMA), (X - X.mean(-1, keepdims=True)) / X.std(-1, keepdims=True) * GAMMA + GAMMA),
        ("swiglu", (X, Z), SILU * Z),
        ("silu", (X,), SILU),
        ("squared_relu", (X,), np.maximum(X, 0) ** 2),
        ("add", (X, Z), X + Z),
        ("bias", (X, GAMMA), X + GAMMA),
        ("softmax", (X,), np.exp(X) / np.exp(X).sum(-1, keepdims=True)),
    ],
)
def test_functions_of_jax_are_the_operators(kind, arrays, expected):
    inputs = [TOKENS if array.ndim == 3 else WEIGHT for array in arrays]
    assert np.allclose(computed(program(kind, *inputs), *arrays), expected, atol=1e-3)


def test_rotations_and_subscripts():
    heads = Operand(("b", "s", "g", "k"), (1, 5, 3, 8))
    x = np.random.default_rng(2).standard_normal(heads.shape).astype(np.float32)
    y = computed(program("rotary", heads, result=heads), x)
    assert np.allclose(y[:, 0], x[:, 0], atol=1e-6)
    assert np.allclose(y[..., :4] ** 2 + y[..., 4:] ** 2, x[..., :4] ** 2 + x[..., 4:] ** 2, atol=1e-4)
    assert not np.allclose(y[:, 1], x[:, 1])
    # Letters become subscripts.
    a, b = Operand(("b", "s", "kv"), (1, 2, 3)), Operand(("kv", "e"), (3, 4))
    assert subscripts((a, b), Operand(("b", "s", "e"), (1, 2, 4))) == "abc,cd->abd"


@pytest.mark.parametrize("mask", [(), ("full",)])
def test_attention_is_that_of_its_definition(mask):
    (case,) = (one for one in cases(*mask) if (one.operator, one.direction) == ("attention", 0))
    queries, *others = JAX.arrays(case.program.inputs, "fp32")
    (fused,) = JAX.function(case.program)(queries, *others)
    # The definition has no scale; a fused kernel divides by the root of the head dimension.
    (plain,) = run(case.program, [queries / jax.numpy.sqrt(8.0), *others], JAX.apply)
    assert attention_of(case.program).causal == (not mask)
    assert fused.shape == plain.shape
    assert np.allclose(fused, plain, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_every_kernel_of_a_layer_runs(name):
    if name == "torch":
        pytest.importorskip("torch", reason="torch is no dependency of dsx")
    runs = find_library(name)
    for case in cases("rotary", "gated", "qk_norm") + cases("layernorm", "qkv_bias"):
        if case.program is None:
            result = runs.multiply(*case.shape, "fp32")()
            m, n, _, batch = case.shape
            assert tuple(result.shape) == ((batch, m, n) if batch > 1 else (m, n))
            continue
        assert not case.fault
        call = (runs.backward if case.direction else runs.forward)(case.program, "fp32")
        results = call()
        runs.wait(results)
        outputs = [case.program.values[position] for position in case.program.outputs]
        wanted = [one for one in case.program.inputs if not one.below] if case.direction else outputs
        assert [tuple(one.shape) for one in results] == [one.shape for one in wanted]


def test_backwards_and_names_of_libraries():
    (case,) = (one for one in cases("gated") if (one.operator, one.direction) == ("swiglu", 1))
    arrays = JAX.arrays(case.program.inputs, "fp32")
    expected = jax.grad(lambda given: run(case.program, given, JAX.apply)[0].sum())(arrays)
    found = JAX.backward(case.program, "fp32")()
    assert len(found) == 2
    assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(found, expected, strict=True))
    # Jax says what it runs on.
    runs = JAX
    assert (runs.accelerated, runs.name) == (False, "jax")
    assert runs.software == f"jax {jax.__version__}"
    assert "CPU" in runs.device and runs.memory_bytes > 1e8


def test_a_library_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="--with torch: torch is not installed here"):
        find_library("torch")
    with pytest.raises(UnknownNameError, match="numpy"):
        find_library("numpy")
    assert find_library(None).name == "jax"


def test_groups_and_rates_of_a_device(monkeypatch):
    assert groups() == [2]
    for count, expected in ((1, []), (6, [2, 4, 6]), (8, [2, 4, 8])):
        monkeypatch.setattr(jax, "local_device_count", lambda count=count: count)
        assert groups() == expected

    monkeypatch.undo()

    # A device has rates.
    def timed(call, wait):
        wait(call())
        return Timing(2.0, 0.0, 3)

    monkeypatch.setattr(collectives, "_ELEMENTS", 1000)
    monkeypatch.setattr(collectives, "timed_briefly", timed)
    found = device_rates(JaxLibrary(), "fp32")
    # One multiply, after which a larger one would take too long.
    assert found.matrix_flops == pytest.approx(2 * 1024**3 / 2.0)
    assert found.bandwidth == pytest.approx(3 * 4 * 1000 / 2.0)
    assert found.vector_flops == pytest.approx(2 * 64 * 1000 / 2.0)


def test_each_collective_moves_the_whole_tensor(monkeypatch):
    made = []

    def timed(call, wait):
        made.append(np.asarray(call()))
        return Timing(1e-3, 0.0, 3)

    monkeypatch.setattr(collectives, "timed_briefly", timed)
    found = [*collective_times(2, (64,))]
    assert [(one.kind, one.num_devices, one.num_bytes) for one in found] == [
        (kind, 2, 64) for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL)
    ]
    # Sixteen elements on each of two devices, except what a scatter leaves: half of them, each the sum of two ones.
    assert [one.size for one in made] == [32, 16, 32, 32]
    assert [float(one.max()) for one in made] == [1.0, 2.0, 2.0, 1.0]
