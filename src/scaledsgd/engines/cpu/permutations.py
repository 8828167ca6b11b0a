"""Orders of samples that are computed, not stored: permutations named by a key, and the loops
that riffle, deal and go through samples by them.

Each place of a permutation can be computed by itself; the kernels of cuda/deal.cu deal the same
groups.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...core.compiled import njit
from .intrinsics import move, prefetch

BITS = 5
BLOCK = 1 << BITS  # consecutive samples that travel together: 6 cache lines of a triplet's rows
ALL, STRAIGHT = 62, np.array([1 << BITS], np.int64)  # the order from the first sample to the last
GROUP = 2048  # blocks dealt at once: 65,536 samples, about 1 MB, stay in the second-level cache
RIFFLES = 6  # with these the first million of 64 million samples come from all over the input
# How samples are gone through: each by itself, in groups of blocks that are copied, in blocks where
# they lie, or not shuffled at all; and what the next of them are then.
SHUFFLED, DEALT, IN_PLACE, UNCHANGED = range(4)
ORDERED, COPIED, AS_THEY_LIE = range(3)

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
    less than two steps on average."""
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
    start, odd, turn = block >> (2 * BITS), (block >> BITS) & (BLOCK - 1), block & (BLOCK - 1)
    return start + ((odd * c + turn) & (BLOCK - 1) if size == BLOCK else c)


@register_jitable
def fetch_block(index, block, arity):
    """Begin to load the rows that the samples of a block name."""
    start = block >> (2 * BITS)
    for s in range(0, BLOCK, 5):  # 5 triplets or 8 pairs a line
        prefetch(index, start + s, 0, 0)
    prefetch(index, start + BLOCK - 1, arity - 1, 0)


@register_jitable
def fetch_targets(targets, block):
    """Begin to load the targets of a block."""
    start = block >> (2 * BITS)
    for s in range(0, BLOCK, 8):
        prefetch(targets, start + s, 0, 0)
    prefetch(targets, start + BLOCK - 1, 0, 0)


@register_jitable  # what is compiled by itself would make the kernels that use it new every time
def ordered(blocks, key, first, out):
    """The order of an epoch from its block `first` on."""
    network = _network(blocks, key)
    for g in range(len(out)):
        block = _permuted(first + g, network)
        mixed = np.int64(_mixed(np.uint64(block) & _WORD, key & _WORD))
        odd, start = (mixed >> BITS) & (BLOCK - 1) | 1, mixed & (BLOCK - 1)
        out[g] = (block * BLOCK) << (2 * BITS) | odd << BITS | start


@cache
def dealer(arity: int) -> list[Any]:
    """`shuffle`, `riffle`, `part` and `hand`, compiled for samples of so many rows: twice as fast
    as for any number."""
    return [njit(nogil=True, cache=True)(function) for function in loops(arity)]


@cache
def loops(arity: int):
    """The same for use in other compiled code."""

    @register_jitable
    def shuffle(index, targets, key, first, out_index, out_targets):
        """Samples from `first` on of an order in which every one has a place of its own: thorough,
        and a cache miss a sample."""
        network = _network(len(targets), key)
        for t in range(len(out_targets)):
            s = _permuted(first + t, network)
            move(out_index, t, index, s, arity)
            out_targets[t] = targets[s]

    @register_jitable
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

    @register_jitable
    def deal(index, targets, key, first, out_index, out_targets):
        """A group of blocks, the first of which is the epoch's `first`: interleaved, each begun at
        an offset of its own."""
        network, group = _network(len(targets) // BLOCK, key), len(out_targets) // BLOCK
        starts, offsets = np.empty(group, np.int64), np.empty(group, np.int64)
        for g in range(group):
            block = _permuted(first + g, network)
            starts[g] = block * BLOCK
            offsets[g] = np.int64(_mixed(np.uint64(block) & _WORD, key & _WORD))
        for tile in range(0, group, _TILE):
            # The next blocks are on their way while these are dealt: twice as fast.
            for g in range(tile + _TILE, min(tile + 2 * _TILE, group)):
                fetch_block(index, starts[g] << (2 * BITS), arity)
                fetch_targets(targets, starts[g] << (2 * BITS))
            held = min(_TILE, group - tile)
            for t in range(BLOCK):
                card = t * group + tile
                for g in range(held):
                    s = starts[tile + g] + ((t + offsets[tile + g]) & (BLOCK - 1))
                    move(out_index, card + g, index, s, arity)
                    out_targets[card + g] = targets[s]

    @register_jitable
    def part(index, targets, starts, keys, first, last):
        """Riffle shards first .. last, which begin at `starts`, by keys (shards, riffles, 2)."""
        for shard in range(first, last):
            begin, end = starts[shard], starts[shard + 1]
            half = (end - begin) // 2
            for turn in range(keys.shape[1] if half else 0):
                by, key = np.int64(keys[shard, turn, 0]) % half, np.uint64(keys[shard, turn, 1])
                riffle(index[begin:end], targets[begin:end], by, key, 0, half)

    @register_jitable
    def hand(index, targets, key, at, stop, way, order, held_index, held_targets):
        """The next of the samples at .. stop, in the order that a key names: as blocks in `order`,
        copied to the room that is given, or as they lie. Returns where they end, and which."""
        if way == UNCHANGED:
            return stop, AS_THEY_LIE
        if way == SHUFFLED:
            shuffle(index, targets, key, at, held_index[: stop - at], held_targets[: stop - at])
            return stop, COPIED
        blocks = len(targets) // BLOCK
        even = min(stop, blocks * BLOCK)
        if at >= even:  # fewer than a block are left over
            return stop, AS_THEY_LIE
        if way == DEALT:
            end = min(at + len(held_targets) // BLOCK * BLOCK, even)
            out = held_index[: end - at], held_targets[: end - at]
            deal(index, targets, key, at // BLOCK, out[0], out[1])
            return end, COPIED
        end = min(at + len(order) * BLOCK, even)
        ordered(blocks, key, at // BLOCK, order[: (end - at) // BLOCK])
        return end, ORDERED

    return shuffle, riffle, part, hand


def riffles(rng: np.random.Generator, m: int) -> list[tuple[np.uint32, np.uint32]]:
    """How to riffle m samples: by how much the back half is turned, and the key of the bits."""
    if m < 2:
        return []
    keys = rng.integers(2**32, size=(RIFFLES, 2), dtype=np.uint32)
    return [(turn % np.uint32(min(m // 2, 2**32 - 1)), key) for turn, key in keys]
