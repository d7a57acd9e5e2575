"""Placement of the single operators of a training step on the GPUs of a small cluster.

Operators that do not depend on each other run at once on several devices, and tensors between devices take time. The
package reduces a graph (`reduction.py`), searches placements (`search.py`), bounds the shortest step of the graph as it
is (`bounds.py`, `heavy_bound.py`), and checks what it found by a validator that shares nothing with the searches.

Sources: Efficient Device Placement for Distributed DNN Training (IEEE ICC 2025), called QuickP; and the thesis Joint
Optimization of Algebraic Transformation, Device Placement, and Network Bandwidth Allocation (2025).
"""
