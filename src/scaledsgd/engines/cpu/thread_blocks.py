"""The samples of threads that are kept apart: no two ever write to the same row at the same time.

Threads that share rows pass lines of the cache back and forth, and lose what they write at the same
moment. So rows are cut into blocks that are named about equally often, samples are sorted once by
the blocks that they touch, and threads follow the same schedule as the workers of a cluster: the
result is that of some serial order, whoever was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from ...core.compiled import njit
from ...core.observations import Chunk, Observations
from ..base import Samples
from ..schedule import Schedule, planes, schedule
from .crew import Crew
from .permutations import BLOCK, DEALT, GROUP, IN_PLACE, RIFFLES, dealer
from .sample_order import MiniBatch, Next, Shard, draw_key, ends, riffle, room, way

# Threads that compare three rows are kept apart up to this many: 8 have 155 visits of 8 turns, 16
# would have 651 of 16, and were measured to gain nothing on sixteen cores.
_WIDEST = 8

# With so many rows 32 pairs name one twice in an eighth of all blocks, 32 triplets in a quarter.
WIDE = 1 << 14

_MOST = 64  # threads that are kept apart: their blocks are numbered in a byte
_SEEN = 1_000_000  # samples that tell how often a row is named
_CHANCES = 8  # tasks that a sample with rows of one block may fall to
_TURN = 2048  # samples of a turn, or more: what it costs to take one is a microsecond
_MERGED = 8  # cycles of a long round that are run as one
_PIECE = 64 * GROUP * BLOCK  # samples that one thread runs before it can be interrupted


TOGETHER = Schedule(np.zeros((1, 1, 1), int), np.zeros((1, 1, 1), np.int32))  # one block


@cache
def meetings(arity: int, jobs: int, symmetric: bool) -> Schedule:
    """Who works where."""
    if arity == 2:
        return schedule(arity, min(jobs, _MOST), symmetric)
    return planes(1 << min(jobs, _WIDEST).bit_length() - 1)


class Plan(NamedTuple):
    """Visits that come next, as the kernels take them (turns.py)."""

    groups: np.ndarray  # (all visits, groups, blocks of a group)
    owner: np.ndarray  # (all visits, blocks): the group of a block
    visits: np.ndarray  # (n,)
    parts: np.ndarray  # (n, 3): from where to where of how much of their shards


class ThreadBlocks(Samples):
    """A training copy of the observations, a shard for every group of blocks in every visit.

    In a cycle every shard has a part of its samples run; there are as many cycles in an epoch as it
    takes for a row to be named about twice a visit, by samples of few blocks, before others have
    their turn; up to 16 times in a long round.
    """

    def __init__(
        self, index: np.ndarray, targets: np.ndarray, block: np.ndarray, meetings: Schedule,
        rng: np.random.Generator | None, crew: Crew,
    ):  # fmt: skip
        self.index, self.targets = index, targets
        self.visits, self.groups = meetings.groups.shape[:2]
        self._meetings, self._owner = meetings, owners(meetings)
        if self.groups == 1:
            self.starts = np.array([0, len(targets)])
            if rng:
                riffle(index, targets, rng, crew.each, crew.jobs)
        else:
            self.starts = sort(index, targets, block, _whole(meetings), crew)
            if rng:
                _riffle(index, targets, self.starts, rng, crew)
        self.way = way(len(targets), len(block) >= WIDE)
        visit = max(len(block), self.groups * _TURN)
        self.cycles = 1
        if self.groups > 1:
            self.cycles = max(1, round(len(targets) / (self.visits * visit)))
        self.rooms: list[tuple] = []  # of each thread, for samples that are copied

    def __len__(self) -> int:
        return len(self.targets)

    def fair(self, count: int) -> Chunk:
        """So many samples from all over."""
        if count >= len(self) or self.groups == 1:
            return super().fair(count)
        lengths = np.diff(self.starts)
        some = lengths * count // len(self)
        places = np.arange(some.sum()) + np.repeat(self.starts[:-1] - np.cumsum(some) + some, some)
        return Chunk(self.index[places], self.targets[places])

    def returned(self, observations: Observations, shift: list[int]) -> Observations:
        """The samples as they lie now, which is where the observations were, if those were free to
        be reordered."""
        for column, by in enumerate(shift):
            if by:
                self.index[:, column] -= by
        same = observations.index is self.index and observations.targets is self.targets
        return observations if same else observations.of(Chunk(self.index, self.targets))

    def epoch(self, rng: np.random.Generator) -> Iterator[Next]:
        """All samples, of which the engine runs as many at a time as it is told to."""
        self.key, self._done, self._at = draw_key(rng), 0, 0
        order = [rng.permutation(self.visits) for _ in range(self.cycles)]
        self._order, cycle = np.concatenate(order), np.arange(self.cycles).repeat(self.visits)
        self._parts = np.stack([cycle, cycle + 1, np.full(len(cycle), self.cycles)], axis=1)
        sizes = self._sizes(self._parts[:: self.visits])
        self._ends = np.cumsum(sizes[cycle, self._order])
        yield Next(self, len(self))

    def next(self, count: int) -> tuple[Plan, int]:
        """Whole visits with about so many samples, the next of the epoch, and how many they are. At
        its end all samples have had their turn."""
        begin, self._done = self._done, self._done + count
        if self.groups == 1:
            first, last = ends(begin, self._done, len(self), len(self), self._in_blocks)
            cuts = [*range(first, last, _PIECE), last]
            parts = np.array([(a, b, len(self)) for a, b in pairwise(cuts)]).reshape(-1, 3)
            return self._plan(np.zeros(len(parts), np.int64), parts), last - first
        at = self._at
        self._at = len(self._ends)
        if self._done < len(self):
            self._at = max(at, int(np.searchsorted(self._ends, self._done)))
        ends_at = np.concatenate([[0], self._ends])
        visits, parts = self._merged(at, self._at)
        return self._plan(visits, parts), int(ends_at[self._at] - ends_at[at])

    def _merged(self, at: int, to: int) -> tuple[np.ndarray, np.ndarray]:
        """Visits at .. to of the epoch, several whole cycles of a long round as one: of fewer turns
        less time is waited for."""
        first, last = -(-at // self.visits), to // self.visits
        if first >= last:
            return self._order[at:to], self._parts[at:to]
        cycles = np.arange(first, last, _MERGED)
        rows = (cycles[:, None] * self.visits + np.arange(self.visits)).ravel()
        merged = self._parts[rows]
        merged[:, 1] = np.minimum(merged[:, 0] + _MERGED, last)
        begin, end = slice(at, first * self.visits), slice(last * self.visits, to)
        visits = [self._order[begin], self._order[rows], self._order[end]]
        parts = [self._parts[begin], merged, self._parts[end]]
        return np.concatenate(visits), np.concatenate(parts)

    def sub_rounds(self, count: int) -> Iterator[list[Iterator[MiniBatch]]]:
        """The same samples, visit by visit: what is in one list may run at once."""
        plan, _ = self.next(count)
        for visit, part in zip(plan.visits, plan.parts, strict=True):
            yield [self._turn(visit * self.groups + group, part) for group in range(self.groups)]

    def room(self, thread: int) -> tuple:
        """A thread's own."""
        while len(self.rooms) <= thread:
            largest = int(np.diff(self.starts).max())
            self.rooms.append(room(self.way, largest, self.index, self.targets))
        return self.rooms[thread]

    def _turn(self, number: int, part: np.ndarray) -> Iterator[MiniBatch]:
        own = slice(self.starts[number], self.starts[number + 1])
        shard = Shard(self.index[own], self.targets[own], None)
        first, last = ends(part[0], part[1], part[2], own.stop - own.start, self._in_blocks)
        return shard.hands(self.way, self.key, int(first), int(last))

    def _plan(self, visits: np.ndarray, parts: np.ndarray) -> Plan:
        return Plan(self._meetings.groups, self._owner, visits, parts)

    @property
    def _in_blocks(self) -> bool:
        return self.way in (DEALT, IN_PLACE)

    def _sizes(self, parts: np.ndarray) -> np.ndarray:
        """Samples of every visit in each of the parts."""
        counts, (start, stop, whole) = np.diff(self.starts), parts.T[:, :, None]
        first, last = counts * start // whole, counts * stop // whole
        if self._in_blocks:
            first = first // BLOCK * BLOCK
            last = np.where(stop == whole, last, last // BLOCK * BLOCK)
        return (last - first).reshape(len(parts), self.visits, self.groups).sum(axis=2)


def owners(meetings: Schedule) -> np.ndarray:
    """(visits, blocks): the group that has a block."""
    visits, groups, each = meetings.groups.shape
    owner = np.empty((visits, groups * each), np.int64)
    np.put_along_axis(
        owner, meetings.groups.reshape(visits, -1), np.arange(groups).repeat(each)[None], axis=1
    )
    return owner


def _riffle(index, targets, starts, rng: np.random.Generator, crew: Crew) -> None:
    """Part neighbours within every shard."""
    *_, part, _ = dealer(index.shape[1])
    keys = rng.integers(2**32, size=(len(starts) - 1, RIFFLES, 2), dtype=np.uint32)
    cuts = np.searchsorted(starts, np.linspace(0, starts[-1], 4 * crew.jobs + 1)[1:-1])
    runs = list(pairwise([0, *cuts.tolist(), len(starts) - 1]))
    crew.each(lambda run: part(index, targets, starts, keys, *run), runs)


def _whole(meetings: Schedule) -> np.ndarray:
    """The bucket for all blocks that may be named together, by a chance that falls where rows of
    one block may go to several."""
    table = meetings.table
    if table.min() >= 0:
        return table[None]
    named = np.indices(table.shape).reshape(table.ndim, -1).T
    # Blocks that take the place of one that is named twice: others for every two, and far apart.
    apart = max(1, meetings.blocks // _CHANCES)
    chances = [meetings.buckets(named, named.sum(axis=1) + c * apart) for c in range(_CHANCES)]
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


def sort(index, targets, block, table, crew: Crew) -> np.ndarray:
    """Samples in the order of their buckets. Returns where buckets begin, and the last one ends."""
    if index.shape[1] == 2:
        table = table[..., None]
    by, buckets = (index, block, table), int(table.max()) + 1
    return sort_by(lambda *part: _number(*by, *part), [targets, index], buckets, crew)


def sort_by(number: Callable, arrays: list[np.ndarray], buckets: int, crew: Crew) -> np.ndarray:
    """Sort arrays in place by a number that each entry has, those of one number in the order in
    which they were. Returns where each number begins, and the last one ends.

    number(numbers, counts, begin, end) writes the numbers of a part, and counts them.
    """
    m, jobs = len(arrays[0]), crew.jobs
    numbers, counts = np.empty(m, np.uint16), np.zeros((jobs, buckets), np.int64)
    parts = [(k, m * k // jobs, m * (k + 1) // jobs) for k in range(jobs)]
    crew.each(lambda part: number(numbers, counts[part[0]], *part[1:]), parts)
    starts = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    first = starts[:-1] + np.cumsum(counts, axis=0) - counts

    for array in arrays:
        moved, heads = np.empty_like(array), first.copy()

        def move(part, array=array, moved=moved, heads=heads):
            _move(array, moved, numbers, heads[part[0]], *part[1:])

        def put_back(part, array=array, moved=moved):
            array[part[1] : part[2]] = moved[part[1] : part[2]]

        crew.each(move, parts)
        crew.each(put_back, parts)
    return starts


@njit(nogil=True, cache=True)
def _number(index, block, table, numbers, counts, begin, end):
    """The bucket of each sample, and how many each bucket has."""
    for t in range(begin, end):
        bucket = _bucket(index, t, block, table)
        numbers[t] = bucket
        counts[bucket] += 1


@njit(nogil=True, cache=True)
def _move(array, moved, numbers, heads, begin, end):
    """Samples of a part to where their buckets go on."""
    for t in range(begin, end):
        moved[heads[numbers[t]]] = array[t]
        heads[numbers[t]] += 1
