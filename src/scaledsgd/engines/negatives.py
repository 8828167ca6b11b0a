"""Items that a user did not choose, drawn anew for every sample of every epoch, and streams of
choices as comparisons.

A draw is a guess, any item or the item of any event, that is repeated if the user has chosen it. A
table of bits answers that nearly always at the cost of one look; only where its bit is set, the
sorted list of the user's items is searched.
"""

from __future__ import annotations

from copy import copy

import numba
import numpy as np
from numba.extending import register_jitable

from .memory import prefetch

# Who has chosen nearly all that is popular would guess for long. A user with half of the mass among
# her choices fails so often once in 65,000 draws, and then gets one that is uniform by counting.
_TRIES = 16

# Bits in the table for each choice: at most a sixteenth of the looks is followed by a search. (More
# bits would fall out of the cache earlier.) A multiple of 8.
_BITS = 16

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
def _bit(item, start, stop):
    """Where the table keeps whether a user has chosen the item: users have as many bits as they
    have chosen items, times _BITS, beside those of their neighbours."""
    places = np.uint64((stop - start) * _BITS)
    at = (((np.uint64(item) * _STEP) >> np.uint64(32)) * places) >> np.uint64(32)
    return np.uint64(start * _BITS) + at


@numba.njit(nogil=True, cache=True)
def _fill(table, starts, chosen):
    for user in range(len(starts) - 1):
        for item in chosen[starts[user] : starts[user + 1]]:
            bit = _bit(item, starts[user], starts[user + 1])
            table[bit >> np.uint64(3)] |= np.uint8(1) << np.uint8(bit & np.uint64(7))


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
def _redraw(index, starts, chosen, bits, items, pool, low, high, first, seed):
    state = _random(np.uint64(seed))
    guesses, places = np.empty(_AHEAD, np.int64), np.empty(_AHEAD, np.uint64)
    for begin in range(0, len(index), _AHEAD):
        held = min(_AHEAD, len(index) - begin)
        for t in range(held):  # the table is asked for all of them before the first answer
            state += _STEP
            guesses[t] = pool[low + _below(state, high - low)]
            user = index[begin + t, 2]
            places[t] = _bit(guesses[t], starts[user], starts[user + 1])
            prefetch(bits, places[t] >> np.uint64(3), 0, 0)
        for t in range(held):
            user, item, bit = index[begin + t, 2], guesses[t], places[t]
            if (bits[bit >> np.uint64(3)] >> (bit & np.uint64(7))) & np.uint64(1):
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
        bits = np.zeros(_BITS * len(chosen) // 8 + 1, np.uint8)
        _fill(bits, starts, chosen)
        self._table = starts, chosen, bits
        # Every place of it is guessed as often as any other.
        self.pool = chosen if popular else np.arange(items, dtype=np.int32)

    def pooled(self, block: np.ndarray, blocks: int) -> tuple[Negatives, list[int]]:
        """The same, with its guesses in the order of the items' blocks, and where each begins."""
        ordered, own = copy(self), block[self.pool]
        ordered.pool = self.pool[np.argsort(own, kind="stable")]
        return ordered, np.searchsorted(np.sort(own), np.arange(blocks + 1)).tolist()

    def redraw(self, index: np.ndarray, seed: int, guesses=None, *, first: int = 0) -> None:
        """New items in column 1, in place. `first` is the row of item 0; `guesses`, from where to
        where in the pool the first guesses are."""
        low, high = guesses or (0, len(self.pool))
        _redraw(index, *self._table, self.items, self.pool, low, high, first, np.uint64(seed))


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
