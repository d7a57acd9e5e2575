"""The machine as records: real-valued facts are leaves, so a what-if is a `vmap` over them."""
