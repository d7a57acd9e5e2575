"""Execution traces: a plan as MLCommons Chakra files, one for each rank, and what reads, checks and replays them."""
