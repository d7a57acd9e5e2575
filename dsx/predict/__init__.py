"""Predict measured runs; those with the same structure are priced in one batch."""
