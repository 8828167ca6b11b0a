"""The step, compiled: one body for a round's frozen diagonal P, one for the paper's per-sample P.

Both are written once for all losses. A factory closes over a loss's row of the table, whose zeros
and ones the compiler folds away, so that each loss gets the code one would write for it by hand.
"""

from __future__ import annotations

import hashlib
import inspect
from functools import cache

import numba
import numpy as np
from numba.extending import register_jitable

from ..factors import LINE
from ..losses import LOSSES, Loss
from .memory import prefetch

# Sums over the rank may be reordered (SIMD) and fused, and 0 x is 0: that removes the absent terms
# of a loss. A NaN still spreads through X, where the next Gram finds it.
_FAST = {"contract", "reassoc", "nsz", "arcp", "nnan"}

# Up to this rank the loops over the rank are unrolled for the very rank: 17 against 23 ns a step at
# r = 3; from r = 8 on the general loop is as fast or faster.
_UNROLLED = 4

# Rows are asked for this many samples before they are needed. From 8 to 16 it makes no difference.
_AHEAD = 12


def _jit(function):
    return numba.njit(nogil=True, cache=True, fastmath=_FAST, error_model="numpy")(function)


def kernel(factory, loss: Loss, rank: int = 0, **options):
    """The compiled kernel of a loss, from the disk cache when it was compiled before."""
    return _compiled(factory, loss.name, rank if rank <= _UNROLLED else 0, **options)


@cache
def _compiled(factory, name: str, rank: int, **options):
    loss = LOSSES[name]
    # Numba's disk cache looks at this file and at what a kernel closes over, and takes functions by
    # their name: without the hash an edited loss would run as its old binary.
    source = inspect.getsource(loss.slope)
    version = hashlib.sha256(source.encode()).hexdigest()
    return factory(loss, register_jitable(loss.slope), rank, version, **options)


def _coefficients(loss: Loss):
    """a and b for three rows, in the type that does not widen a float32 row."""
    return [tuple(np.float32(c) for c in (*row, 0)[:3]) for row in (loss.a, loss.b)]


@register_jitable
def _combine(c, x0, x1, x2):
    return c[0] * x0 + c[1] * x1 + c[2] * x2


@register_jitable
def _fetch(X, index, t, r, triplet):
    """Begin to load the rows that a sample names."""
    for q in range(0, r, LINE // X.itemsize):
        prefetch(X, index[t, 0], q, 1)
        prefetch(X, index[t, 1], q, 1)
        if triplet:
            prefetch(X, index[t, 2], q, 1)


def rounds(loss: Loss, slope, rank: int, version: str, capped: bool = False, far: bool = False):
    """Steps with a frozen diagonal P; `rates[m]` is alpha for the m-th row of a sample, and plain
    SGD is the same kernel with P = 1. Returns the sum of squared slopes.

    A step changes z by the slope times h = sum_m alpha_m |dz/dx_m|_P^2, to first order. Rows of
    high leverage have a large h; `capped` shortens their step so that h stays within `cap`.

    With `far`, for an X that does not fit the cache, rows are fetched ahead of their turn."""
    third, (a, b) = loss.arity - 1, _coefficients(loss)
    triplet = loss.arity == 3

    @_jit
    def run(X, P, rates, cap, index, targets):
        _ = version  # part of the cache key
        r = X.shape[1] if rank == 0 else rank
        real, last = X.dtype.type, index.shape[0] - 1
        total = 0.0
        for t in range(index.shape[0]):
            if far:
                _fetch(X, index, min(t + _AHEAD, last), r, triplet)
            # Of a pair the third row is the second again, with coefficients 0.
            i0, i1, i2 = index[t, 0], index[t, 1], index[t, third]
            z, h = real(0), real(0)
            for q in range(r):
                x0, x1, x2 = X[i0, q], X[i1, q], X[i2, q]
                u, v = _combine(a, x0, x1, x2), _combine(b, x0, x1, x2)
                z += u * v
                if capped:
                    move = rates[0] * (a[0] * v + b[0] * u) ** 2
                    move += rates[1] * (a[1] * v + b[1] * u) ** 2
                    if triplet:
                        move += rates[2] * (a[2] * v + b[2] * u) ** 2
                    h += P[q] * move
            g = real(slope(z, targets[t]))
            total += g * g
            if capped and h > cap:
                g *= cap / h
            g0, g1, g2 = g * rates[0], g * rates[1], g * rates[third]
            for q in range(r):
                x0, x1, x2 = X[i0, q], X[i1, q], X[i2, q]
                u, v = _combine(a, x0, x1, x2), _combine(b, x0, x1, x2)
                # Last named, first written: of a row named twice the first move stays.
                if triplet:
                    X[i2, q] = x2 - g2 * P[q] * (a[2] * v + b[2] * u)
                X[i1, q] = x1 - g1 * P[q] * (a[1] * v + b[1] * u)
                X[i0, q] = x0 - g0 * P[q] * (a[0] * v + b[0] * u)
        return total

    return run


def scoring(loss: Loss, slope, rank: int, version: str, far: bool = False):
    """z of every sample."""
    third, (a, b) = loss.arity - 1, _coefficients(loss)
    triplet = loss.arity == 3

    @_jit
    def score(X, index, out):
        r, last = X.shape[1] if rank == 0 else rank, index.shape[0] - 1
        for t in range(index.shape[0]):
            if far:
                _fetch(X, index, min(t + _AHEAD, last), r, triplet)
            i0, i1, i2 = index[t, 0], index[t, 1], index[t, third]
            z = X.dtype.type(0)
            for q in range(r):
                x0, x1, x2 = X[i0, q], X[i1, q], X[i2, q]
                z += _combine(a, x0, x1, x2) * _combine(b, x0, x1, x2)
            out[t] = z

    return score


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _sherman_morrison(P, u, sign, Pu):
    """P <- (P^-1 + sign u u^T)^-1 in place; False, P untouched, where that is not positive."""
    r = len(u)
    uPu = 0.0
    for p in range(r):
        Pu[p] = 0.0
        for q in range(r):
            Pu[p] += P[p, q] * u[q]
        uPu += Pu[p] * u[p]
    # Below 1e-8 half of float64's digits are gone from the quotient; NaN fails the test too.
    if not 1.0 + sign * uPu > 1e-8:
        return False
    for p in range(r):
        for q in range(r):
            P[p, q] -= sign * Pu[p] * Pu[q] / (1.0 + sign * uPu)
    return True


def sampled(loss: Loss, slope, rank: int, version: str):
    """The paper to the letter: P follows every sample by Sherman-Morrison. `P` and `change` (the
    cumulative change of the Gram) hold one matrix a side. Stops after the first sample whose
    update of P fails. Returns how many samples were run, their sum of squared slopes, and whether P
    is sound."""
    arity, a, b = loss.arity, loss.a, loss.b
    left_right = loss.sides

    @numba.njit(nogil=True, cache=True, error_model="numpy")
    def run(X, P, change, rates, index, targets):
        _ = version  # part of the cache key
        r, sides = X.shape[1], P.shape[0]
        before, steps = np.empty((arity, r)), np.empty((arity, r))
        u, v, work = np.empty(r), np.empty(r), np.empty(r)
        total = 0.0
        for t in range(index.shape[0]):
            z = 0.0
            for q in range(r):
                u[q] = v[q] = 0.0
                for m in range(arity):
                    before[m, q] = X[index[t, m], q]
                    u[q] += a[m] * before[m, q]
                    v[q] += b[m] * before[m, q]
                z += u[q] * v[q]
            g = slope(z, targets[t])
            total += g * g
            for m in range(arity):
                other = (1 - left_right[m]) % sides
                for p in range(r):
                    steps[m, p] = 0.0
                    for q in range(r):
                        steps[m, p] += P[other, p, q] * (a[m] * v[q] + b[m] * u[q])
            sound = True
            for m in range(arity):
                named = False
                for n in range(m):
                    named = named or index[t, n] == index[t, m]
                if named:
                    continue
                row, side = X[index[t, m]], left_right[m] % sides
                for q in range(r):
                    row[q] = before[m, q] - rates[m] * g * steps[m, q]
                    u[q] = row[q]  # u and v are spent; u is now the new row in float64
                sound = sound and _sherman_morrison(P[side], u, 1.0, work)
                sound = sound and _sherman_morrison(P[side], before[m], -1.0, work)
                for p in range(r):
                    for q in range(r):
                        change[side, p, q] += u[p] * u[q] - before[m, p] * before[m, q]
            if not sound:
                return t + 1, total, False
        return index.shape[0], total, True

    return run
