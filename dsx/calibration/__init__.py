"""Fitting an assumption set to measured runs, and how far it can be trusted."""
