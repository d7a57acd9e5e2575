"""The losses of network-agnostic plans, and of plans with even cuts."""
