"""What a step of a plan does on a rank: as it is priced, from the derived layers, and as a trace has it.

Both are numbers by key. A launch counts under its kernel: ("matrix", kernel, direction) and likewise. A communication
counts under (kind, axis, bytes that a rank puts in); sends and receives have no axis.
"""

from collections import Counter

from written_traces import communications

from dsx.config.model_file import ELEMENT_BYTES
from dsx.cost.layer import WeightGroup, weight_groups
from dsx.notation.expressions import evaluate
from dsx.notation.model import OF_STAGE, define, divides
from dsx.notation.recompute import recomputation
from dsx.notation.syntax import AXES
from dsx.notation.work import BACKWARD, FORWARD
from dsx.plans.choices import NONE_CODE, regions_of
from dsx.plans.layer_layout import even_chunks
from dsx.schedules.order import of_pipeline
from dsx.schedules.schedules import SCHEDULES
from dsx.traces.codec import ACCUMULATION, COMP

AG, AR = "all-gather", "all-reduce"
WORK = ("matrix", "vector", "bytes", "unfused", "launches")
TEXTS = {FORWARD: "forward", BACKWARD: "backward"}


class Priced:
    """The totals of a step by stage; `plan` has its choices as codes."""

    def __init__(self, problem, plan):
        (self.model,) = problem.models
        self.plan, self.assumed, self.limits = plan, problem.assumptions_spec, problem.limits()
        self.layers = [layer for layer, count in self.model.layers for _ in range(count)]
        degrees = {axis: plan[axis] for axis in AXES}
        self.sizes = {"b": plan["microbatch_size"], "s": problem.sequence_length, "panels": plan["panels"], **degrees}
        for name in ELEMENT_BYTES:
            self.sizes[name] = getattr(self.assumed, name)
        self.holds = of_pipeline(SCHEDULES[plan["schedule"]].holds, plan["pp"])
        self.chunks = even_chunks(self.limits.chain, plan["pp"], plan["vpp"], self.holds)
        chains = self.holds.chains(plan["pp"], plan["vpp"])
        self.stages = [stage for chain in chains for stage in chain]
        self.passes = plan["num_microbatches"] // self.holds.num_chains  # of each chunk

    def of_stage(self, stage):
        own = [chunk for chunk, of in enumerate(self.stages) if of == stage]
        held = [at for chunk in own for at in self.chunks[chunk % len(self.chunks)]]
        stored = {at for chain in range(self.holds.num_chains) for at in self._stored(own, chain)}
        found = Counter()
        for at in held:
            code = self.plan["recompute"] if self._is_body(at) and at not in stored else NONE_CODE
            layer = self._layer(at)
            for key, amount in layer.of_microbatch(code).items():
                found[key] += self.passes * amount
            found += self._of_weights(layer)
        for at in dict.fromkeys(held):
            found += self._of_replicated_weights(at)
        return found + self._between_stages(stage, own) + self._of_tied_weight(held)

    def _stored(self, own, chain):
        """The layers of a stage that save all activations, of its chunks in a chain."""
        length = len(self.chunks)
        held = {at for chunk in own if chunk // length == chain for at in self.chunks[chunk % length]}
        body = sorted(at for at in held if self._is_body(at))
        return body[max(len(body) - self.plan["stored_layers"], 0) :]

    def _layer(self, at):
        return _Layer(self.layers[at], self.model.dimensions, self.sizes, self.assumed)

    def _is_body(self, at):
        chain = self.limits.chain
        return chain.first <= at < chain.num_layers - chain.last

    def _groups(self, layer):
        """The bytes of each weight group, in a pass and once a step, the ranks that share them, replicas of a shard."""
        weights, plan = layer.derived.weights, self.plan
        groups = weight_groups([weight.reduced_over for weight in weights], [weight.over_ep for weight in weights])
        for ranks, members in groups.items():
            apart = plan["ep"] if ranks.over_ep else 1
            holders = int(WeightGroup(*ranks).members(plan, plan["dp"] * self.holds.num_chains)) // apart
            replicas = plan["zero_replicas"] if plan["zero_stage"] else 1
            whole, tied = (
                sum(layer.number(weights[index].bytes) for index in members if weights[index].tied or every)
                for every in (True, False)
            )
            # A stage with both layers of a tied weight does once what a step does once.
            once = whole - (tied if plan["pp"] == 1 or not self.holds.in_rounds else 0)
            yield whole, once, holders // replicas, replicas

    def _of_weights(self, layer):
        stage, found = self.plan["zero_stage"], Counter()
        for whole, once, shards, replicas in self._groups(layer):
            for one in OF_STAGE[stage]:
                of_group = whole if one.every == "microbatch" else once
                if shards > 1 and of_group:
                    moved = of_group if one.of == "weights" else self._gradients(of_group)
                    size = moved // shards if one.kind == AG else moved
                    found[one.kind, "dp", size] += self.passes if one.every == "microbatch" else 1
            if replicas > 1 and once:
                found[AR, "dp", self._gradients(once) // shards] += 1
        return found

    def _gradients(self, weight_bytes):
        return weight_bytes * self.assumed.gradient_bytes // self.assumed.weight_bytes

    def _of_replicated_weights(self, at):
        found = Counter()
        layer = self._layer(at)
        for axis in ("tp", "tp2") if self.assumed.charge_replicated_gradients else ():
            shared = [w for w in layer.derived.weights if axis in w.reduced_over and not w.over_ep]
            if shared and self.plan[axis] > 1:
                found[AR, axis, self._gradients(sum(layer.number(weight.bytes) for weight in shared))] += 1
        return found

    def _of_tied_weight(self, held):
        last = len(self.layers) - 1
        ends = {at for at in (0, last) if at in held}
        head = self._layer(last)
        tied = [weight for weight in head.derived.weights if weight.tied]
        if not tied or not ends or self.plan["pp"] == 1 or not self.holds.in_rounds:
            return Counter()
        size = self._gradients(sum(head.number(weight.bytes) for weight in tied))
        if divides(self.plan["zero_stage"], "gradient"):
            size //= next(iter(self._groups(head)))[2]
        return Counter({(AR, "pp", size): len(ends)})

    def _between_stages(self, stage, own):
        """A chunk sends its result on and its gradient back, and receives what others send."""
        found, length = Counter(), len(self.chunks)
        body = self._layer(self.limits.chain.first)
        for chunk in own:
            for other in (chunk - 1, chunk + 1):
                same_chain = 0 <= other < len(self.stages) and other // length == chunk // length
                if same_chain and self.stages[other] != stage:
                    size = body.number(body.derived.boundary_bytes)
                    found["send", "", size] += self.passes
                    found["receive", "", size] += self.passes
        return found


class _Layer:
    """A layer with plain numbers."""

    def __init__(self, derived, dimensions, sizes, assumed):
        self.derived, self.assumed = derived, assumed
        self.values = define(derived, {**dimensions, **sizes})

    def number(self, expr):
        found = evaluate(expr, self.values)
        assert found == int(found)
        return int(found)

    def of_microbatch(self, code):
        """A forward and a backward, with what the backward recomputes."""
        everything = range(len(self.derived.kernels))
        found = self._kernels(everything, FORWARD) + self._kernels(everything, BACKWARD)
        found += self._collectives(everything, FORWARD) + self._collectives(everything, BACKWARD)
        regions = regions_of(code)
        if regions is None:
            return found + self._kernels(everything, FORWARD) + self._collectives(everything, FORWARD)
        again = recomputation(self.derived, regions)
        found += self._kernels(again.repeated, FORWARD)
        return found + self._collectives((*again.repeated, *again.completed), FORWARD)

    def _kernels(self, chosen, direction):
        found = Counter()
        for kernel in (self.derived.kernels[index] for index in chosen):
            key = kernel.name, TEXTS[direction]
            work = kernel.work[direction]
            for name in ("matrix", "vector", "bytes", "unfused"):
                found[name, *key] += self.number(getattr(work, name))
            per_kernel = int(kernel.runs) if self.assumed.launches == "operators" else kernel.launches[direction]
            found["launches", *key] += per_kernel if kernel.runs else 0
            for multiply in work.multiplies:
                sizes = (multiply.rows, multiply.columns, multiply.contracted, multiply.batch)
                grouped = multiply.linear and multiply.batch != 1
                marks = (
                    multiply.linear, multiply.of_weight, kernel.fused, grouped, direction == BACKWARD, multiply.wide,
                )  # fmt: skip
                bits = sum(2**bit * bool(mark) for bit, mark in enumerate(marks))
                found["multiply", *key, *map(self.number, sizes), bits] += self.number(multiply.flops)
        return found

    def _collectives(self, chosen, direction):
        found = Counter()
        for index in chosen:
            for one in self.derived.kernels[index].collectives[direction]:
                ranks, volume = self.values[one.axis], self.number(one.bytes)
                if ranks == 1:
                    continue
                if one.ring:  # all blocks but the own one
                    found["send", "", volume // ranks] += ranks - 1
                    found["receive", "", volume // ranks] += ranks - 1
                elif one.panelled:
                    panels = self.values["panels"]
                    assert volume % panels == 0
                    found[one.kind, one.axis, volume // panels] += panels
                else:
                    found[one.kind, one.axis, volume // ranks if one.kind == AG else volume] += 1
        return found


def of_trace(trace):
    """The totals of a trace, without gradient accumulation and what the end of a step computes."""
    found = communications(trace)
    for row, node in enumerate(trace.types.tolist()):
        if node != COMP or not trace.kernels.of(row) or trace.op_types.of(row) == ACCUMULATION:
            continue
        key = tuple(trace.kernels.of(row).split("/")[1:3])
        size, launches = int(trace.tensor_size[row]), int(trace.launches[row])
        found["matrix", *key] += int(trace.matrix_flops[row])
        found["vector", *key] += int(trace.vector_flops[row])
        found["bytes", *key] += size if size > 1 else 0  # a trace has no size of 0, and no tensor of a byte
        found["unfused", *key] += max(int(trace.unfused_bytes[row]), 0)
        found["launches", *key] += 1 if launches < 0 else launches
        numbers = trace.multiplies.of(row).tolist()
        for rows, columns, contracted, batch, flops, bits in zip(*[iter(numbers)] * 6, strict=True):
            found["multiply", *key, rows, columns, contracted, batch, bits] += flops
    return found


def without_zeros(totals):
    return {key: amount for key, amount in totals.items() if amount}
