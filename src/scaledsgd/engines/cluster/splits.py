"""Samples in parts that a worker can read by itself, and where each sample goes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...io.parquet import ParquetFile
from ..schedule import Schedule


class Slab(NamedTuple):
    """Samples that somebody held in memory and gave to the object store."""

    box: list  # with a reference to (index, targets), which Ray leaves alone inside a list
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]

    def read(self) -> tuple[np.ndarray, np.ndarray]:
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

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        import ray

        columns, targets = self.ids()
        for c, box in enumerate(self.known):
            columns[c] = np.searchsorted(ray.get(box[0]), columns[c])
        return np.stack(columns, axis=1), targets

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

    def cut(self, number: int) -> list[Piece]:
        """A split, sorted: a piece for each worker."""
        index, targets = self.splits[number].read()
        rows = np.delete(index, self.without[number], axis=0) + np.array(self.shift)
        targets = np.delete(targets, self.without[number]).astype(self.dtype)
        blocks = np.searchsorted(self.cuts, rows, side="right") - 1
        chance = np.random.default_rng([self.seed, number]).integers(2**31, size=len(targets))
        bucket = self.schedule.buckets(blocks, chance)
        for c in range(rows.shape[1]):
            place = (self.groups[bucket] == blocks[:, c : c + 1]).argmax(axis=1)
            rows[:, c] += self.offsets[bucket, place]
        order = np.lexsort((bucket, self.owner(bucket)))
        bucket, rows, targets = bucket[order], rows[order].astype(np.int32), targets[order]
        ends = np.searchsorted(self.owner(bucket), np.arange(self.workers + 1))
        pieces = []
        for worker in range(self.workers):
            part = slice(ends[worker], ends[worker + 1])
            own, counts = np.unique(bucket[part], return_counts=True)
            pieces.append(Piece(own, counts, rows[part], targets[part]))
        return pieces
