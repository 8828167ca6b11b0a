"""The order of samples: riffled once for good, and drawn anew every epoch.

Reading samples in a random order costs more than stepping on them (100 against 10 ns: each is a
cache miss). So an epoch draws blocks of consecutive samples in random order. Samples that lie side
by side in the input often have a row in common; before the first epoch they are therefore parted
by riffles, in which half of the samples of one half change places with samples of the other: after
six of them a sample is in one of 64 places, and its neighbour in another.

Where there are many rows, two samples of a block hardly ever name the same one, so that it does not
matter which comes first: blocks are run where they lie, each gone through in steps of its own.
Where there are few, a group of blocks is copied, one sample of each by turns.

No order is stored (permutations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np

from ...core.observations import Chunk
from .permutations import ALL, BITS, BLOCK, GROUP, STRAIGHT, dealer, ordered, place, riffles


class MiniBatch(NamedTuple):
    """Samples that are run where they lie, in an order of their own: as the kernels take them."""

    index: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride]
    targets: np.ndarray
    order: np.ndarray = STRAIGHT
    shift: int = ALL

    def __len__(self) -> int:
        return min(len(self.targets), len(self.order) << self.shift)

    def chunk(self) -> Chunk:
        """The samples themselves, side by side."""
        places = _places(self.order, min(len(self.targets), 1 << self.shift))
        return Chunk(self.index[places], self.targets[places])

    def split(self, parts: int) -> list[MiniBatch]:
        """For so many threads."""
        many = len(self.targets) if self.shift == ALL else len(self.order)
        cuts = [slice(*ends) for ends in pairwise(many * k // parts for k in range(parts + 1))]
        if self.shift == ALL:
            return [MiniBatch(self.index[cut], self.targets[cut]) for cut in cuts]
        return [MiniBatch(self.index, self.targets, self.order[cut], self.shift) for cut in cuts]


@numba.njit(cache=True)
def _places(order, size):
    return np.array([place(block, c, size) for block in order for c in range(size)], np.int64)


@dataclass(frozen=True)
class Next:
    """So many samples of an epoch, the next ones: the engine that holds them knows which."""

    data: Any  # the engine's training copy
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> Next:
        return Next(self.data, len(range(*part.indices(self.count))))


def share(part: tuple[int, int, int], count: int) -> tuple[int, int]:
    """Which of `count` samples that part is, as in "from 1 to 2 of 3"; of many, whole blocks.

    >>> share((1, 2, 3), 30), share((2, 3, 3), 100_000)
    ((10, 20), (66656, 100000))
    """
    start, stop, whole = part
    first, last = count * start // whole, count * stop // whole
    if count <= BLOCK * GROUP:
        return first, last
    return first // BLOCK * BLOCK, last if stop == whole else last // BLOCK * BLOCK


class Shard:
    """Samples of a training copy, in the engine's own order.

    `threads` calls a function with each of a list of arguments, `jobs` at a time: the samples are
    riffled by it. Without `rng` they are taken to be riffled already. They are `wide` if a block of
    them hardly ever names a row twice: then it does not matter which of a block comes first.
    """

    def __init__(
        self, index: np.ndarray, targets: np.ndarray, rng: np.random.Generator | None,
        threads: Callable, jobs: int = 1, wide: bool = False,
    ):  # fmt: skip
        self.index, self.targets, self._wide = index, targets, wide
        self._shuffle, riffle, self._deal = dealer(index.shape[1])
        half = len(targets) // 2
        parts = list(pairwise(half * k // jobs for k in range(jobs + 1)))
        for turn, key in riffles(rng, len(targets)) if rng else ():
            how = np.int64(turn), np.uint64(key)
            threads(lambda part, how=how: riffle(index, targets, *how, *part), parts)

    def __len__(self) -> int:
        return len(self.targets)

    def mini_batches(self, key: np.uint64, start: int, stop: int) -> Iterator[MiniBatch]:
        """Samples start .. stop of an order that a key names: copies, or if it is all the same for
        what is learned, blocks where they lie. Each is valid until the next."""
        copied = not self._wide or len(self) <= BLOCK * GROUP
        return self._copied(key, start, stop) if copied else self._in_place(key, start, stop)

    def _copied(self, key: np.uint64, start: int, stop: int) -> Iterator[MiniBatch]:
        return (MiniBatch(chunk.index, chunk.targets) for chunk in self.dealt(key, start, stop))

    def _in_place(self, key: np.uint64, start: int, stop: int) -> Iterator[MiniBatch]:
        blocks, size = len(self) // BLOCK, 2 * GROUP
        for first in range(start // BLOCK, min(stop // BLOCK, blocks), size):
            order = np.empty(min(size, stop // BLOCK - first), np.int64)
            ordered(blocks, key, first, order)
            yield MiniBatch(self.index, self.targets, order, BITS)
        if stop % BLOCK:
            rest = slice(blocks * BLOCK, stop)
            yield MiniBatch(self.index[rest], self.targets[rest])

    def dealt(self, key: np.uint64, start: int, stop: int) -> Iterator[Chunk]:
        """Samples start .. stop of the order that a key names. In all but small shards, both are
        whole blocks from the front, or the end."""
        m, even = len(self), min(stop, len(self) // BLOCK * BLOCK)
        room = min(stop - start, GROUP * BLOCK)
        index = np.empty((room, self.index.shape[1]), self.index.dtype)
        targets = np.empty(room, self.targets.dtype)
        if m <= BLOCK * GROUP:
            self._shuffle(self.index, self.targets, key, start, index, targets)
            yield Chunk(index, targets)
            return
        for first in range(start, even, room):
            count = min(room, even - first)
            out = Chunk(index[:count], targets[:count])
            self._deal(self.index, self.targets, key, first // BLOCK, *out)
            yield out
        if even < stop:  # fewer than a block are left over
            yield Chunk(self.index[even:].copy(), self.targets[even:].copy())


def draw_key(rng: np.random.Generator) -> np.uint64:
    """A name for an order."""
    return np.uint64(rng.integers(2**63))
