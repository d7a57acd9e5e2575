"""The cluster as JAX pytrees: its real numbers are leaves, so a what-if is a `vmap` over them."""
