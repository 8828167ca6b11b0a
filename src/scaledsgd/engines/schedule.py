"""Who works on which rows at the same time, so that no two workers ever write to the same row.

The rows of X are cut into blocks. In a sub-round every worker holds a group of blocks that nobody
else holds, and runs the samples that lie wholly inside it: the result is that of some serial order.
A schedule says who holds what in each sub-round, so that every sample has its turn in exactly one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Groups of a schedule for triplets: three rows meet in one of G shares once in some G^2 sub-rounds,
# so that calls grow as G^3, and more than these cost more than they share (docs/scale.md).
WIDEST = 8


class Schedule(NamedTuple):
    """`groups[s, g]` are the blocks of group g in sub-round s; `table` says for blocks that are
    named together in which bucket, s * len(groups[0]) + g, they meet.

    >>> tournament(2).groups.tolist()
    [[[3, 0], [1, 2]], [[3, 1], [2, 0]], [[3, 2], [0, 1]]]
    """

    groups: np.ndarray
    table: np.ndarray

    @property
    def blocks(self) -> int:
        return len(self.table)

    def buckets(self, blocks: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """The bucket of every sample, given the blocks that it names. One that names a block twice
        could have its turn in many sub-rounds: `chance`, a whole number a sample, picks one."""
        met = blocks.astype(np.int64)
        for c in range(1, met.shape[1]):
            again = (met[:, :c] == met[:, c : c + 1]).any(axis=1)
            met[again, c] = chance[again] % self.blocks
            while again.any():
                again = (met[:, :c] == met[:, c : c + 1]).any(axis=1)
                met[again, c] = (met[again, c] + 1) % self.blocks
        return self.table[tuple(met.T)]

    @classmethod
    def of(cls, groups: np.ndarray, arity: int) -> Schedule:
        """With the table: every `arity` different blocks meet in one group, or never."""
        blocks, size = int(groups.max()) + 1, groups.shape[2]
        table = np.full((blocks,) * arity, -1, np.int32)
        bucket = np.arange(groups.shape[0] * groups.shape[1]).reshape(groups.shape[:2])
        for places in np.ndindex((size,) * arity):
            if len(set(places)) == arity:
                table[tuple(groups[:, :, place] for place in places)] = bucket
        return cls(groups, table)


def schedule(arity: int, workers: int, symmetric: bool) -> Schedule:
    """For samples that name so many rows, of one matrix or of two.

    >>> [len(schedule(2, 4, symmetric).groups) for symmetric in (True, False)]
    [7, 4]
    """
    if arity == 3:
        return planes(workers)
    return tournament(workers) if symmetric else shifts(workers)


def tournament(workers: int) -> Schedule:
    """Two blocks a worker; every two blocks meet once in 2 W - 1 sub-rounds (the circle method of
    chess tournaments: one stays, the others move on by a place)."""
    others = 2 * workers - 1
    step = np.arange(workers)
    groups = [np.stack([(s + step) % others, (s - step) % others], axis=1) for s in range(others)]
    for group in groups:
        group[0, 0] = others
    return Schedule.of(np.array(groups), 2)


def shifts(workers: int) -> Schedule:
    """A block of L and one of R a worker; all of R moves on after each of W sub-rounds.

    >>> shifts(2).groups.tolist()
    [[[0, 2], [1, 3]], [[0, 3], [1, 2]]]
    """
    left = np.arange(workers)
    groups = [np.stack([left, workers + (left + s) % workers], axis=1) for s in range(workers)]
    return Schedule.of(np.array(groups), 2)


def planes(workers: int) -> Schedule:
    """Four blocks a group, as many groups as workers or, if those are no power of two, more; and
    no more than `WIDEST`, which leaves workers past those without triplets to run.

    Blocks are the points of a space over the field of two numbers. Any three of them lie in one
    plane, of four points, and the planes parallel to it hold all the others: a sub-round for every
    direction of a plane brings every three blocks together exactly once. That takes 7 sub-rounds
    for 2 groups, 35 for 4 and 155 for 8, and none could do with fewer groups of four.
    """
    count = min(1 << (workers - 1).bit_length(), WIDEST)
    points = np.arange(4 * count)
    groups = []
    for u in points[1:]:
        for v in points[u + 1 :]:
            if v < u ^ v:  # each direction once
                lowest = np.minimum.reduce([points, points ^ u, points ^ v, points ^ u ^ v])
                start = np.unique(lowest)
                groups.append(np.stack([start, start ^ u, start ^ v, start ^ u ^ v], axis=1))
    return Schedule.of(np.array(groups), 3)
