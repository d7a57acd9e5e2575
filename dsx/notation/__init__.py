"""The layer notation, and everything that dsx derives from it as symbolic expressions."""
