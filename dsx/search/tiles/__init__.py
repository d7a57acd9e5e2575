"""The best plans and the front of millions of plans with even cuts: keys and choices through one compiled loop."""
