"""Observations that no single process holds: in Parquet files, or in pieces in the object store."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from ...core.losses import Loss
from ...core.observations import Chunk, Observations
from ...io.parquet import ParquetFile, parquet_files
from ..base import Samples as AnySamples
from ..cpu.sample_order import Next
from .splits import Plan, RowGroup, Slab
from .worker_pool import WorkerPool

_SLAB = 1 << 20  # samples of a piece
_PROBED = 10_000  # rows from which the median of all is taken: it is good to a percent of them


class Copies:
    """Samples of files by row numbers, on the disks of those who read them until they are sorted: a
    file is read once for its ids, and once for its samples."""

    def __init__(self, name: str):
        self.name = name


@dataclass
class DistributedObservations:
    """Samples in splits. To a policy and a trainer they are as any `Observations`."""

    pool: WorkerPool
    splits: list[Any]
    shape: tuple[int, int]
    loss: Loss
    symmetric: bool
    size: float  # root mean square of the targets
    largest: float
    ids: list[np.ndarray]  # of the rows of each side, where files have names for them
    held_out: list[np.ndarray]  # positions in each split that are held out
    weighted: bool = False  # whether targets are complex
    copies: Any = None  # of files, on the workers' disks while somebody has this
    disposable = False
    sides = Observations.sides

    def complete(self) -> bool:
        """Nobody can tell whether every entry is known."""
        return False

    def of(self, samples: Chunk) -> Observations:
        """Other samples of the same kind, which are here."""
        index, targets = samples
        return Observations(index, targets, self.shape, self.loss.name, self.symmetric)

    @classmethod
    def handed_over(cls, observations: Any, pool: WorkerPool) -> DistributedObservations:
        """Observations given to the object store, unless they are scattered already."""
        if isinstance(observations, DistributedObservations):
            return observations
        import ray

        splits = []
        for start in range(0, len(observations), _SLAB):
            part = slice(start, start + _SLAB)
            index, targets = observations.index[part], observations.targets[part]
            splits.append(Slab([ray.put((index, targets))], len(targets)))
        return cls(
            pool, splits, observations.shape, observations.loss, observations.symmetric,
            observations.size, observations.largest, [], [np.zeros(0, int)] * len(splits),
            np.iscomplexobj(observations.targets),
        )  # fmt: skip

    @classmethod
    def files(
        cls, pool: WorkerPool, files: Any, columns: tuple[str | None, ...], target: str | None,
        loss: Loss, symmetric: bool,
    ) -> DistributedObservations:  # fmt: skip
        """The rows of Parquet files. Named columns hold ids, in the order of the loss's table;
        those without names are taken in the files' order, and hold row numbers."""
        import ray

        splits = _row_groups(files, columns, target)
        named = columns[0] is not None
        sides = (0,) * loss.arity if symmetric else loss.sides
        ids = [np.zeros(0, int)] * (1 if symmetric else 2)
        squares = largest = 0.0
        found = pool.each("found", splits, [(loss.name, named)] * len(splits))
        for held, sum_of_squares, most in found:
            squares, largest = squares + sum_of_squares, max(largest, most)
            for side, new in zip(sides, held, strict=True):
                ids[side] = _union(ids[side], new)
        if named:
            shape = (len(ids[0]), len(ids[-1]))
            boxes = [[ray.put(known)] for known in ids]
            splits = [split._replace(known=tuple(boxes[s] for s in sides)) for split in splits]
        else:
            shape, ids = (int(ids[0][-1]) + 1, int(ids[-1][-1]) + 1), []
        copies = Copies(uuid4().hex)
        weakref.finalize(copies, pool.forget, copies.name)
        splits = [
            split._replace(copied=f"{copies.name}/{number}") for number, split in enumerate(splits)
        ]
        size = float(np.sqrt(squares / sum(split.count for split in splits)))
        held_out = [np.zeros(0, int)] * len(splits)
        return cls(
            pool, splits, shape, loss, symmetric, size, largest, ids, held_out, copies=copies
        )

    def __len__(self) -> int:
        return sum(split.count for split in self.splits) - sum(map(len, self.held_out))

    @property
    def kind(self) -> str:
        return self.loss.name

    def fetched(self) -> Observations:
        """All of them, brought here."""
        found = self.pool.each("read", self.splits, [()] * len(self.splits))
        index, targets = (np.concatenate(column) for column in zip(*found, strict=True))
        rows = np.int32 if max(self.shape) < 2**30 else np.int64  # both sides, stacked
        seen = self.of(Chunk(index.astype(rows), targets))
        seen.disposable = True
        return seen

    def hold_out(self, positions: np.ndarray) -> tuple[DistributedObservations, Chunk]:
        """The samples without those at the positions, and those."""
        return replace(self, held_out=self._by_split(np.sort(positions))), self._picked(positions)

    def mentions(self, positions: np.ndarray) -> np.ndarray:
        """Those positions: whether an entry is named again elsewhere is not asked of all files."""
        return positions

    def sampled(self, count: int, rng: np.random.Generator) -> Chunk:
        """Some of the samples, drawn at random."""
        everything = sum(split.count for split in self.splits)
        held_out = [first + own for first, own in zip(self._firsts(), self.held_out, strict=True)]
        drawn = np.setdiff1d(
            rng.integers(everything, size=count + count // 8), np.concatenate(held_out)
        )
        return self._picked(rng.permutation(drawn)[:count])

    def well_seen(self, positions: np.ndarray) -> np.ndarray:
        """Those of the positions whose sample names only rows that are seen as often as the median
        row, or more."""
        import ray

        index = self._picked(positions).index
        asked, probes = [], []
        for side, columns in self.sides().items():
            probed = np.unique(np.linspace(0, self.shape[side] - 1, _PROBED).astype(np.int64))
            rows = np.union1d(index[:, columns], probed)
            asked.append((columns, rows))
            probes.append(probed)
        totals = [np.zeros(len(rows), np.int64) for _, rows in asked]
        there = ray.put(asked)
        arguments = [(there, held_out) for held_out in self.held_out]
        for some in self.pool.each("counted", self.splits, arguments):
            for counts, more in zip(totals, some, strict=True):
                counts += more
        kept = np.ones(len(positions), bool)
        for (columns, rows), probed, counts in zip(asked, probes, totals, strict=True):
            enough = np.median(counts[np.searchsorted(rows, probed)])
            kept &= (counts[np.searchsorted(rows, index[:, columns])] >= enough).all(axis=1)
        return positions[kept]

    def _firsts(self) -> np.ndarray:
        return np.cumsum([0, *(split.count for split in self.splits[:-1])])

    def _by_split(self, positions: np.ndarray) -> list[np.ndarray]:
        """Sorted positions, each counted from the beginning of its split."""
        firsts = self._firsts()
        ends = np.searchsorted(positions, firsts)
        return [
            part - first for part, first in zip(np.split(positions, ends[1:]), firsts, strict=True)
        ]

    def _picked(self, positions: np.ndarray) -> Chunk:
        """The samples at the positions, in their order."""
        order = np.argsort(positions, kind="stable")
        wanted = self._by_split(positions[order])
        found = self.pool.each("picked", self.splits, [(own,) for own in wanted])
        index, targets = (np.concatenate(column) for column in zip(*found, strict=True))
        back = np.argsort(order)
        return Chunk(index[back], targets[back])


def _union(known: np.ndarray, new: np.ndarray) -> np.ndarray:
    if not len(known):
        return new
    if known.dtype.kind != new.dtype.kind:
        raise ValueError(f"ids are numbers here ({known[0]!r}) and words there ({new[0]!r})")
    return np.union1d(known, new)


def _row_groups(files: Any, columns: tuple, target: str | None) -> list[RowGroup]:
    groups = []
    paths = parquet_files(files)
    for path in paths:
        source = ParquetFile(Path(path))
        if columns[0] is None:
            names = source.first(3)
            # i, j, k and the target in a file are j, k, i in the table.
            columns = tuple(names[:2] if len(columns) == 2 else [*names[1:3], names[0]])
            target = next(iter(source.names[len(columns) :]), None)
        if target is None and len(columns) == 2:
            raise ValueError(f"{path}: the column with the values has to be named")
        for name in (*columns, *([target] if target else [])):
            source.find(name)
        sizes = [(group, count) for group, count in enumerate(source.groups()) if count]
        groups += [RowGroup(path, *size, columns, target) for size in sizes]
    if not groups:
        raise ValueError(f"{paths[0]}: no observations")
    return groups


# So little of a sub-round or of an epoch is run at once with what comes before it, and so little of
# what was asked for is left to the next time: blocks would change hands for it.
_REST = 0.2


class ClusterSamples(AnySamples):
    """The samples of a run, by sub-rounds."""

    def __init__(self, plan: Plan, box: list, sizes: dict[int, int], seen: Chunk):
        self.plan, self.box, self.sizes = plan, box, sizes
        self.index, self.targets = seen
        groups = plan.schedule.groups
        self.rounds = [0] * len(groups)  # samples of each sub-round
        for bucket, size in sizes.items():
            self.rounds[bucket // groups.shape[1]] += size
        self.key = 0

    def __len__(self) -> int:
        return sum(self.rounds)

    def buckets(self) -> Iterator[tuple[int, np.ndarray]]:
        """Those that hold samples, each with the rows of X that its group of blocks has."""
        spans = list(pairwise(self.plan.cuts.tolist()))
        for bucket in sorted(self.sizes):
            blocks = self.plan.groups[bucket].tolist()
            yield bucket, np.concatenate([np.arange(*spans[block]) for block in blocks])

    def epoch(self, rng: np.random.Generator) -> Iterator[Next]:
        """All samples, of which the engine runs as many at a time as it is told to."""
        self.key = int(rng.integers(2**63))
        self._order, self._turn = rng.permutation(len(self.rounds)), 0
        self._done, self._asked = [0] * len(self.rounds), 0
        yield Next(self, len(self))

    def visits(self, count: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """The next samples, as parts of sub-rounds, about as many as asked for. Each call goes on
        to the next sub-round, so that no rows meet for long and then never again: blocks would
        learn in bases of their own, and have to unlearn them."""
        self._asked += count
        done = sum(self._done)
        due, left = self._asked - done, len(self) - done
        few = _REST * due
        if left <= due + few:
            due, few = left, 0
        while due > few:
            s = int(self._order[self._turn % len(self._order)])
            self._turn += 1
            start, size = self._done[s], self.rounds[s]
            stop = start + due if size - start - due >= _REST * size else size
            if stop > start:
                self._done[s] = stop
                due -= stop - start
                yield s, (start, stop, size)
