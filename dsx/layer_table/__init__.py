"""Cutting a measured table of layers: an instance of NEST, its own network and costs, solved exactly.

Sealed: nothing else of dsx imports this package but its verb, ``dsx partition --instance``. Costs are those of NEST's
tables and level networks; a model on a cluster is cut by `dsx.search` with the costs of a sweep.
"""
