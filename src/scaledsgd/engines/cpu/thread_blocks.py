"""The samples of threads that are kept apart: no two ever write to the same row at the same time.

Threads that share rows pass lines of the cache back and forth, and lose what they write at the same
moment. So rows are cut into blocks that are named about equally often, samples are sorted once by
the blocks that they touch, and threads follow the same schedule as the workers of a cluster: the
result is that of some serial order, whoever was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numba
import numpy as np
from numba.extending import register_jitable

from ...core.observations import Chunk
from ..base import Samples
from ..schedule import Schedule, planes, schedule
from .permutations import BLOCK
from .sample_order import MiniBatch, Next, Shard, draw_key, share

# Threads that compare three rows are kept apart up to this many. With 8 there would be 155 tasks of
# 8 groups; as it is, several threads share a group of blocks, as lock-free ones share X.
_WIDEST = 4

# With so many rows 32 pairs name one twice in an eighth of all blocks, 32 triplets in a quarter.
WIDE = 1 << 14

_MOST = 64  # threads that are kept apart: their blocks are numbered in a byte
_SEEN = 1_000_000  # samples that tell how often a row is named
_CHANCES = 8  # tasks that a sample with rows of one block may fall to


TOGETHER = Schedule(np.zeros((1, 1, 1), int), np.zeros((1, 1, 1), np.int32))  # one block


def meetings(arity: int, jobs: int, symmetric: bool) -> Schedule:
    """Who works where."""
    if arity == 2:
        return schedule(arity, min(jobs, _MOST), symmetric)
    return planes(1 << min(jobs, _WIDEST).bit_length() - 1)


class ThreadBlocks(Samples):
    """A training copy of the observations, a shard for every group of blocks."""

    def __init__(
        self, index: np.ndarray, targets: np.ndarray, block: np.ndarray, meetings: Schedule,
        rng: np.random.Generator, threads: Callable, jobs: int,
    ):  # fmt: skip
        self.index, self.targets = index, targets
        self.visits, self.groups = meetings.groups.shape[:2]
        # Several threads to a group, if there are more of them.
        self._helpers = max(1, jobs // self.groups)
        wide = len(block) >= WIDE
        if meetings.blocks == 1:
            self.shards = [Shard(index, targets, rng, threads, jobs, wide)]
            return
        ends = sort(index, targets, block, _whole(meetings))
        parts = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        seeds = rng.spawn(len(parts))

        def shard(number: int) -> Shard:
            part = parts[number]
            return Shard(index[part], targets[part], seeds[number], in_turn, 1, wide)

        self.shards: list[Shard] = threads(shard, list(range(len(parts))))

    def __len__(self) -> int:
        return len(self.targets)

    def fair(self, count: int) -> Chunk:
        """So many samples from all over."""
        if count >= len(self) or len(self.shards) == 1:
            return super().fair(count)
        ends = [share((0, count, len(self)), len(shard))[1] for shard in self.shards]
        some = [(d.index[:end], d.targets[:end]) for d, end in zip(self.shards, ends, strict=True)]
        return Chunk(*(np.concatenate(column) for column in zip(*some, strict=True)))

    def epoch(self, rng: np.random.Generator) -> Iterator[Next]:
        """All samples, of which the engine runs as many at a time as it is told to."""
        self._key, self._done = draw_key(rng), 0
        self._order = rng.permutation(self.visits).tolist()
        yield Next(self, len(self))

    def sub_rounds(self, count: int) -> Iterator[list[Iterable[MiniBatch]]]:
        """The next samples, a share of every shard. What is in one list may run at once."""
        part = self._done, self._done + count, len(self)
        self._done += count
        for visit in self._order:
            shards = self.shards[visit * self.groups : (visit + 1) * self.groups]
            yield list(chain.from_iterable(self._tasks(shard, part) for shard in shards))

    def _tasks(self, shard: Shard, part: tuple[int, int, int]) -> list[Iterable[MiniBatch]]:
        """What each of its threads runs of a part of the epoch, without waiting for others."""
        first, last = share(part, len(shard))
        # A multiple of a block for all but the last.
        size = max(BLOCK, -(-(last - first) // self._helpers // BLOCK) * BLOCK)
        starts = range(first, last, size)
        return [shard.mini_batches(self._key, at, min(at + size, last)) for at in starts]


def in_turn(work: Callable, parts: list) -> list:
    """The threads of a thread."""
    return [work(part) for part in parts]


def _whole(meetings: Schedule) -> np.ndarray:
    """The bucket for all blocks that may be named together, by a chance that falls where rows of
    one block may go to several."""
    table = meetings.table
    if table.min() >= 0:
        return table[None]
    named = np.indices(table.shape).reshape(table.ndim, -1).T
    chances = [meetings.buckets(named, np.full(len(named), c)) for c in range(_CHANCES)]
    return np.stack(chances).reshape(_CHANCES, *table.shape).astype(np.int32)


def blocks(index: np.ndarray, rows: int, sides: list[slice], count: int) -> np.ndarray:
    """The block of every row: consecutive rows of a side, named about equally often."""
    named = np.bincount(_some(index).ravel(), minlength=rows)
    out, each = np.zeros(rows, np.uint8), count // len(sides)
    for number, side in enumerate(sides):
        out[side] = number * each + even_blocks(named[side], each)
    return out


def _some(index: np.ndarray) -> np.ndarray:
    return index[:: max(1, len(index) // _SEEN)]


def even_blocks(named: np.ndarray, count: int) -> np.ndarray:
    """Blocks of consecutive rows with about the same sum. One that is never named counts a little.

    >>> even_blocks(np.array([4, 1, 1, 2]), 2)
    array([0, 1, 1, 1])
    """
    named = named + 1e-3
    middle = np.cumsum(named) - named / 2
    return (count * middle / named.sum()).astype(int)


@register_jitable
def _bucket(index, t, block, table):
    """By its rows alone, so that it is the same wherever the sample lies."""
    i, j, k = index[t, 0], index[t, 1], index[t, index.shape[1] - 1]
    chance = ((3 * i + 5 * j + 7 * k) >> 1) % table.shape[0]
    if index.shape[1] == 2:
        return table[chance, block[i], block[j], 0]
    return table[chance, block[i], block[j], block[k]]


def sort(index, targets, block, table) -> np.ndarray:
    """Samples in the order of their buckets, in place. Returns where each bucket ends."""
    if index.shape[1] == 2:
        table = table[..., None]
    return _sort(index, targets, block, table, int(table.max()) + 1)


@numba.njit(nogil=True, cache=True)
def _sort(index, targets, block, table, buckets):
    counts = np.zeros(buckets, np.int64)
    for t in range(len(targets)):
        counts[_bucket(index, t, block, table)] += 1
    ends = np.cumsum(counts)
    heads = ends - counts
    for b in range(buckets):
        while heads[b] < ends[b]:
            t = heads[b]
            own = _bucket(index, t, block, table)
            if own == b:
                heads[b] += 1
                continue
            s = heads[own]
            heads[own] += 1
            for c in range(index.shape[1]):
                index[t, c], index[s, c] = index[s, c], index[t, c]
            targets[t], targets[s] = targets[s], targets[t]
    return ends
