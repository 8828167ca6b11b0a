"""Row numbers of whole numbers, by a compiled hash table: some 20 ns a name, where a dictionary of
Python's takes 100."""

from __future__ import annotations

import numpy as np

from ..core.compiled import njit

_EMPTY = -1
_SMALLEST = 64  # slots of an empty table
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / phi: neighbours land far from each other


@njit(nogil=True, cache=True)
def _find(slots, names, name):
    """The slot that holds the row of a name, or the empty one where it belongs."""
    mixed = np.uint64(name) * _GOLDEN
    at = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(len(slots) - 1))
    while slots[at] != _EMPTY and names[slots[at]] != name:
        at = (at + 1) & (len(slots) - 1)
    return at


@njit(nogil=True, cache=True)
def _look_up(slots, names, wanted, out):
    for t in range(len(wanted)):
        out[t] = slots[_find(slots, names, wanted[t])]


@njit(nogil=True, cache=True)
def _add(slots, names, count, wanted, out, start):
    """Rows of the names from `start` on, until the table is half full. Returns how many are done,
    and how many names are known."""
    for t in range(start, len(wanted)):
        at = _find(slots, names, wanted[t])
        if slots[at] == _EMPTY:
            if 2 * count >= len(slots):
                return t, count
            names[count] = wanted[t]
            slots[at] = count
            count += 1
        out[t] = slots[at]
    return len(wanted), count


@njit(nogil=True, cache=True)
def _forget(slots, names, count, keep):
    # The last one in was put into a slot that nobody else has passed by since.
    for row in range(count - 1, keep - 1, -1):
        slots[_find(slots, names, names[row])] = _EMPTY


class Numbering:
    """Rows for int64 names, in order of first appearance.

    >>> known = Numbering()
    >>> known.add(np.array([70, 30, 70]))
    array([0, 1, 0])
    >>> known.rows(np.array([30, 31])), known.names
    (array([ 1, -1]), array([70, 30]))
    """

    def __init__(self):
        self._slots = np.full(_SMALLEST, _EMPTY)
        self._names = np.empty(_SMALLEST // 2, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def names(self) -> np.ndarray:
        return self._names[: self._count]

    def add(self, wanted: np.ndarray) -> np.ndarray:
        """Rows of names, new ones for those not seen before."""
        # Numba compiles anew for arrays that are read-only, or not in one piece.
        wanted = np.require(wanted, np.int64, ["C", "W"])
        out, done = np.empty(len(wanted), np.int64), 0
        while True:
            done, self._count = _add(self._slots, self._names, self._count, wanted, out, done)
            if done == len(wanted):
                return out
            self._double()

    def rows(self, wanted: np.ndarray) -> np.ndarray:
        """Rows of names, -1 for those that are not known."""
        out = np.empty(len(wanted), np.int64)
        _look_up(self._slots, self._names, np.require(wanted, np.int64, ["C", "W"]), out)
        return out

    def keep(self, count: int) -> None:
        """Forget all but the first names."""
        _forget(self._slots, self._names, self._count, count)
        self._count = min(count, self._count)

    def _double(self) -> None:
        names, self._count = self.names, 0
        self._slots = np.full(2 * len(self._slots), _EMPTY)
        self._names = np.empty(len(self._slots) // 2, np.int64)
        self.add(names)
