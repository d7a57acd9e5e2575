"""Top and front of millions of plans with even stages: blocks of keys and choices through one compiled loop."""
