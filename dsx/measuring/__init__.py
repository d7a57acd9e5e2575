"""Times of kernels and collectives on the device at hand, and what the device reaches."""
