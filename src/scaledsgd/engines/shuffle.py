"""The order of samples: riffled once for good, and drawn anew every epoch.

Reading samples in a random order costs more than stepping on them (100 against 10 ns: each is a
cache miss). So an epoch draws blocks of consecutive samples in random order. Samples that lie side
by side in the input often have a row in common; before the first epoch they are therefore parted
by riffles, in which half of the samples of one half of the deck change places with samples of the
other: after six of them a sample is in one of 64 places, and its neighbour in another.

Where there are many rows, two samples of a block hardly ever name the same one, so that it does not
matter which comes first: blocks are run where they lie, each gone through in steps of its own.
Where there are few, or a row of each sample is drawn anew, the blocks of a hand are dealt out like
cards: copied, one of each by turns.

No order is stored. A key names a permutation, and each place of it can be computed by itself; the
kernels of cuda_deal.cu deal the same hands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.extending import register_jitable

from ..observations import Chunk
from . import Samples as AnySamples
from .memory import move, prefetch

_BITS = 5
BLOCK = 1 << _BITS  # consecutive samples that travel together: 6 cache lines of a triplet's rows
HAND = 2048  # blocks dealt at once: 65,536 samples, about 1 MB, stay in the second-level cache
_RIFFLES = 6  # with these the first million of 64 million samples come from all over the input
_TILE = 16  # blocks read side by side: their lines fit the first-level cache

_WORD = np.uint64(0xFFFFFFFF)
_STIR = np.uint64(0x9E3779B1), np.uint64(0x85EBCA77)
_LOW, _HIGH, _HALF, _TWO = np.uint64(15), np.uint64(13), np.uint64(32), np.uint64(2)


@register_jitable
def _mixed(v, key):
    """A bijection of 32 bits, well stirred."""
    v = ((v ^ key) * _STIR[0]) & _WORD
    v = ((v ^ (v >> _LOW)) * _STIR[1]) & _WORD
    return v ^ (v >> _HIGH)


@register_jitable
def _network(n, key):
    """What `_permuted` needs to know of 0 .. n - 1: a Feistel network on as many bits as n has."""
    bits = 2
    while (1 << bits) < n:
        bits += 1
    low = bits // 2
    masks = np.uint64((1 << low) - 1), np.uint64((1 << (bits - low)) - 1)
    return np.uint64(n), np.uint64(low), masks, (key & _WORD, key >> _HALF)


@register_jitable
def _permuted(at, network):
    """Where the permutation takes a place: walked on while the network leaves the range, which is
    less than two turns on average."""
    n, low, masks, keys = network
    at = np.uint64(at)
    while True:
        a, b = at & masks[0], at >> low
        key_a, key_b = keys
        for _ in range(4):
            a ^= _mixed(b, key_a) & masks[0]
            b ^= _mixed(a, key_b) & masks[1]
            key_a, key_b = (key_a + _TWO) & _WORD, (key_b - _TWO) & _WORD
        at = (b << low) | a
        if at < n:
            return np.int64(at)


@register_jitable
def place(block, c, size):
    """Where the c-th of `size` samples lies. A number of an order holds where they begin and, of a
    block, with what odd steps from which sample on it is gone through."""
    start, odd, turn = block >> (2 * _BITS), (block >> _BITS) & (BLOCK - 1), block & (BLOCK - 1)
    return start + ((odd * c + turn) & (BLOCK - 1) if size == BLOCK else c)


@register_jitable
def fetch_block(index, targets, block, arity):
    """Begin to load the samples of a block."""
    start = block >> (2 * _BITS)
    for s in range(0, BLOCK, 5):  # 5 triplets or 8 pairs a line
        prefetch(index, start + s, 0, 0)
    for s in range(0, BLOCK, 8):
        prefetch(targets, start + s, 0, 0)
    prefetch(index, start + BLOCK - 1, arity - 1, 0)
    prefetch(targets, start + BLOCK - 1, 0, 0)


@numba.njit(nogil=True, cache=True)
def _ordered(blocks, key, first, out):
    """The order of an epoch from its block `first` on."""
    network = _network(blocks, key)
    for g in range(len(out)):
        block = _permuted(first + g, network)
        mixed = np.int64(_mixed(np.uint64(block) & _WORD, key & _WORD))
        odd, start = (mixed >> _BITS) & (BLOCK - 1) | 1, mixed & (BLOCK - 1)
        out[g] = (block * BLOCK) << (2 * _BITS) | odd << _BITS | start


@cache
def dealer(arity: int):
    """`shuffle`, `riffle` and `deal`, compiled for samples of so many rows: twice as fast as for
    any number."""

    @numba.njit(nogil=True, cache=True)
    def shuffle(index, targets, key, first, out_index, out_targets):
        """Samples from `first` on of an order in which every one has a place of its own: thorough,
        and a cache miss a sample."""
        network = _network(len(targets), key)
        for t in range(len(out_targets)):
            s = _permuted(first + t, network)
            move(out_index, t, index, s, arity)
            out_targets[t] = targets[s]

    @numba.njit(nogil=True, cache=True)
    def riffle(index, targets, turn, key, begin, end):
        """Samples begin .. end of the front half change places with those of the back half, turned
        by `turn`, or do not: each by a bit of its own."""
        half = len(targets) // 2
        for block in range(begin // BLOCK, -(-end // BLOCK)):
            bits = _mixed(np.uint64(block), key)
            for t in range(max(begin, block * BLOCK), min(end, (block + 1) * BLOCK)):
                if (bits >> np.uint64(t % BLOCK)) & np.uint64(1):
                    s = len(targets) - half + (t + turn if t + turn < half else t + turn - half)
                    for c in range(arity):
                        index[t, c], index[s, c] = index[s, c], index[t, c]
                    targets[t], targets[s] = targets[s], targets[t]

    @numba.njit(nogil=True, cache=True)
    def deal(index, targets, key, first, out_index, out_targets):
        """A hand, of which the first block is the epoch's `first`: interleaved, each block begun at
        its own turn."""
        network, hand = _network(len(targets) // BLOCK, key), len(out_targets) // BLOCK
        starts, turns = np.empty(hand, np.int64), np.empty(hand, np.int64)
        for g in range(hand):
            block = _permuted(first + g, network)
            starts[g] = block * BLOCK
            turns[g] = np.int64(_mixed(np.uint64(block) & _WORD, key & _WORD))
        for tile in range(0, hand, _TILE):
            # The next blocks are on their way while these are dealt: twice as fast.
            for g in range(tile + _TILE, min(tile + 2 * _TILE, hand)):
                fetch_block(index, targets, starts[g] << (2 * _BITS), arity)
            held = min(_TILE, hand - tile)
            for t in range(BLOCK):
                card = t * hand + tile
                for g in range(held):
                    s = starts[tile + g] + ((t + turns[tile + g]) & (BLOCK - 1))
                    move(out_index, card + g, index, s, arity)
                    out_targets[card + g] = targets[s]

    return shuffle, riffle, deal


def turns(rng: np.random.Generator, m: int) -> list[tuple[np.uint32, np.uint32]]:
    """How to riffle m samples: by how much the back half is turned, and the key of the bits."""
    if m < 2:
        return []
    keys = rng.integers(2**32, size=(_RIFFLES, 2), dtype=np.uint32)
    return [(turn % np.uint32(min(m // 2, 2**32 - 1)), key) for turn, key in keys]


# Of a chunk that is run from its first sample to its last.
_ALL = 62
_STRAIGHT = np.array([1 << _BITS], np.int64)


class Hand(NamedTuple):
    """Samples that are run where they lie, in an order of their own: as the kernels take them."""

    index: np.ndarray
    targets: np.ndarray
    order: np.ndarray = _STRAIGHT
    shift: int = _ALL

    def __len__(self) -> int:
        return min(len(self.targets), len(self.order) << self.shift)

    def chunk(self) -> Chunk:
        """The samples themselves, side by side."""
        places = _places(self.order, min(len(self.targets), 1 << self.shift))
        return Chunk(self.index[places], self.targets[places])

    def split(self, parts: int) -> list[Hand]:
        """For so many threads."""
        many = len(self.targets) if self.shift == _ALL else len(self.order)
        cuts = [slice(*ends) for ends in pairwise(many * k // parts for k in range(parts + 1))]
        if self.shift == _ALL:
            return [Hand(self.index[cut], self.targets[cut]) for cut in cuts]
        return [self._replace(order=self.order[cut]) for cut in cuts]


@numba.njit(cache=True)
def _places(order, size):
    return np.array([place(block, c, size) for block in order for c in range(size)], np.int64)


class Span(NamedTuple):
    """So many samples of an epoch, the next ones, for an engine that deals them itself."""

    data: Any
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> Span:
        return Span(self.data, len(range(*part.indices(self.count))))


def share(part: tuple[int, int, int], count: int) -> tuple[int, int]:
    """Which of `count` samples that part is, as in "from 1 to 2 of 3"; of many, whole blocks.

    >>> share((1, 2, 3), 30), share((2, 3, 3), 100_000)
    ((10, 20), (66656, 100000))
    """
    start, stop, whole = part
    first, last = count * start // whole, count * stop // whole
    if count <= BLOCK * HAND:
        return first, last
    return first // BLOCK * BLOCK, last if stop == whole else last // BLOCK * BLOCK


class Samples(AnySamples):
    """A training copy of the observations, in the engine's own order.

    `threads` calls a function with each of a list of arguments, `jobs` at a time: the samples are
    riffled by it. Without `rng` they are taken to be riffled already. They are `wide` if a block of
    them hardly ever names a row twice: then it does not matter which of a block comes first.
    """

    def __init__(
        self, index: np.ndarray, targets: np.ndarray, rng: np.random.Generator | None,
        threads: Callable, jobs: int = 1, redraw: Callable | None = None, wide: bool = False,
    ):  # fmt: skip
        self.index, self.targets, self._wide = index, targets, wide
        self._redraw = redraw  # changes samples for their next turn, if they are to change
        self._shuffle, riffle, self._deal = dealer(index.shape[1])
        half = len(targets) // 2
        parts = list(pairwise(half * k // jobs for k in range(jobs + 1)))
        for turn, key in turns(rng, len(targets)) if rng else ():
            how = np.int64(turn), np.uint64(key)
            threads(lambda part, how=how: riffle(index, targets, *how, *part), parts)

    def __len__(self) -> int:
        return len(self.targets)

    def epoch(self, rng: np.random.Generator) -> Iterator[Chunk]:
        """Every sample once, in chunks; a chunk is only valid until the next one."""
        return self.drawn(draw_key(rng), 0, len(self), int(rng.integers(2**63)))

    def drawn(
        self, key: np.uint64, start: int, stop: int, seed: int, guesses=None
    ) -> Iterator[Chunk]:
        """Samples as they are dealt, of which some rows may be drawn anew."""
        for number, chunk in enumerate(self.dealt(key, start, stop)):
            if self._redraw is not None:
                self._redraw(chunk.index, seed ^ number << 32, guesses)
            yield chunk

    def hands(
        self, key: np.uint64, start: int, stop: int, seed: int = 0, guesses=None
    ) -> Iterator[Hand]:
        """Samples start .. stop of an order that a key names: copies, or if it is all the same for
        what is learned, blocks where they lie. Each is valid until the next."""
        if not self._wide or self._redraw is not None or len(self) <= BLOCK * HAND:
            for chunk in self.drawn(key, start, stop, seed, guesses):
                yield Hand(*chunk)
            return
        blocks = len(self) // BLOCK
        for first in range(start // BLOCK, min(stop // BLOCK, blocks), 2 * HAND):
            order = np.empty(min(2 * HAND, stop // BLOCK - first), np.int64)
            _ordered(blocks, key, first, order)
            yield Hand(self.index, self.targets, order, _BITS)
        if stop % BLOCK:
            rest = slice(blocks * BLOCK, stop)
            yield Hand(self.index[rest], self.targets[rest])

    def dealt(self, key: np.uint64, start: int, stop: int) -> Iterator[Chunk]:
        """Samples start .. stop of the order that a key names. In all but small decks, both are
        whole blocks from the front, or the end."""
        m, even = len(self), min(stop, len(self) // BLOCK * BLOCK)
        room = min(stop - start, HAND * BLOCK)
        index = np.empty((room, self.index.shape[1]), self.index.dtype)
        targets = np.empty(room, self.targets.dtype)
        if m <= BLOCK * HAND:
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
