"""Compiled steps on choices: one event at a time of the whole-data squared loss, and blocks of
matrix products of the sampled softmax. `core/reference.py` says the same in plain NumPy.

Rows are taken from tables whose padding is part of the array (`padded`), so that the compiler sees
them side by side in memory.
"""

from __future__ import annotations

import numba
import numpy as np
import scipy.linalg  # noqa: F401  (np.dot inside compiled code calls SciPy's BLAS)
from numba.extending import register_jitable

_jit = numba.njit(nogil=True, cache=True, fastmath=True, error_model="numpy")

# Of exp below: 2^f on [-1/2, 1/2] by a polynomial, good to 2e-7, and the exponent's bits set by
# hand, so that the loop around it becomes vector instructions. Scores beyond the clamp are 0.
_LOG2_E = np.float32(1.44269504)
_LOWEST, _HIGHEST = np.float32(-80), np.float32(60)
_POWERS = tuple(
    np.float32(c)
    for c in (0.00132669704, 0.00967545975, 0.0555074262, 0.240221218, 0.693146949, 1.00000007)
)


def padded(X: np.ndarray) -> np.ndarray:
    """X (n, r) with the room between its rows, as an array in one piece.

    >>> from scaledsgd.core.linalg import aligned
    >>> padded(aligned(3, 10, np.float32)).shape
    (3, 16)
    """
    shape, strides = (len(X), X.strides[0] // X.itemsize), (X.strides[0], X.itemsize)
    return np.lib.stride_tricks.as_strided(X, shape, strides)


@_jit
def squared(U, V, r, users, items, weights, order, theta, seen, ridges, grams, means):
    """A step on the two rows of each choice that `order` names. Returns the sum of the squared
    residuals.

    seen, ridges : of each user, and of each item.
    grams, means : (2, r) alpha_0 x_q^2 summed over the rows of a side, and x_q^2 averaged over its
        events; users first.
    """
    (n, m), (lu, li), squares = seen, ridges, 0.0
    one, zero = np.float32(1), np.float32(0)
    p, s = np.empty(r, np.float32), np.empty(r, np.float32)
    for t in order:
        x, v, w = U[users[t]], V[items[t]], theta * weights[t]
        nu, ni, hu, hi = n[users[t]], m[items[t]], lu[users[t]], li[items[t]]
        bu, bi = w / nu, w / ni
        z, lever = zero, zero
        for q in range(r):
            # The curvature of all her choices and of the rest: what a step on one is divided by.
            a = nu * means[1, q] + (one + bu) * (grams[1, q] + hu)
            b = ni * means[0, q] + (one + bi) * (grams[0, q] + hi)
            both = one / (a * b)  # one division for two
            p[q], s[q] = b * both, a * both
            z += x[q] * v[q]
            lever += p[q] * v[q] * v[q] + s[q] * x[q] * x[q]
        squares += (one - z) * (one - z)
        e = w * (one - z) / (one + w * lever)  # the residual after the step, not before
        for q in range(r):
            xq, vq = x[q], v[q]
            x[q] = xq + p[q] * (e * vq - bu * (grams[1, q] + hu) * xq)
            v[q] = vq + s[q] * (e * xq - bi * (grams[0, q] + hi) * vq)
    return squares


@register_jitable
def _exp(x):
    y = min(max(x, _LOWEST), _HIGHEST) * _LOG2_E
    k = np.floor(y + np.float32(0.5))
    f = y - k
    p = _POWERS[0]
    p = p * f + _POWERS[1]
    p = p * f + _POWERS[2]
    p = p * f + _POWERS[3]
    p = p * f + _POWERS[4]
    p = p * f + _POWERS[5]
    return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)


@_jit
def exp_rows(S, sums):
    """S <- exp(S) in place, and the sum of each row."""
    for b in range(S.shape[0]):
        row, total = S[b], np.float32(0)
        for j in range(S.shape[1]):
            e = _exp(row[j])
            row[j] = e
            total += e
        sums[b] = total


@_jit
def gather(X, rows, out, inverse, cosine):
    """out <- X[rows], of unit length for cosines; `inverse` is 1 over the length, else 1."""
    one, r = np.float32(1), out.shape[1]
    for b in range(len(rows)):
        x, length = X[rows[b]], np.float32(1e-20)
        for q in range(r):
            length += x[q] * x[q]
        inverse[b] = one / np.sqrt(length) if cosine else one
        for q in range(r):
            out[b, q] = x[q] * inverse[b]


@_jit
def project(G, A, inverse):
    """Gradients of cosines: each loses its part along its own row, of unit length in A, and is
    divided by the row's length."""
    for b in range(len(G)):
        along = np.float32(0)
        for q in range(G.shape[1]):
            along += G[b, q] * A[b, q]
        for q in range(G.shape[1]):
            G[b, q] = (G[b, q] - along * A[b, q]) * inverse[b]


@_jit
def _levers(A, P):
    """a P a' of each row of A."""
    H, out = np.dot(A, P), np.empty(len(A), np.float32)
    for b in range(len(A)):
        total = np.float32(0)
        for q in range(A.shape[1]):
            total += H[b, q] * A[b, q]
        out[b] = total
    return out


@_jit
def softmax(
    U, V, users, items, weights, W, P, alpha, tau, c, cosine, ridge, S, gu, gi, gn, mass
):  # fmt: skip
    """Gradients of some choices of a block. Returns the sum of their losses.

    W : (N, r) rows of the negatives, of unit length for cosines.
    S : (b, N) room for the scores.
    gu, gi : (b, r) gradients of the users' and of the items' rows.
    gn : (N, r) those of the negatives, not yet projected; mass (N,): their curvature.

    With dot products a step is divided by 1 + its own curvature, as an implicit one would be.
    """
    b, r = gu.shape
    A, B, C = (
        np.empty((b, r), np.float32),
        np.empty((b, r), np.float32),
        np.empty((b, r), np.float32),
    )
    ia, ib, sums = np.empty(b, np.float32), np.empty(b, np.float32), np.empty(b, np.float32)
    gather(U, users, A, ia, cosine)
    gather(V, items, B, ib, cosine)
    one, beta, loss = np.float32(1), np.float32(1) / tau, 0.0
    for k in range(b):
        for q in range(r):
            C[k, q] = A[k, q] * beta
    np.dot(C, W.T, S)
    exp_rows(S, sums)
    np.dot(S, W, gu)
    for k in range(b):
        o, own = weights[k] * beta, np.float32(0)
        p = c * o / sums[k]
        for q in range(r):
            own += A[k, q] * B[k, q]
            gu[k, q] = p * gu[k, q] - o * B[k, q]
            gi[k, q] = -o * A[k, q]
            C[k, q] = p * A[k, q]
        loss += weights[k] * (c * np.log(sums[k]) - beta * own)
    np.dot(S.T, C, gn)
    if cosine:
        project(gu, A, ia)
        project(gi, B, ib)
        return loss
    lu, li = _levers(A, P[0]), _levers(B, P[1])
    for k in range(b):
        h = alpha * weights[k]
        eu = one / (one + h * (beta * beta * li[k] + ridge))
        ei = one / (one + h * (beta * beta * lu[k] + ridge))
        for q in range(r):
            gu[k, q] = eu * (gu[k, q] + ridge * weights[k] * A[k, q])
            gi[k, q] = ei * (gi[k, q] + ridge * weights[k] * B[k, q])
        sums[k] = lu[k] * c * weights[k] / sums[k]
    mass[:] = np.dot(S.T, sums)
    return loss


@_jit
def descend(X, rows, G, P, alpha):
    """X[rows] -= alpha G P; rows may repeat."""
    H = np.dot(G, P)
    for b in range(len(rows)):
        x = X[rows[b]]
        for q in range(H.shape[1]):
            x[q] -= alpha * H[b, q]
