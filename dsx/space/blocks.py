"""The space as blocks: shard keys times the global choices that go with them.

What a layer costs depends on the shard key alone; pipeline depth, data parallelism, batch and GPU count
combine such costs. A block is all that fits together: keys of the same GPUs per replica, the same GPUs of a
fast domain taken by the key, ep groups that span the same number of replicas, and the same microbatch size.
Within it every key goes with every choice, so the space is a list of rectangles and no candidate is ever a
Python object.

The choices of a block are products again: a placement (GPU count, pipeline, replicas and their shares of a
fast domain) times the batch sizes that dp and the microbatch size divide. Only the factors are stored: what
blocks share is there once, and any range of candidates can be made without those before it.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsx.space.choices import CHOICE_COLUMNS, CROSSED, PLACEMENT_COLUMNS
from dsx.space.codes import EVEN, OPTIMAL, Open
from dsx.space.divisors import divisors
from dsx.space.enumerate import Arrays, Bounds, changes, cross, grid, take
from dsx.space.experts import REPLICA_AXES, spans
from dsx.space.limits import Limits, fill, placed
from dsx.space.plan_rules import RULES
from dsx.space.tiers import choice_shares, order_fits


@dataclass(frozen=True, slots=True)
class Segments:
    """Choices of some blocks: S segments, each one placement times a run of batch sizes.

    The choices of the segments, one after the other, are the choices of the blocks.
    """

    block: np.ndarray  # [S] which block
    placement: np.ndarray  # [S] column of `Blocks.placements`
    first: np.ndarray  # [S] where the run begins in `Blocks.batches`
    length: np.ndarray  # [S] batch sizes in the run

    def take(self, where: np.ndarray | slice) -> "Segments":
        """Return some of the segments."""
        return Segments(self.block[where], self.placement[where], self.first[where], self.length[where])

    def singly(self) -> "Segments":
        """Return one segment per choice."""
        block, placement = (np.repeat(column, self.length) for column in (self.block, self.placement))
        return Segments(block, placement, self.positions(), np.ones_like(block))

    def positions(self) -> np.ndarray:
        """Return, for each choice, where its batch size lies in `Blocks.batches`."""
        before = np.cumsum(self.length) - self.length
        return np.repeat(self.first - before, self.length) + np.arange(self.length.sum())


class Blocks:
    """All blocks of a space, B of them, in a fixed order.

    Attributes:
        keys: positions in the key table, block after block.
        first_key: [B+1] where the keys of a block begin in `keys`.
        microbatch_size: [B] sequences of a microbatch.
        num_choices: [B] choices of a block.
        first_candidate: [B+1] candidates of the blocks before.
        placements: [len(PLACEMENT_COLUMNS), P] placements, those of one size of replica together.
        wider: {<axis>_<tier>: [P]} stages and replicas in a unit of each tier between fast domain and outermost.
        batches: runs of batch sizes; those that a dp and a microbatch size divide are one run.
    """

    def __init__(self, keys: Arrays, bounds: Bounds) -> None:
        replica = np.prod(np.stack([keys[axis] for axis in REPLICA_AXES]), axis=0)
        sizes = np.stack([replica, placed(keys, REPLICA_AXES), *spans(keys, bounds.expert_axes)])
        order = np.lexsort((keys["microbatch_size"], *sizes[::-1]))
        ordered, microbatch_size = sizes[:, order], keys["microbatch_size"][order]
        begins = np.flatnonzero(changes(*ordered, microbatch_size))
        of_block, microbatch_size = ordered[:, begins], microbatch_size[begins]
        sizes = np.flatnonzero(changes(*of_block))
        domains = fill(np.array(bounds.num_gpus), bounds.nvs_size).tolist()
        tables = [_placements(size, domains, bounds) for size in of_block[:, sizes].T.tolist()]
        self.placements = np.concatenate(tables, axis=1) if tables else np.zeros((len(PLACEMENT_COLUMNS), 0), np.int64)
        self.wider = _wider(of_block[:, sizes], tables, bounds)
        self._first_placement = np.concatenate([[0], np.cumsum([table.shape[1] for table in tables], dtype=np.int64)])
        self._size = np.cumsum(np.isin(np.arange(len(begins)), sizes)) - 1  # [B] which size of replica
        self._make_batches(microbatch_size, bounds)

        num_keys = np.diff(np.concatenate([begins, [len(order)]]))
        num_choices = np.concatenate([self._lengths(size).sum(axis=1) for size in range(len(sizes))] or [begins])
        used = num_choices > 0
        self.keys = order[np.repeat(used, num_keys)]
        self.first_key = np.concatenate([[0], np.cumsum(num_keys[used])])
        self.microbatch_size = microbatch_size[used]
        self.num_choices = num_choices[used]
        self.first_candidate = np.concatenate([[0], np.cumsum(num_keys[used] * num_choices[used])])
        self._size, self._microbatch = self._size[used], self._microbatch[used]

    def __len__(self) -> int:
        return len(self.num_choices)

    @property
    def size(self) -> int:
        """Candidates of all blocks."""
        return int(self.first_candidate[-1])

    def _make_batches(self, microbatch_size: np.ndarray, bounds: Bounds) -> None:
        """Make the runs of batch sizes, and the table that finds the run of a dp and a microbatch size."""
        known, self._microbatch = np.unique(microbatch_size, return_inverse=True)
        dp, pp, vpp = (self.placements[PLACEMENT_COLUMNS.index(name)] for name in ("dp", "pp", "vpp"))
        # Interleaved, microbatches go through the pipeline in groups of its length.
        pairs, self._dp = np.unique(np.stack([dp, np.where(vpp > 1, pp, 1)]), axis=1, return_inverse=True)
        degrees, groups = pairs
        wanted = np.stack([known[:, None] * degrees[None], np.broadcast_to(groups, (len(known), len(groups)))])
        unique, where = np.unique(wanted.reshape(2, -1), axis=1, return_inverse=True)
        runs = [_multiples(sequences, group, bounds) for sequences, group in unique.T.tolist()]
        self.batches = np.concatenate([*runs, np.zeros(0, dtype=np.int64)])
        lengths = np.array([len(run) for run in runs], dtype=np.int64)
        where = where.reshape(len(known), len(degrees))
        self._run_length, self._run_first = lengths[where], (np.cumsum(lengths) - lengths)[where]

    def _lengths(self, size: int) -> np.ndarray:
        """Return [blocks of a size of replica, its placements] batch sizes."""
        return self._run_length[np.ix_(self._microbatch[self._size == size], self._dp[self._slice(size)])]

    def _slice(self, size: int) -> slice:
        return slice(self._first_placement[size], self._first_placement[size + 1])

    def segments(self, low: int, high: int) -> Segments:
        """Return the choices of the blocks from `low` up to `high`, block after block."""
        parts: list[list[np.ndarray]] = []
        for size in np.unique(self._size[low:high]).tolist():
            blocks = low + np.flatnonzero(self._size[low:high] == size)
            table = np.ix_(self._microbatch[blocks], self._dp[self._slice(size)])
            length = self._run_length[table]
            row, column = np.nonzero(length)
            first = self._run_first[table][row, column]
            parts.append([blocks[row], column + self._first_placement[size], first, length[row, column]])
        if not parts:
            parts.append([np.zeros(0, dtype=np.int64)] * 4)
        return Segments(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def choices(self, segments: Segments) -> Arrays:
        """Return the choices of segments as columns."""
        return self.choices_at(
            np.repeat(segments.placement, segments.length),
            self.batches[segments.positions()],
            np.repeat(self.microbatch_size[segments.block], segments.length),
        )

    def choices_at(self, placement: np.ndarray, batch: np.ndarray, microbatch_size: np.ndarray) -> Arrays:
        """Return [N] choices as columns; `placement` are columns of `placements`."""
        found = dict(zip(PLACEMENT_COLUMNS, self.placements[:, placement], strict=True))
        found["global_batch_size"] = batch
        found["num_microbatches"] = batch // (found["dp"] * microbatch_size)
        found |= {name: column[placement] for name, column in self.wider.items()}
        return {name: found[name] for name in (*CHOICE_COLUMNS, *self.wider)}

    def rows(self, start: int, stop: int) -> tuple[np.ndarray, Arrays]:
        """Return (positions in the key table, choices) of the candidates from `start` up to `stop`.

        Within a block the choices of the first key come first.
        """
        low = int(np.searchsorted(self.first_candidate, start, side="right")) - 1
        high = int(np.searchsorted(self.first_candidate, stop, side="left"))
        segments = self.segments(low, high)
        first_choice = np.concatenate([[0], np.cumsum(self.num_choices[low:high])])
        begins = np.maximum(self.first_candidate[low:high], start)
        ends = np.minimum(self.first_candidate[low + 1 : high + 1], stop)
        block = np.repeat(np.arange(low, high), ends - begins)
        within = np.arange(start, stop) - self.first_candidate[block]
        key, choice = np.divmod(within, self.num_choices[block])
        made = self.choices(segments)
        choice += first_choice[block - low]
        return self.keys[self.first_key[block] + key], {name: column[choice] for name, column in made.items()}

    def rows_at(self, candidates: np.ndarray) -> tuple[np.ndarray, Arrays]:
        """Return (positions in the key table, choices) of [N] candidates anywhere; for a range `rows` is faster."""
        block = np.searchsorted(self.first_candidate, candidates, side="right") - 1
        key, choice = np.divmod(candidates - self.first_candidate[block], self.num_choices[block])
        placement, batch = np.zeros_like(choice), np.zeros_like(choice)
        for size in np.unique(self._size[block]).tolist():
            here = np.flatnonzero(self._size[block] == size)
            table = np.ix_(self._microbatch[block[here]], self._dp[self._slice(size)])
            ends = np.cumsum(self._run_length[table], axis=1)
            column = (ends <= choice[here, None]).sum(axis=1)
            row = np.arange(len(here))
            before = ends[row, column] - self._run_length[table][row, column]
            placement[here] = column + self._first_placement[size]
            batch[here] = self.batches[self._run_first[table][row, column] + choice[here] - before]
        made = self.choices_at(placement, batch, self.microbatch_size[block])
        return self.keys[self.first_key[block] + key], made


def _multiples(sequences: int, group: int, bounds: Bounds) -> np.ndarray:
    """Return the batch sizes that are whole groups of microbatches, of so many sequences over all replicas."""
    batch = np.array(bounds.global_batch_size, dtype=np.int64)
    batch = batch[batch % (sequences * group) == 0]
    return batch[bounds.keep_choices({"global_batch_size": batch, "num_microbatches": batch // sequences})]


def _placements(size: Sequence[int], domains: Sequence[int], bounds: Bounds) -> np.ndarray:
    """Return the placements of replicas of one size.

    That is their model-parallel GPUs, how many of those share a fast domain, and what ep groups ask of replicas
    (`dsx.space.experts.spans`). `domains` are the GPUs of a fast domain that a job of each GPU count fills.
    """
    replica, share, whole, wide, near = size
    found = [np.zeros((len(PLACEMENT_COLUMNS), 0), dtype=np.int64)]
    for number, domain in zip(bounds.num_gpus, domains, strict=True):
        if number % replica == 0 and domain % share == 0:
            replicas = _replicas(number // replica, domain // share, bounds.num_layers, bounds.open, bounds.most_stages)
            found.append(np.concatenate([np.full_like(replicas[:1], number), replicas]))
    table = np.concatenate(found, axis=1)
    columns = dict(zip(PLACEMENT_COLUMNS, table, strict=True))
    # Of the ranks that hold the same experts every copy of ZeRO's has as many: it has whole ep groups.
    nested = (columns["dp"] % (whole * columns["zero_replicas"]) == 0) & (np.gcd(wide, columns["dp_nvs"]) == near)
    ordered = order_fits(columns, bounds.open.order, replica // share, bounds.units, whole)
    return table[:, nested & ordered & bounds.keep_choices(columns)]


def _wider(sizes: np.ndarray, tables: Sequence[np.ndarray], bounds: Bounds) -> Arrays:
    """Return, by column ``<axis>_<tier>``, how placements lie on the tiers beyond the fast domain.

    `tables` are the placements of replicas of each of `sizes`.
    """
    found: Arrays = {}
    for name, unit in zip(bounds.tiers, bounds.units, strict=True):
        parts = [
            choice_shares(dict(zip(PLACEMENT_COLUMNS, table, strict=True)), replica // share, unit)
            for (replica, share), table in zip(sizes[:2].T.tolist(), tables, strict=True)
        ]
        none = np.zeros(0, dtype=np.int64)
        found |= {f"{axis}_{name}": np.concatenate([none, *(part[axis] for part in parts)]) for axis in ("pp", "dp")}
    return found


@functools.lru_cache(maxsize=4096)
def _replicas(rest: int, domain: int, num_layers: int, known: Open, most_stages: int | None) -> np.ndarray:
    """Return [columns of a placement behind num_gpus, N] ways to have `rest` stages and replicas.

    `domain` of them share a fast domain. With `most_stages` a pipeline need not divide the layers.
    """
    partition, ends = (EVEN, 0) if most_stages is None else (OPTIMAL, most_stages - num_layers)
    limits = Limits(num_layers, domain, partition=partition, num_ends=ends)
    pipelines = divisors(num_layers) if most_stages is None else np.arange(1, most_stages + 1)
    pp, pp_nvs = grid(pipelines[rest % pipelines == 0], divisors(domain))
    dp, dp_nvs = rest // pp, domain // pp_nvs
    good = (pp % pp_nvs == 0) & (dp % dp_nvs == 0)
    table = take({"pp": pp, "dp": dp, "pp_nvs": pp_nvs, "dp_nvs": dp_nvs}, good)
    # One after the other: each may have many values, of which few go with those before it.
    for choice in CROSSED:
        open_values = getattr(known, choice.name)
        every = choice.tried(num_layers, rest) if choice.tried and not open_values else open_values
        table = cross(table, choice.name, np.array(every))
        for rule in RULES:
            if choice.name in rule.reads and table.keys() >= {*rule.reads}:
                table = take(table, rule.holds(table, limits))
        if choice.alike:
            table = take(table, ~choice.alike(table) | (table[choice.name] == every[0]))
    made = np.stack([table[name] for name in PLACEMENT_COLUMNS[1:]])
    made.flags.writeable = False  # shared by all who ask again
    return made
