"""The layer notation and what follows from it, symbolically."""
