"""The normal equations of a loss that is a square of its bilinear form, without ever forming them.

At X + D the form is z + <J, D> to first order, and a Gauss-Newton step solves
(J'J + hold + mu B) D = -J'e, where B are the blocks of J'J on the diagonal, (r, r) for each row of
X. Of the rest of J'J a block is of rank one, for every pair of rows that a sample names.

All is gathered by the row that is written to, so that threads have rows of their own and results do
not depend on their number. Blocks are kept in tiles, the lower triangles of `LANES` rows side by
side, of which each vector instruction has one element.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from ...core.compiled import njit
from .crew import Crew
from .intrinsics import WIDTHS, load, prefetch, store

LANES = 8
_WIDTH = LANES if LANES in WIDTHS else 1  # lanes that one instruction works on
_SHORT = WIDTHS[0]  # columns, of which there may be few
_FAST = {"contract", "reassoc"}  # sums over the rank may be fused and vectorised
_FLOOR = 1e-12  # of a block's largest diagonal: what pivots are held above
_AHEAD = 6  # rows of neighbours that are fetched before their turn
_LINE = 8  # float64 in a line of the cache
_WOKEN = 1 << 17  # numbers that a thread gathers at least: fewer are gathered sooner than it wakes
_EACH = 4  # parts for each thread, who may be held up


class Near(NamedTuple):
    """The rows that every row meets in a sample, and in which: a sample is in it twice."""

    start: np.ndarray  # (d + 1,) where a row's begin
    other: np.ndarray  # (2 n,)
    sample: np.ndarray  # (2 n,)


class Normal:
    """The normal equations of samples, for one X after the other.

    Args: index (n, 2), rows of X; d, how many there are; begin, where in X the second side begins
    if samples have a row of either, or 0; weights (n,), or (1,) for all; minus, whether z is the
    square of x_i - x_j; crew, who computes.
    """

    def __init__(
        self, index: np.ndarray, d: int, begin: int, weights: np.ndarray, minus: bool, crew: Crew
    ):
        start, both = np.zeros(d + 1, np.int64), np.empty((2, 2 * len(index)), np.int32)
        _gather(index, start, *both)
        self.near, self.weights, self.minus, self.crew = Near(start, *both), weights, minus, crew
        self.sides = [(0, begin), (begin, d)] if begin else [(0, d)]
        self.larger = int(np.argmax([end - first for first, end in self.sides]))
        self._parts: list = []

    def at(self, X: np.ndarray, residuals: np.ndarray, hold, *sides: int) -> np.ndarray:
        """Go to X, on all sides or some. Args: hold, of every column, or of all. Returns: J'e + X
        hold there, (d, r)."""
        r = X.shape[1]
        if not self._parts or self.X.shape != X.shape:
            self._parts = [self._cut(side, r) for side in self.sides]
            self.tiles = [np.empty((_tiles(side), r * (r + 1) // 2, LANES)) for side in self.sides]
        self.X, g, hold = X, np.empty(X.shape), np.full(r, hold, np.float64)
        for side in sides or range(len(self.sides)):
            self._each(side, _blocks, X, self.near, residuals, self.weights, self.minus, hold,
                       self.tiles[side], g)  # fmt: skip
        return g

    def factorise(self, scale: float, *sides: int) -> None:
        """The blocks, with what holds them, times `scale`, to their Cholesky factors in place. What
        a row's entries do not tell has a pivot that lets nothing through."""
        for side in sides or range(len(self.sides)):
            self._each(side, _factorise, self.tiles[side], self.X.shape[1], scale)

    def solve(self, side: int, G: np.ndarray, out: np.ndarray) -> None:
        """out = B^-1 G on the rows of a side, with the blocks as they were factorised."""
        self._each(side, _solve, self.tiles[side], G, out)

    def across(self, side: int, D: np.ndarray, out: np.ndarray) -> None:
        """out = (J'J - B) D on the rows of a side; of two sides, by what D is on the other."""
        self._each(side, _across, self.X, self.near, self.weights, self.minus, D, out)

    def of_rows(self, side: int) -> np.ndarray:
        """Lower triangles of the blocks of a side, (rows, r, r)."""
        first, end = self.sides[side]
        r, tiles = self.X.shape[1], self.tiles[side]
        B = np.zeros((end - first, r, r))
        rows = tiles.transpose(0, 2, 1).reshape(-1, tiles.shape[1])
        B[:, *np.tril_indices(r)] = rows[: end - first]
        return B

    def _cut(self, side: tuple[int, int], r: int) -> list[tuple[int, int]]:
        """Tiles of a side for each thread, who gather about as much."""
        first, end = side
        reached = self.near.start[np.minimum(np.arange(_tiles(side) + 1) * LANES + first, end)]
        total = int(reached[-1] - reached[0])
        many = min(self.crew.jobs, total * r // _WOKEN)
        if many <= 1:
            return [(0, _tiles(side))]
        parts = _EACH * many
        cuts = np.searchsorted(reached, reached[0] + total * np.arange(1, parts) / parts)
        return list(pairwise([0, *np.unique(cuts).tolist(), _tiles(side)]))

    def _each(self, side: int, kernel, *args) -> None:
        sides = self.sides[side]
        self.crew.each(lambda part: kernel(*args, *sides, *part), self._parts[side])


def _tiles(side: tuple[int, int]) -> int:
    return (side[1] - side[0] + LANES - 1) // LANES


@register_jitable(inline="always")
def _at(q, p):
    """Where in a tile the element of that row and column is."""
    return q * (q + 1) // 2 + p


@register_jitable
def _load(array, row, lane):
    return load(array, row, lane, _WIDTH, _WIDTH)


@register_jitable
def _store(array, row, lane, value):
    store(array, row, lane, _WIDTH, value)


@register_jitable
def _get(array, row, column):
    return load(array, row, column, _SHORT, _SHORT)


@register_jitable
def _put(array, row, column, value):
    store(array, row, column, _SHORT, value)


@njit(nogil=True, cache=True)
def _gather(index, start, other, sample):
    """Sort what samples name by row."""
    for t in range(len(index)):
        start[index[t, 0] + 1] += 1
        start[index[t, 1] + 1] += 1
    for row in range(1, len(start)):
        start[row] += start[row - 1]
    at = start[:-1].copy()
    for t in range(len(index)):
        for side in range(2):
            row = index[t, side]
            other[at[row]] = index[t, 1 - side]
            sample[at[row]] = t
            at[row] += 1


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def _blocks(X, near, residuals, weights, minus, hold, tiles, g, first, end, lo, hi):
    """B + hold, in tiles lo to hi, and J'e + X hold on their rows. The side's rows are first to
    end."""
    r, weighed = X.shape[1], len(weights) > 1
    A, v, w = np.empty((r, r + _SHORT)), np.zeros((1, r + _SHORT)), np.empty((1, r + _SHORT))
    for k in range(lo, hi):
        for lane in range(LANES):
            i = first + k * LANES + lane
            A[:] = 0.0
            w[:] = 0.0
            if i < end:
                for t in range(near.start[i], near.start[i + 1]):
                    soon = min(t + _AHEAD, len(near.other) - 1)
                    prefetch(residuals, near.sample[soon], 0, 0)
                    for q in range(0, r, _LINE):
                        prefetch(X, near.other[soon], q, 0)
                    j, n = near.other[t], near.sample[t]
                    s = weights[n] if weighed else weights[0]
                    e = s * residuals[n]
                    for q in range(0, r, _SHORT):
                        x = load(X, j, q, r - q, _SHORT)
                        if minus:
                            x = 2.0 * (load(X, i, q, r - q, _SHORT) - x)
                        _put(v, 0, q, x)
                        _put(w, 0, q, _get(w, 0, q) + e * x)
                    for q in range(r):
                        a = s * v[0, q]
                        for p in range(0, q + 1, _SHORT):
                            _put(A, q, p, _get(A, q, p) + a * _get(v, 0, p))
                for q in range(r):
                    g[i, q] = w[0, q] + hold[q] * X[i, q]
            for q in range(r):
                A[q, q] += hold[q]
                for p in range(q + 1):
                    tiles[k, _at(q, p), lane] = A[q, p]


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def _across(X, near, weights, minus, D, out, first, end, lo, hi):
    """Sums over the neighbours of every row."""
    r, weighed = X.shape[1], len(weights) > 1
    w = np.empty(r)
    for i in range(first + lo * LANES, min(first + hi * LANES, end)):
        w[:] = 0.0
        for t in range(near.start[i], near.start[i + 1]):
            soon = near.other[min(t + _AHEAD, len(near.other) - 1)]
            for q in range(0, r, _LINE):
                prefetch(X, soon, q, 0)
                prefetch(D, soon, q, 0)
            j, z = near.other[t], 0.0
            s = weights[near.sample[t]] if weighed else weights[0]
            if minus:
                for q in range(r):
                    z += (X[i, q] - X[j, q]) * D[j, q]
                z *= -4 * s
                for q in range(r):
                    w[q] += z * (X[i, q] - X[j, q])
            else:
                for q in range(r):
                    z += X[i, q] * D[j, q]
                z *= s
                for q in range(r):
                    w[q] += z * X[j, q]
        for q in range(r):
            out[i, q] = w[q]


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def _factorise(tiles, r, scale, first, end, lo, hi):
    """Lower triangles to Cholesky factors, with the inverses of the pivots."""
    largest, s = np.empty(LANES), np.empty((1, LANES))
    for k in range(lo, hi):
        C = tiles[k]
        largest[:] = 0.0
        for q in range(r):
            for lane in range(LANES):
                largest[lane] = max(largest[lane], scale * C[_at(q, q), lane])
        for q in range(r):
            for p in range(q + 1):
                for lane in range(0, LANES, _WIDTH):
                    rest = scale * _load(C, _at(q, p), lane)
                    for b in range(p):
                        rest = rest - _load(C, _at(q, b), lane) * _load(C, _at(p, b), lane)
                    _store(s, 0, lane, rest)
                if p < q:
                    for lane in range(LANES):
                        C[_at(q, p), lane] = s[0, lane] * C[_at(p, p), lane]
                else:
                    for lane in range(LANES):
                        sound = s[0, lane] > _FLOOR * largest[lane]
                        C[_at(q, q), lane] = 1 / np.sqrt(s[0, lane]) if sound else 0.0


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def _solve(tiles, G, out, first, end, lo, hi):
    r = G.shape[1]
    w = np.zeros((r, LANES))
    for k in range(lo, hi):
        C, row = tiles[k], first + k * LANES
        here = min(LANES, end - row)
        for lane in range(here):
            for q in range(r):
                w[q, lane] = G[row + lane, q]
        for lane in range(0, LANES, _WIDTH):
            for q in range(r):
                rest = _load(w, q, lane)
                for p in range(q):
                    rest = rest - _load(C, _at(q, p), lane) * _load(w, p, lane)
                _store(w, q, lane, rest * _load(C, _at(q, q), lane))
            for q in range(r - 1, -1, -1):
                rest = _load(w, q, lane)
                for p in range(q + 1, r):
                    rest = rest - _load(C, _at(p, q), lane) * _load(w, p, lane)
                _store(w, q, lane, rest * _load(C, _at(q, q), lane))
        for lane in range(here):
            for q in range(r):
                out[row + lane, q] = w[q, lane]
