"""Strict JAX, two CPU devices, and examples that are the same on every CI run."""

import os

import hypothesis
import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)

hypothesis.settings.register_profile("dsx", deadline=None, max_examples=50, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("dsx")
