"""Pure JAX functions from work and hardware to seconds and bytes."""
