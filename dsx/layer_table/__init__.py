"""Cut a measured table of layers into pipeline stages, exactly: instances of NEST with their own network and costs.

Only ``dsx partition --instance`` uses this package. Its costs are those of NEST's tables and level networks; to cut a
model on a cluster, `dsx.search` uses the costs of a sweep.
"""
