"""The roofline by hand: 500 TFLOP/s matrix, 50 TFLOP/s vector, 1 TB/s and 10 us a launch reached."""

import jax.numpy as jnp
import pytest
from cost.records import machine, make_assumptions

from dsx.cost.roofline import compute_time, exposed_memory_time, sustained_flops


@pytest.mark.parametrize(
    ("matrix", "vector", "launches", "seconds"),
    [
        (5e12, 0.0, 1.0, 0.010_01),
        (0.0, 5e11, 1.0, 0.010_01),
        (5e12, 5e11, 1.0, 0.020_01),  # one after the other
        (0.0, 0.0, 1.0, 10e-6),
        (0.0, 0.0, 0.0, 0.0),  # what does not run costs nothing
    ],
)
def test_compute_time(matrix, vector, launches, seconds):
    found = compute_time(
        jnp.asarray(matrix), jnp.asarray(vector), jnp.asarray(launches), machine().device, make_assumptions()
    )
    assert float(found) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("num_bytes", "compute_s", "seconds"),
    [(3e10, 0.010, 0.020), (3e10, 0.030, 0.0), (3e10, 0.050, 0.0), (0.0, 0.010, 0.0), (3e10, 0.0, 0.030)],
)
def test_memory_time_that_compute_does_not_hide(num_bytes, compute_s, seconds):
    arguments = jnp.asarray(num_bytes), jnp.asarray(compute_s), jnp.asarray(1.0)
    found = exposed_memory_time(*arguments, machine().device, make_assumptions())
    assert float(found) == pytest.approx(seconds, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("hidden", "seconds"), [(1.0, 0.030), (0.5, 0.030_005), (0.0, 0.030_01)])
def test_a_launch_comes_once_before_traffic_unless_traffic_hides_it(hidden, seconds):
    assumptions, launches = make_assumptions(launch_hidden=hidden), jnp.asarray(1.0)
    zero = jnp.asarray(0.0)
    compute_s = compute_time(zero, zero, launches, machine().device, assumptions)
    found = compute_s + exposed_memory_time(jnp.asarray(3e10), compute_s, launches, machine().device, assumptions)
    assert float(found) == pytest.approx(seconds, rel=1e-12)
    # Where compute is longer than traffic there is one launch, whatever traffic hides.
    compute_s = compute_time(jnp.asarray(5e13), zero, launches, machine().device, assumptions)
    found = compute_s + exposed_memory_time(jnp.asarray(3e10), compute_s, launches, machine().device, assumptions)
    assert float(found) == pytest.approx(0.100_01, rel=1e-12)


def test_an_eighth_of_the_power_runs_at_half_of_the_clock():
    assumptions = make_assumptions(clock_exponent=1 / 3)
    full, half = (float(sustained_flops(machine(power_share=share).device, assumptions)) for share in (1.0, 0.125))
    assert full == 5e14
    assert half == pytest.approx(full / 2, rel=1e-12)
