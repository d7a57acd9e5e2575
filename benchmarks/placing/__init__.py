"""What `benchmarks/place.py` measures, a module for each table."""
