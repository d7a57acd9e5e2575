"""Measured runs: read from tables, completed, and compared with what dsx predicts for them."""
