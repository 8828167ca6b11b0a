"""Items that a user did not choose, drawn anew for every sample of every epoch, and streams of
choices as comparisons.

A draw is a guess, any item or the item of any event, that is repeated if the user has chosen it. A
table of bits answers that nearly always at the cost of one look; only where its bits are set, the
sorted list of the user's items is searched.
"""

from __future__ import annotations

from copy import copy

import numba
import numpy as np
from numba.extending import register_jitable

from .intrinsics import prefetch
from .permutations import ALL, BITS, STRAIGHT, fetch_block

# Who has chosen nearly all that is popular would guess for long. A user with half of the mass among
# her choices fails so often once in 65,000 draws, and then gets one that is uniform by counting.
_TRIES = 16

# Choices for each word of the table, on average. With two bits set for each of them, one look in
# fifty is followed by a search that finds nothing. (With more words the table would fall out of the
# cache earlier.)
_SHARE = 4

_AHEAD = 64  # guesses that are looked up at once

# Weyl's step and the mixing constants of splitmix64: a generator that can be begun anywhere.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@register_jitable
def _random(state):
    """The 64 random bits of a state."""
    z = (state ^ (state >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return z ^ (z >> np.uint64(31))


@register_jitable
def _below(state, limit):
    """A whole number from 0 up to the limit, which is far below 2^32."""
    return np.int64(((_random(state) >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32))


@register_jitable
def _unchosen(mine, t):
    """The t-th item that a sorted list does not hold."""
    low, high = 0, len(mine)
    while low < high:  # mine[p] - p items below mine[p] are not in the list
        middle = (low + high) >> 1
        if mine[middle] - middle <= t:
            low = middle + 1
        else:
            high = middle
    return t + low


@register_jitable
def _holds(mine, item):
    low, high = 0, len(mine)
    while low < high:
        middle = (low + high) >> 1
        if mine[middle] < item:
            low = middle + 1
        else:
            high = middle
    return low < len(mine) and mine[low] == item


@register_jitable
def _look(user, item, words):
    """Where the table keeps whether a user has chosen an item: a word, and two bits of it, which
    are both set if so (a Bloom filter)."""
    mixed = _random(np.uint64(user) << np.uint64(32) | np.uint64(item))
    bits = np.uint64(1) << (mixed & np.uint64(63))
    bits |= np.uint64(1) << ((mixed >> np.uint64(6)) & np.uint64(63))
    return ((mixed >> np.uint64(32)) * np.uint64(words)) >> np.uint64(32), bits


@numba.njit(nogil=True, cache=True)
def _fill(table, starts, chosen):
    for user in range(len(starts) - 1):
        for item in chosen[starts[user] : starts[user + 1]]:
            word, bits = _look(user, item, len(table))
            table[word] |= bits


@numba.njit(nogil=True, cache=True)
def _again(state, mine, items, pool):
    """Another item, after a guess that failed: any."""
    for _ in range(_TRIES):
        state += _STEP
        item = np.int64(pool[_below(state, len(pool))])
        if not _holds(mine, item):
            return state, item
    state += _STEP
    return state, _unchosen(mine, _below(state, items - len(mine)))


@numba.njit(nogil=True, cache=True)
def _redraw(index, order, shift, starts, chosen, table, items, pool, low, high, first, seed):
    state, size = _random(np.uint64(seed)), min(len(index), 1 << shift)
    guesses = np.empty(_AHEAD, np.int64)
    words, bits = np.empty(_AHEAD, np.uint64), np.empty(_AHEAD, np.uint64)
    for block in range(len(order)):
        if block + 2 < len(order):
            fetch_block(index, order[block + 2], 3)
        start = order[block] >> (2 * BITS)
        for begin in range(start, start + size, _AHEAD):
            held = min(_AHEAD, start + size - begin)
            for t in range(held):  # the table is asked for all of them before the first answer
                state += _STEP
                guesses[t] = pool[low + _below(state, high - low)]
                words[t], bits[t] = _look(index[begin + t, 2], guesses[t], len(table))
                prefetch(table, words[t], 0, 0)
            for t in range(held):
                item = guesses[t]
                if table[words[t]] & bits[t] == bits[t]:
                    user = index[begin + t, 2]
                    mine = chosen[starts[user] : starts[user + 1]]
                    if _holds(mine, item):
                        state, item = _again(state, mine, items, pool)
                index[begin + t, 1] = item + first


class Negatives:
    """Draws the second row of comparisons (j, k, i): an item k that user i has not chosen.

    `starts` and `chosen` are the sorted lists of users' items, as in a CSR matrix. Items are drawn
    uniformly or, if `popular`, in proportion to how many have chosen them.
    """

    def __init__(self, starts: np.ndarray, chosen: np.ndarray, items: int, popular=False):
        self.items, self.popular = items, popular
        self.left = items - np.diff(starts)  # how many items each user did not choose
        table = np.zeros(len(chosen) // _SHARE + 1, np.uint64)
        _fill(table, starts, chosen)
        self._table = starts, chosen, table
        # Every place of it is guessed as often as any other.
        self.pool = chosen if popular else np.arange(items, dtype=np.int32)

    def pooled(self, block: np.ndarray, blocks: int) -> tuple[Negatives, list[int]]:
        """The same, with its guesses in the order of the items' blocks, and where each begins."""
        ordered, own = copy(self), block[self.pool]
        ordered.pool = self.pool[np.argsort(own, kind="stable")]
        return ordered, np.searchsorted(np.sort(own), np.arange(blocks + 1)).tolist()

    def redraw(
        self, index: np.ndarray, seed: int, guesses=None, *, first: int = 0, order=STRAIGHT,
        shift: int = ALL,
    ) -> None:  # fmt: skip
        """New items in column 1, in place, of the samples of an order. `first` is the row of item
        0; `guesses`, from where to where in the pool the first guesses are."""
        low, high = guesses or (0, len(self.pool))
        table = *self._table, self.items, self.pool
        _redraw(index, order, shift, *table, low, high, first, np.uint64(seed))


@numba.njit(nogil=True, cache=True)
def successions(previous, users, items, count, popular, seed, out):
    """Fills `out` with rows (j, k, i): the user went from i to j, and k is another item. Returns
    how many there are."""
    state, found = _random(np.uint64(seed)), 0
    for t in range(len(users)):
        i, j = previous[users[t]], items[t]
        previous[users[t]] = j
        if i < 0 or i == j:
            continue
        k = np.int64(-1)
        if popular:
            for _ in range(_TRIES):
                state += _STEP
                k = np.int64(items[_below(state, len(items))])
                if k != i and k != j:
                    break
                k = np.int64(-1)
        if k < 0:
            state += _STEP
            low, high = (i, j) if i < j else (j, i)
            k = _below(state, count - 2)
            k += k >= low
            k += k >= high
        out[found, 0], out[found, 1], out[found, 2] = j, k, i
        found += 1
    return found
