"""Fit an assumption set to measured runs, and estimate the errors of its predictions."""
