"""How far ahead of their turn the rows of samples are fetched."""

from __future__ import annotations

from numba.extending import overload, register_jitable

from ...core.linalg import LINE
from .intrinsics import prefetch

# So many lines of the cache are on their way at a time, a few more than a core has room for, and
# never those of more than so many samples: from 8 to 16 it makes no difference.
_UNDERWAY, _AHEAD = 48, 12


def a_line(X):
    """Columns in a line of the cache."""
    return LINE // X.itemsize


@overload(a_line)
def _a_line(X):
    columns = LINE * 8 // X.dtype.bitwidth  # a constant: a division would cost more than a step
    return lambda X: columns


@register_jitable
def ahead(X, arity):
    """How many samples before their turn rows are fetched."""
    lines = arity * (1 + (X.shape[1] - 1) // a_line(X))
    return max(3, min(_AHEAD, _UNDERWAY // lines))


@register_jitable(forceinline=True)  # a call would take longer than what it does
def fetch(X, index, t, width, triplet):
    """Begin to load the rows that a sample names, of up to `width` columns if that is not 0."""
    for q in range(0, width or X.shape[1], a_line(X)):
        prefetch(X, index[t, 0], q, 0)
        prefetch(X, index[t, 1], q, 0)
        if triplet:
            prefetch(X, index[t, 2], q, 0)
