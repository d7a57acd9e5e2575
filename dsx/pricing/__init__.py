"""From a batch of plans to their costs."""
