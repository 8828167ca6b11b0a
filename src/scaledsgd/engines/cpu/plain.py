"""The operations of llvm.py in plain Numba, a column at a time: for a Numba that cannot compile
those. The kernels are the same, with registers of one number."""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

# Sums over the rank may be reordered and fused, and 0 x is 0: that removes the absent terms of a
# loss. A NaN still spreads through X, where the next Gram finds it.
FAST: tuple[str, ...] = ("contract", "reassoc", "nsz", "arcp", "nnan")

WIDTHS, PIECE = (1,), 1
BYTES = False  # `exceed` takes longer here than products of floats do


@register_jitable
def load(array, row, column, left, width):
    """array[row, column], or 0, and not read, with no column `left`."""
    return array[row, column] if left > 0 else array.dtype.type(0)


@register_jitable
def store(array, row, column, left, value):
    """array[row, column] = value."""
    if left > 0:
        array[row, column] = value


@register_jitable
def zeros(array, width):
    """A zero of an array's type."""
    return array.dtype.type(0)


@register_jitable
def total(value):
    """The sum over all places, of which there is one."""
    return value


@register_jitable
def totals(a, b):
    """The sums over all places of two."""
    return a, b


@register_jitable
def prefetch(array, row, column, write):
    """Nothing: rows are loaded when they are needed."""


@register_jitable
def move(out, t, array, s, count):
    """out[t] = array[s], rows of `count` items."""
    for c in range(count):
        out[t, c] = array[s, c]


@register_jitable
def arrive(counters, at):
    """Add 1 to counters[at], which only one thread may do."""
    counters[at] += 1


@register_jitable
def arrived(counters, at):
    """counters[at]."""
    return counters[at]


@register_jitable
def claim(counters, at, count):
    """Add 1 to counters[at], which nobody else does."""
    counters[at] += 1
    return True


@register_jitable
def pause():
    """Nothing: there is no other thread to wait for."""


@register_jitable
def give_way():
    """Nothing: there is no other thread to wait for."""


@register_jitable
def exceed(table, row, offsets, queries, least):
    """Bit 16 j + q: offsets[row + j] + table[row + j] . queries[:, q] >= least[q], by bytes."""
    found = np.uint64(0)
    for j in range(4):
        for q in range(16):
            total = offsets[row + j]
            for w in range(table.shape[1]):
                for shift in range(0, 32, 8):
                    total += np.int8(table[row + j, w] >> shift) * np.uint8(queries[w, q] >> shift)
            if total >= least[q]:
                found |= np.uint64(1) << np.uint64(16 * j + q)
    return found
