"""Gram products and changes of basis, compiled: of tall tables of few columns, for which BLAS takes
twice as long. Four rows or columns meet two registers of others, so that eight sums are under way
and hide how long each addition takes.
"""

from __future__ import annotations

import numpy as np

from ...core.compiled import njit
from .intrinsics import PIECE, load, store, zeros

_W = PIECE
_WIDE = max(4, 2 * _W)  # columns of a room are a multiple of these
_TALL = 128  # rows whose products are added up before they are added to the rest: half the L1 cache

_jit = njit(nogil=True, cache=True, error_model="numpy")


def room(rows: int, rank: int, dtype) -> np.ndarray:
    """Zeros, with columns up to where registers end."""
    return np.zeros((rows, -(-rank // _WIDE) * _WIDE), dtype)


def gram(X: np.ndarray, dtype) -> np.ndarray:
    """X^T X in float64, of which sums over a few rows have the precision of `dtype`.

    >>> gram(np.ones((5, 2), np.float32), np.float32)
    array([[5., 5.],
           [5., 5.]])
    """
    r = X.shape[1]
    G = np.zeros((r, r))
    _gram(X, room(_TALL, r, dtype), room(r + 3, r, dtype), G)
    return G


def transform(X: np.ndarray, T: np.ndarray) -> None:
    """X <- X T."""
    padded, most = room(len(T), len(T), X.dtype), np.finfo(X.dtype).max
    padded[:, : len(T)] = T.clip(-most, most)  # of columns that have vanished
    _transform(X, padded, room(4, len(T), X.dtype))


@_jit
def _gram(X, some, part, G):
    """G <- X^T X. some, part : rooms for rows and for products, in the type of both."""
    (n, r), wide = X.shape, some.shape[1]
    for start in range(0, n, _TALL):
        rows = min(_TALL, n - start)
        for t in range(rows):
            for q in range(r):
                some[t, q] = X[start + t, q]
        for c in range(0, wide, 2 * _W):
            for a in range(0, min(r, c + 2 * _W), 4):  # what is below the diagonal follows
                p0, p1, p2, p3 = zeros(some, _W), zeros(some, _W), zeros(some, _W), zeros(some, _W)
                s0, s1, s2, s3 = zeros(some, _W), zeros(some, _W), zeros(some, _W), zeros(some, _W)
                for t in range(rows):
                    x, y = load(some, t, c, _W, _W), load(some, t, c + _W, _W, _W)
                    p0, s0 = p0 + some[t, a] * x, s0 + some[t, a] * y
                    p1, s1 = p1 + some[t, a + 1] * x, s1 + some[t, a + 1] * y
                    p2, s2 = p2 + some[t, a + 2] * x, s2 + some[t, a + 2] * y
                    p3, s3 = p3 + some[t, a + 3] * x, s3 + some[t, a + 3] * y
                for k, (p, s) in enumerate(((p0, s0), (p1, s1), (p2, s2), (p3, s3))):
                    store(part, a + k, c, _W, p)
                    store(part, a + k, c + _W, _W, s)
        for a in range(r):
            for b in range(a, r):
                G[a, b] += part[a, b]
    for a in range(r):
        for b in range(a):
            G[a, b] = G[b, a]


@_jit
def _transform(X, T, some):
    """X <- X T, T with room behind its columns. some : room for four rows."""
    (n, r), wide = X.shape, T.shape[1]
    for start in range(0, n, 4):
        rows = min(4, n - start)
        for t in range(rows):
            for q in range(r):
                some[t, q] = X[start + t, q]
        for c in range(0, wide, 2 * _W):
            p0, p1, p2, p3 = zeros(T, _W), zeros(T, _W), zeros(T, _W), zeros(T, _W)
            s0, s1, s2, s3 = zeros(T, _W), zeros(T, _W), zeros(T, _W), zeros(T, _W)
            for q in range(r):
                x, y = load(T, q, c, _W, _W), load(T, q, c + _W, _W, _W)
                p0, s0 = p0 + some[0, q] * x, s0 + some[0, q] * y
                p1, s1 = p1 + some[1, q] * x, s1 + some[1, q] * y
                p2, s2 = p2 + some[2, q] * x, s2 + some[2, q] * y
                p3, s3 = p3 + some[3, q] * x, s3 + some[3, q] * y
            for k, (p, s) in enumerate(((p0, s0), (p1, s1), (p2, s2), (p3, s3))):
                if k < rows:
                    store(X, start + k, c, r - c, p)
                    store(X, start + k, c + _W, r - c - _W, s)
