"""Execution traces (MLCommons Chakra): write those of a plan or a layer; inspect and replay those of any writer.

    job = dsx.Job(model="gpt3-5b", cluster="h100-nvs8", num_gpus=8, global_batch_size=128)
    dsx.trace.write(job, tp=8, out="traces/gpt3-5b")
    print(dsx.trace.inspect("traces/gpt3-5b"))
    print(dsx.trace.replay("traces/gpt3-5b", cluster="h100-nvs8"))

A folder has a file for each rank, a file of the process groups, and a manifest (docs/traces.md).
"""

from dsx.verbs.trace_inspect import inspect
from dsx.verbs.trace_replay import replay
from dsx.verbs.trace_write import ONE_DOMAIN, WrittenTrace, write, write_layer, write_row

__all__ = ["ONE_DOMAIN", "WrittenTrace", "inspect", "replay", "write", "write_layer", "write_row"]
