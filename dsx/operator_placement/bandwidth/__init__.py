"""Bandwidth between servers, found together with the placement that needs it."""
