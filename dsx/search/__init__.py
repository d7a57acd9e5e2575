"""Pricing whole spaces and keeping what was asked for."""
