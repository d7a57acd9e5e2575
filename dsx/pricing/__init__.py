"""Problems and their prices: the costs of shard keys, plans, rows, cuts and single kernels."""
