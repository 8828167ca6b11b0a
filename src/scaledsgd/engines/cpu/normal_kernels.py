"""The normal equations of a loss that is a square of its bilinear form, without ever forming them.

At X + D the form is z + <J, D> to first order, and a Gauss-Newton step solves
(J'J + mu B) D = -J'e, where B are the blocks of J'J on the diagonal, (r, r) for each row of X.
"""

from __future__ import annotations

import numba
import numpy as np

_FAST = {"contract", "reassoc"}  # sums over the rank may be fused and vectorised
_FLOOR = 1e-12  # of a block's largest diagonal: what pivots are held above


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def blocks(X, index, residuals, minus, B, g):
    """B (d, r, r) and J'e (d, r). `minus` is 1 where u = v = x_i - x_j, as of a distance, and 0
    where u = x_i and v = x_j."""
    r = X.shape[1]
    w, v = np.empty(r), np.empty(r)
    for t in range(len(index)):
        i, j, e = index[t, 0], index[t, 1], residuals[t]
        for q in range(r):
            x, y = X[i, q], X[j, q]
            w[q] = 2 * (x - y) if minus else y
            v[q] = 2 * (y - x) if minus else x
        for q in range(r):
            g[i, q] += e * w[q]
            g[j, q] += e * v[q]
            for p in range(q + 1):
                B[i, q, p] += w[q] * w[p]
                B[j, q, p] += v[q] * v[p]


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def times(X, index, minus, D, out):
    """out += J'J D."""
    r = X.shape[1]
    for t in range(len(index)):
        i, j, z = index[t, 0], index[t, 1], 0.0
        if minus:
            for q in range(r):
                z += (X[i, q] - X[j, q]) * (D[i, q] - D[j, q])
            z *= 4
            for q in range(r):
                step = z * (X[i, q] - X[j, q])
                out[i, q] += step
                out[j, q] -= step
        else:
            for q in range(r):
                z += D[i, q] * X[j, q] + X[i, q] * D[j, q]
            for q in range(r):
                x = X[i, q]
                out[i, q] += z * X[j, q]
                out[j, q] += z * x


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def factorise(B, scale):
    """Lower triangles, times `scale`, to Cholesky factors in place. What a row's entries do not
    tell has a pivot that lets nothing through."""
    d, r = B.shape[:2]
    for row in range(d):
        C, largest = B[row], 0.0
        for q in range(r):
            largest = max(largest, scale * C[q, q])
        for q in range(r):
            for p in range(q + 1):
                s = scale * C[q, p]
                for k in range(p):
                    s -= C[q, k] * C[p, k]
                if p < q:
                    C[q, p] = s / C[p, p]
                else:
                    C[q, q] = np.sqrt(s) if s > _FLOOR * largest else np.inf


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def solve(C, g, out):
    """out = B^-1 g, a row at a time."""
    d, r = g.shape
    for row in range(d):
        for q in range(r):
            s = g[row, q]
            for p in range(q):
                s -= C[row, q, p] * out[row, p]
            out[row, q] = s / C[row, q, q]
        for q in range(r - 1, -1, -1):
            s = out[row, q]
            for p in range(q + 1, r):
                s -= C[row, p, q] * out[row, p]
            out[row, q] = s / C[row, q, q]


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def add_blocks(C, D, share, out):
    """out += share B D, of the Cholesky factors C of B."""
    d, r = D.shape
    w = np.empty(r)
    for row in range(d):
        for q in range(r):
            s = 0.0
            for p in range(q, r):
                if C[row, p, p] < np.inf:
                    s += C[row, p, q] * D[row, p]
            w[q] = s
        for q in range(r):
            if C[row, q, q] < np.inf:
                s = 0.0
                for p in range(q + 1):
                    s += C[row, q, p] * w[p]
                out[row, q] += share * s
