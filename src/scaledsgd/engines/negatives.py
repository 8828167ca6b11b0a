"""Items that a user did not choose, drawn anew for every sample of every epoch, and streams of
choices as comparisons.

A draw is a guess, any item or the item of any event, that is repeated if the user has chosen it. A
table of bits answers that nearly always at the cost of one look; only where its bit is set, the
sorted list of the user's items is searched.
"""

from __future__ import annotations

import numba
import numpy as np
from numba.extending import register_jitable

# Who has chosen nearly all that is popular would guess for long. A user with half of the mass among
# her choices fails so often once in 65,000 draws, and then gets one that is uniform by counting.
_TRIES = 16

# Bits in the table for each choice: at most a sixteenth of the looks is followed by a search. (More
# bits would fall out of the cache earlier.)
_BITS = 16

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
def _bit(user, item, items, shift):
    """Where the table keeps whether the user has chosen the item."""
    return ((np.uint64(user) * np.uint64(items) + np.uint64(item)) * _STEP) >> np.uint64(shift)


@numba.njit(nogil=True, cache=True)
def _fill(table, shift, starts, chosen, items):
    for user in range(len(starts) - 1):
        for item in chosen[starts[user] : starts[user + 1]]:
            bit = _bit(user, item, items, shift)
            table[bit >> np.uint64(3)] |= np.uint8(1) << np.uint8(bit & np.uint64(7))


@numba.njit(nogil=True, cache=True)
def _redraw(index, lists, table, items, popular, first, seed):
    (starts, chosen), (bits, shift) = lists, table
    state = _random(np.uint64(seed))
    for t in range(len(index)):
        user, found = index[t, 2], np.int64(-1)
        for _ in range(_TRIES):
            state += _STEP
            item = _below(state, items) if not popular else chosen[_below(state, len(chosen))]
            bit = _bit(user, item, items, shift)
            maybe = (bits[bit >> np.uint64(3)] >> (bit & np.uint64(7))) & np.uint64(1)
            if not (maybe and _holds(chosen[starts[user] : starts[user + 1]], item)):
                found = item
                break
        if found < 0:
            mine = chosen[starts[user] : starts[user + 1]]
            state += _STEP
            found = _unchosen(mine, _below(state, items - len(mine)))
        index[t, 1] = found + first


class Negatives:
    """Draws the second row of comparisons (j, k, i): an item k that user i has not chosen.

    `starts` and `chosen` are the sorted lists of users' items, as in a CSR matrix. Items are drawn
    uniformly or, if `popular`, in proportion to how many have chosen them.
    """

    def __init__(self, starts: np.ndarray, chosen: np.ndarray, items: int, popular=False):
        self.items, self.popular = items, popular
        self.left = items - np.diff(starts)  # how many items each user did not choose
        size = max(10, int(_BITS * len(chosen)).bit_length())
        table = np.zeros(1 << (size - 3), np.uint8)
        _fill(table, 64 - size, starts, chosen, items)
        self._lists, self._table = (starts, chosen), (table, 64 - size)

    def redraw(self, index: np.ndarray, rng: np.random.Generator, first: int = 0) -> None:
        """New items in column 1, in place. `first` is the row of item 0."""
        seed = rng.integers(2**63)
        _redraw(index, self._lists, self._table, self.items, self.popular, first, seed)


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
