"""The samples of threads that are kept apart: no two ever write to the same row at the same time.

Threads that share rows pass lines of the cache back and forth, and lose what they write at the same
moment. So rows are cut into blocks that are named about equally often, samples are sorted once by
the blocks that they touch, and threads follow the same schedule as the workers of a cluster: the
result is that of some serial order, whoever was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numba
import numpy as np
from numba.extending import register_jitable

from ...core.observations import Chunk
from ..base import Samples
from ..schedule import Schedule, planes, schedule, tournament
from .negatives import Negatives
from .permutations import BLOCK
from .sample_order import MiniBatch, Next, Shard, draw_key, share

# Threads that compare three rows are kept apart up to this many. With 8 there would be 155 tasks of
# 8 groups; as it is, several threads share a group of blocks, as lock-free ones share X.
_WIDEST = 4

# With so many rows 32 pairs name one twice in an eighth of all blocks, 32 triplets in a quarter.
WIDE = 1 << 14

_MOST = 64  # threads that are kept apart: their blocks are numbered in a byte
_PIECE = 64  # consecutive rows
_SEEN = 1_000_000  # samples that tell how often a row is named
_CHANCES = 8  # tasks that a sample with rows of one block may fall to


TOGETHER = Schedule(np.zeros((1, 1, 1), int), np.zeros((1, 1, 1), np.int32))  # one block


def meetings(arity: int, jobs: int, symmetric: bool) -> Schedule:
    """Who works where."""
    if arity == 2:
        return schedule(arity, min(jobs, _MOST), symmetric)
    return planes(1 << min(jobs, _WIDEST).bit_length() - 1)


@dataclass(frozen=True)
class Task:
    """Samples first .. last of a shard, which a thread runs without waiting for others."""

    shard: Shard
    number: int
    key: np.uint64
    first: int
    last: int
    guesses: tuple[int, int] | None = None  # which second rows are drawn, if they are

    def __iter__(self) -> Iterator[MiniBatch]:
        """Each mini-batch is valid until the next."""
        seed = (int(self.key) + (self.number << 40) + self.first) % 2**63
        return self.shard.mini_batches(self.key, self.first, self.last, seed, self.guesses)


class ThreadBlocks(Samples):
    """A training copy of the observations, a shard for every group of blocks."""

    def __init__(
        self, index: np.ndarray, targets: np.ndarray, block: np.ndarray, meetings: Schedule,
        rng: np.random.Generator, threads: Callable, jobs: int, redraw: Callable | None = None,
    ):  # fmt: skip
        self.index, self.targets = index, targets
        self.visits, self.groups = meetings.groups.shape[:2]
        # Several threads to a group, if there are more of them.
        self._helpers = max(1, jobs // self.groups)
        wide = len(block) >= WIDE
        if meetings.blocks == 1:
            self.shards = [Shard(index, targets, rng, threads, jobs, redraw, wide)]
            return
        ends = sort(index, targets, block, _whole(meetings))
        parts = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        seeds = rng.spawn(len(parts))

        def shard(number: int) -> Shard:
            part = parts[number]
            return Shard(index[part], targets[part], seeds[number], in_turn, 1, redraw, wide)

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
            groups = [self._group(visit, group, part) for group in range(self.groups)]
            yield [chain.from_iterable(tasks) for tasks in chain.from_iterable(groups) if tasks]

    def _group(self, visit: int, group: int, part: tuple[int, int, int]) -> list[list[Task]]:
        """What a group of blocks runs of a part of the epoch, for each of its threads."""
        number = visit * self.groups + group
        return self._among_threads([self._task(number, *share(part, len(self.shards[number])))])

    def _task(self, number: int, first: int, last: int, guesses=None) -> Task:
        return Task(self.shards[number], number, self._key, first, last, guesses)

    def _among_threads(self, tasks: list[Task]) -> list[list[Task]]:
        each: list[list[Task]] = [[] for _ in range(self._helpers)]
        for task in tasks:
            # A multiple of a block for all but the last.
            size = -(-(task.last - task.first) // self._helpers // BLOCK) * BLOCK
            for thread, start in enumerate(range(task.first, task.last, max(size, BLOCK))):
                stop = min(start + size, task.last)
                each[thread].append(replace(task, first=start, last=stop))
        return each


class DrawnNegatives(ThreadBlocks):
    """Comparisons of which the second row, an item that a user did not choose, is drawn as they are
    dealt: a shard for every block of users and every block of items that they chose.

    A guess is any item. So as many guesses fall into a block of items as it has items, and that
    many samples of a shard, which are in random order, have their turn with that block. (After a
    guess that fails any item may be drawn, and that row may be another thread's: that is rare.)
    """

    def __init__(
        self, index: np.ndarray, targets: np.ndarray, users: int, first: int, negatives: Negatives,
        rng: np.random.Generator, threads: Callable, jobs: int,
    ):  # fmt: skip
        width = 1 << min(jobs, _WIDEST).bit_length() - 1
        self._pairs, self._items = tournament(width).groups, 2 * width
        rows = slice(first, first + negatives.items)
        block = np.zeros(rows.stop, np.uint8)
        block[:users] = even_blocks(np.bincount(_some(index[:, 2]), minlength=users), width)
        named = np.bincount(_some(index[:, 0]) - first, minlength=negatives.items)
        block[rows] = _alike(named, self._items)
        negatives, self._guesses = negatives.pooled(block[rows], self._items)
        numbers = np.arange(width * self._items, dtype=np.int32).reshape(-1, self._items)
        # By the item chosen, the item drawn and the user.
        table = np.broadcast_to(numbers.T[:, None], (self._items, *numbers.T.shape))
        visits = np.empty((len(self._pairs) * width, width, 0), int)
        redraw = partial(negatives.redraw, first=first)
        super().__init__(
            index, targets, block, Schedule(visits, table), rng, threads, jobs, redraw
        )  # fmt: skip

    def _group(self, visit: int, group: int, part: tuple[int, int, int]) -> list[list[Task]]:
        match, shift = divmod(visit, self.groups)
        a, b = self._pairs[match, group].tolist()
        user, tasks = (group + shift) % self.groups, []
        for both in ((a, b), (b, a), (a, a), (b, b)):
            task = self._portion(user, *both, part)
            if both[0] == both[1]:  # a block is with itself in a part of every match
                at = share((match, match + 1, len(self._pairs)), task.last - task.first)
                cuts = [task.first + cut // BLOCK * BLOCK for cut in at]
                last = task.last if match + 1 == len(self._pairs) else cuts[1]
                task = replace(task, first=cuts[0], last=last)
            tasks.append(task)
        return self._among_threads(tasks)

    def _portion(self, user: int, chosen: int, other: int, part: tuple[int, int, int]) -> Task:
        """The samples of a shard that draw from a block of items."""
        number = user * self._items + chosen
        first, last = share(part, len(self.shards[number]))
        # By tasks another block has the rest that is no whole block of samples.
        turned = (int(self._key) + number + first) % self._items
        ends, at = [0], 0
        for q in range(turned, turned + self._items):
            low, high = self._guesses[q % self._items], self._guesses[q % self._items + 1]
            at += high - low
            ends.append((last - first) * at // self._guesses[-1] // BLOCK * BLOCK)
        ends[-1] = last - first
        place = (other - turned) % self._items
        guesses = self._guesses[other], self._guesses[other + 1]
        return self._task(number, first + ends[place], first + ends[place + 1], guesses)


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


def _alike(named: np.ndarray, count: int) -> np.ndarray:
    """Blocks of as many rows that are named as often, each of pieces so large that hardly a line of
    the cache belongs to two.

    >>> np.bincount(_alike(np.arange(8 * _PIECE), 2))
    array([256, 256])
    """
    pieces = np.add.reduceat(named, np.arange(0, len(named), _PIECE))
    order = np.empty(len(pieces), int)
    order[np.argsort(-pieces, kind="stable")] = np.arange(len(pieces))
    there_and_back = np.r_[:count, count - 1 : -1 : -1]
    return np.repeat(there_and_back[order % (2 * count)], _PIECE)[: len(named)]


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
