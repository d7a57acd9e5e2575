"""Candidates: rules, and the enumeration of all of them."""
