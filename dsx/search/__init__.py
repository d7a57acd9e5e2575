"""Searches: spaces of candidates, their best plans, fronts and rows, and sweeps over many spaces."""
