"""Samples in parts that a worker can read by itself, and where each sample goes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...core.compiled import njit
from ...io.parquet import ParquetFile
from ..schedule import Schedule

_CLOSE = 1 << 25  # between the least and the largest id: a list of all numbers there is no burden


def distinct(ids: np.ndarray) -> np.ndarray:
    """Each once, in order. Whole numbers that lie close are ticked off a list, which takes a tenth
    of the time of sorting them.

    >>> distinct(np.array([7, 5, 7])).tolist(), distinct(np.array(["b", "a"])).tolist()
    ([5, 7], ['a', 'b'])
    """
    if ids.dtype.kind != "i" or not len(ids) or int(ids.max()) - int(ids.min()) >= _CLOSE:
        return np.unique(ids)
    seen = np.zeros(int(ids.max()) - int(ids.min()) + 1, bool)
    seen[ids - ids.min()] = True
    return np.flatnonzero(seen) + ids.min()


def places(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Where each is among those that are known, which are in order.

    >>> places(np.array([7, 5]), np.array([5, 7])).tolist()
    [1, 0]
    """
    if ids.dtype.kind != "i" or int(known[-1]) - int(known[0]) >= _CLOSE:
        return np.searchsorted(known, ids)
    place = np.zeros(int(known[-1]) - int(known[0]) + 1, np.int32)
    place[known - known[0]] = np.arange(len(known))
    return place[ids - known[0]]


class Slab(NamedTuple):
    """What somebody held in memory and gave to the object store."""

    box: list  # with a reference to its arrays, which Ray leaves alone inside a list
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    copied: str = ""  # there is nothing to be won by a copy

    def read(self) -> tuple:
        """Index and targets; of choices users, items, weights, and None for their times."""
        import ray

        return ray.get(self.box[0])


class RowGroup(NamedTuple):
    """A row group of a Parquet file. `columns` hold ids in the order of the loss's table; the
    target is 1 where none is named."""

    path: str
    group: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    columns: tuple[str, ...]
    target: str | None
    known: tuple[list, ...] = ()  # a box for each column, with its ids in order; or they are rows
    copied: str = ""  # the folder and name of a copy with row numbers, on the disk of whoever reads

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        import ray

        columns, targets = self.ids()
        for c, box in enumerate(self.known):
            columns[c] = places(columns[c], ray.get(box[0]))
        index = np.stack(columns, axis=1)
        return index.astype(np.int32) if index.max() < 2**31 else index, targets

    def ids(self) -> tuple[list[np.ndarray], np.ndarray]:
        """The columns as they are in the file, and the targets."""
        targets = [self.target] if self.target else []
        table = ParquetFile(Path(self.path)).table(self.columns, targets, group=self.group)
        # Words as NumPy's own, which are sorted and searched many times faster than objects.
        columns = [table[name] for name in self.columns]
        columns = [ids if ids.dtype.kind == "i" else ids.astype(str) for ids in columns]
        return columns, table[self.target].astype(np.float64) if self.target else np.ones(
            self.count
        )

    def refused(self, name: str, why: str) -> ValueError:
        return ValueError(f"{self.path}, row group {self.group}, column {name!r}: {why}")


class Piece(NamedTuple):
    """What one split holds for one worker: samples in the order of their buckets."""

    buckets: np.ndarray
    counts: np.ndarray
    index: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride]  # rows within the group that holds the bucket
    targets: np.ndarray


@dataclass(frozen=True)
class Plan:
    """Which samples there are, and who runs them when."""

    name: str
    splits: list[Any]
    without: list[np.ndarray]  # positions in each split that are not trained on
    schedule: Schedule
    cuts: np.ndarray  # the first row of every block, and the end
    shift: list[int]
    dtype: str
    seed: int
    workers: int

    @cached_property
    def groups(self) -> np.ndarray:
        """The blocks of every bucket."""
        return self.schedule.groups.reshape(-1, self.schedule.groups.shape[2])

    @cached_property
    def offsets(self) -> np.ndarray:
        """How far each block of a bucket begins behind its own first row, were it laid out with
        the others of its group."""
        sizes = np.diff(self.cuts)[self.groups]
        return np.cumsum(sizes, axis=1) - sizes - self.cuts[self.groups]

    def owner(self, bucket):
        """Who runs a bucket."""
        return bucket % self.schedule.groups.shape[1] % self.workers

    def cut(self, number: int, samples: tuple[np.ndarray, np.ndarray]) -> list[Piece]:
        """A split, sorted: a piece for each worker. Args: samples, those of the split."""
        index, targets = samples
        kept = np.ones(len(targets), bool)
        kept[self.without[number]] = False
        chance = np.random.default_rng([self.seed, number]).integers(2**31, size=int(kept.sum()))
        ranks = np.lexsort((np.arange(len(self.groups)), self.owner(np.arange(len(self.groups)))))
        place = np.argsort(ranks)  # of a bucket, in the order of those who run them
        table = self.schedule.table.reshape(self.schedule.blocks, self.schedule.blocks, -1)
        how = self.cuts, np.array(self.shift), table, self.groups, self.offsets, place
        starts, rows, y = _sorted(index, targets.astype(self.dtype), kept, chance, *how)
        counts, pieces = np.diff(starts), []
        ends = np.searchsorted(self.owner(ranks), np.arange(self.workers + 1))
        for worker in range(self.workers):
            own = slice(ends[worker], ends[worker + 1])
            named = np.flatnonzero(counts[own]) + own.start
            part = slice(starts[own.start], starts[own.stop])
            pieces.append(Piece(ranks[named], counts[named], rows[part], y[part]))
        return pieces


@njit(nogil=True, cache=True)
def _sorted(index, targets, kept, chance, cuts, shift, table, groups, offsets, place):
    """Samples in the order of their buckets' places, rows counted within a bucket's group: where
    each place begins, rows and targets."""
    arity, blocks = index.shape[1], len(cuts) - 1
    count = len(chance)
    bucket, met = np.empty(count, np.int64), np.empty((count, arity), np.int32)
    starts = np.zeros(len(groups) + 1, np.int64)
    chosen, at = np.empty(arity, np.int64), 0
    for t in range(len(kept)):
        if not kept[t]:
            continue
        for c in range(arity):
            row = index[t, c] + shift[c]
            low, high = 0, blocks
            while high - low > 1:
                middle = (low + high) // 2
                if cuts[middle] <= row:
                    low = middle
                else:
                    high = middle
            met[at, c] = chosen[c] = low
            # One that names a block twice could have its turn in many sub-rounds.
            tried = False
            while True:
                again = False
                for before in range(c):
                    again = again or chosen[before] == chosen[c]
                if not again:
                    break
                chosen[c] = (chosen[c] + 1) % blocks if tried else chance[at] % blocks
                tried = True
        third = chosen[2] if arity == 3 else 0
        bucket[at] = table[chosen[0], chosen[1], third]
        starts[place[bucket[at]] + 1] += 1
        at += 1
    starts = np.cumsum(starts)
    heads = starts[:-1].copy()
    rows, y = np.empty((count, arity), np.int32), np.empty(count, targets.dtype)
    at = 0
    for t in range(len(kept)):
        if not kept[t]:
            continue
        own = bucket[at]
        to = heads[place[own]]
        heads[place[own]] += 1
        for c in range(arity):
            k = 0
            while groups[own, k] != met[at, c]:
                k += 1
            rows[to, c] = index[t, c] + shift[c] + offsets[own, k]
        y[to] = targets[t]
        at += 1
    return starts, rows, y
