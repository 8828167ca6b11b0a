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

import numpy as np
from numba.extending import register_jitable

from ...core.compiled import njit
from ...core.observations import Chunk
from .permutations import (
    ALL,
    BITS,
    BLOCK,
    COPIED,
    DEALT,
    GROUP,
    IN_PLACE,
    ORDERED,
    SHUFFLED,
    STRAIGHT,
    dealer,
    place,
    riffles,
)  # fmt: skip


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


@njit(cache=True)
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
    return ends(*part, count, count > BLOCK * GROUP)


@register_jitable
def ends(start, stop, whole, count, blocks):
    """Where a part of `count` samples begins and ends, in whole blocks if `blocks`."""
    first, last = count * start // whole, count * stop // whole
    if not blocks:
        return first, last
    return first // BLOCK * BLOCK, last if stop == whole else last // BLOCK * BLOCK


def way(samples: int, wide: bool) -> int:
    """How so many are gone through. They are `wide` if a block of them hardly ever names a row
    twice: then it does not matter which of a block comes first."""
    if samples <= BLOCK * GROUP:
        return SHUFFLED
    return IN_PLACE if wide else DEALT


def room(way: int, samples: int, index: np.ndarray, targets: np.ndarray) -> tuple:
    """Where the next samples are put, or their order: what `hand` takes."""
    held = 0 if way == IN_PLACE else min(samples, GROUP * BLOCK)
    return (
        np.empty(2 * GROUP if way == IN_PLACE else 0, np.int64),
        np.empty((held, index.shape[1]), index.dtype), np.empty(held, targets.dtype),
    )  # fmt: skip


class Shard:
    """Samples of a training copy, in the engine's own order. Without `rng` they are taken to be
    riffled already."""

    def __init__(
        self, index: np.ndarray, targets: np.ndarray, rng: np.random.Generator | None,
        wide: bool = False,
    ):  # fmt: skip
        self.index, self.targets, self._wide = index, targets, wide
        if rng:
            riffle(index, targets, rng)

    def __len__(self) -> int:
        return len(self.targets)

    def mini_batches(self, key: np.uint64, start: int, stop: int) -> Iterator[MiniBatch]:
        """Samples start .. stop of an order that a key names: copies, or if it is all the same for
        what is learned, blocks where they lie. Each is valid until the next. In all but small
        shards, both are whole blocks from the front, or the end."""
        return self.hands(way(len(self), self._wide), key, start, stop)

    def dealt(self, key: np.uint64, start: int, stop: int) -> Iterator[Chunk]:
        """The same, always copied."""
        hands = self.hands(way(len(self), wide=False), key, start, stop)
        return (Chunk(batch.index, batch.targets) for batch in hands)

    def hands(self, way: int, key: np.uint64, start: int, stop: int) -> Iterator[MiniBatch]:
        """The same in a given way."""
        own, (*_, hand) = (self.index, self.targets), dealer(self.index.shape[1])
        order, *held = kept = room(way, stop - start, *own)
        while start < stop:
            end, what = hand(*own, key, start, stop, way, *kept)
            if what == ORDERED:
                yield MiniBatch(*own, order[: (end - start) // BLOCK], BITS)
            elif what == COPIED:
                yield MiniBatch(held[0][: end - start], held[1][: end - start])
            else:
                yield MiniBatch(self.index[start:end], self.targets[start:end])
            start = end


def riffle(
    index: np.ndarray, targets: np.ndarray, rng: np.random.Generator,
    threads: Callable = lambda work, parts: [work(part) for part in parts], jobs: int = 1,
) -> None:  # fmt: skip
    """Part neighbours, in place. `threads` calls a function with each of a list of arguments, so
    many at a time."""
    _, once, *_ = dealer(index.shape[1])
    half = len(targets) // 2
    parts = list(pairwise(half * k // jobs for k in range(jobs + 1)))
    for turn, key in riffles(rng, len(targets)):
        how = np.int64(turn), np.uint64(key)
        threads(lambda part, how=how: once(index, targets, *how, *part), parts)


def draw_key(rng: np.random.Generator) -> np.uint64:
    """A name for an order."""
    return np.uint64(rng.integers(2**63))
