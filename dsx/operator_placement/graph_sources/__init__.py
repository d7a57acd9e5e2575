"""Graphs of operators from files, steps of JAX, graphs of torch and the layers of models, with their times."""
