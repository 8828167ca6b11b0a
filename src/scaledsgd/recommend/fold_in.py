"""Vectors of users from the items they chose, while the vectors of items stay as they are: for new
users, and for old ones whose taste has changed. Nothing is trained."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from ..core.compiled import njit
from ..training.choice_trainer import ChoicePolicy

_ITEMS = 4096  # among which a choice is found, at most: as many again change nothing that is seen
_COSINE_STEPS, _STEP = 30, 0.3
_NEWTON_STEPS, _FURTHEST = 8, 4.0  # no score moves by more than that in a step


def vectors(
    policy: ChoicePolicy, items: np.ndarray, pool: np.ndarray, start: np.ndarray,
    chosen: np.ndarray, weights: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The vector of each user (users, r) that the policy's loss would give her.

    items : (items, r) vectors, of unit length for cosines.
    pool : items that somebody has chosen.
    start, chosen, weights : user u chose `chosen[start[u] : start[u + 1]]`.
    """
    if policy.loss == "squared":
        return _Squared(policy, items).vectors(start, chosen, weights)
    pool = pool[np.linspace(0, len(pool) - 1, min(len(pool), _ITEMS)).astype(int)]
    find = _Softmax(policy, items, items[pool].astype(np.float64))
    out = np.empty((len(start) - 1, items.shape[1]), items.dtype)
    for u in range(len(out)):
        part = slice(start[u], start[u + 1])
        out[u] = find(chosen[part], weights[part])
    return out


class _Squared:
    """The whole-data least squares in closed form. Products over all items are of their own
    precision, what is solved is of float64."""

    def __init__(self, policy: ChoicePolicy, items: np.ndarray):
        self.V, r = items, items.shape[1]
        self.A = policy.alpha0 * (items.T @ items).astype(np.float64) + policy.ridge * np.eye(r)

    def system(self, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """sum w v v^T + A (r, r), where A = alpha_0 V^T V + ridge I is the same for all users."""
        return (rows * weights[:, None]).T @ rows + self.A

    def vectors(self, start: np.ndarray, chosen: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The vector of each user: (sum w v v^T + A) x = sum w v. With A = L L^T and b = L^-1 v it
        is (sum w b b^T + I) L^T x = sum w b."""
        L = np.linalg.cholesky(self.A)
        inverse = solve_triangular(L, np.eye(len(L)), lower=True).astype(self.V.dtype)
        few = len(chosen) < len(self.V)
        B = (self.V[chosen] if few else self.V) @ inverse.T
        y = np.empty((len(start) - 1, len(L)), self.V.dtype)
        _solve(start, np.arange(len(chosen)) if few else chosen, weights.astype(np.float64), B, y)
        return y @ inverse


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _solve(start, at, weights, B, out):
    """(sum w b b^T + I) y = sum w b for each user: of whom few choices are known, by a system as
    small as those are, y = sum sqrt(w) c b with (K + I) c = sqrt(w), K = sqrt(w w') b.b'."""
    r = B.shape[1]
    for u in range(len(out)):
        first, n = start[u], start[u + 1] - start[u]
        size, out[u] = min(n, r), 0.0
        K, c = np.eye(size), np.zeros(size)
        if n <= r:
            for p in range(n):
                c[p] = np.sqrt(weights[first + p])
                for q in range(p + 1):
                    K[p, q] += c[p] * c[q] * _dot(B[at[first + p]], B[at[first + q]])
        else:
            for p in range(n):
                b, w = B[at[first + p]], weights[first + p]
                for i in range(r):
                    c[i] += w * b[i]
                    for j in range(i + 1):
                        K[i, j] += w * b[i] * b[j]
        _cholesky(K, c)
        if n > r:
            out[u] = c
            continue
        for p in range(n):
            b, w = B[at[first + p]], c[p] * np.sqrt(weights[first + p])
            for i in range(r):
                out[u, i] += w * b[i]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _dot(a, b):
    total = a.dtype.type(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _cholesky(K, c):
    """Solve K x = c for a positive definite K, of which the lower half is read; x replaces c."""
    for p in range(len(c)):
        for q in range(p):
            K[p, q] = (K[p, q] - _dot(K[p, :q], K[q, :q])) / K[q, q]
        K[p, p] = np.sqrt(K[p, p] - _dot(K[p, :p], K[p, :p]))
        c[p] = (c[p] - _dot(K[p, :p], c[:p])) / K[p, p]
    for p in range(len(c) - 1, -1, -1):
        c[p] /= K[p, p]
        for q in range(p):
            c[q] -= K[p, q] * c[p]


class _Softmax:
    """The softmax over the pool: on the sphere for cosines, by Newton's steps for products, which
    are convex."""

    def __init__(self, policy: ChoicePolicy, items: np.ndarray, pool: np.ndarray):
        self.policy, self.items, self.pool = policy, items, pool

    def __call__(self, chosen: np.ndarray, weights: np.ndarray) -> np.ndarray:
        mean = weights @ self.items[chosen].astype(np.float64) / weights.sum()
        return self._cosine(mean) if self.policy.cosine else self._dot(mean)

    def _expected(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The softmax over the pool, and the mean item by it."""
        z = self.pool @ x / self.policy.tau
        p = np.exp(z - z.max())
        p /= p.sum()
        return p, p @ self.pool

    def _cosine(self, mean: np.ndarray) -> np.ndarray:
        x = mean / max(float(np.linalg.norm(mean)), 1e-12)
        for _ in range(_COSINE_STEPS):
            g = self.policy.c * self._expected(x)[1] - mean
            x = x - _STEP * (g - (g @ x) * x)
            x /= np.linalg.norm(x)
        return x

    def _dot(self, mean: np.ndarray) -> np.ndarray:
        tau, c, ridge = self.policy.tau, self.policy.c, max(self.policy.dot_ridge, 1e-3)
        x = np.zeros(len(mean))
        for _ in range(_NEWTON_STEPS):
            p, expected = self._expected(x)
            g = (c * expected - mean) / tau + ridge * x
            spread = (self.pool * p[:, None]).T @ self.pool - np.outer(expected, expected)
            step = np.linalg.solve(c * spread / tau**2 + ridge * np.eye(len(x)), g)
            x -= step * min(1.0, _FURTHEST * tau / max(np.abs(self.pool @ step).max(), 1e-12))
        return x


def shares(
    policy: ChoicePolicy, items: np.ndarray, chosen: np.ndarray, weights: np.ndarray, item: int
) -> np.ndarray:
    """How much of a score each chosen item speaks for: shares that add up to 1.

    The least-squares vector of a user is a sum over her choices, x = A^-1 sum w v, so that her
    score x.v of an item is one, too."""
    squares = _Squared(policy, items)
    rows = items[chosen].astype(np.float64)
    A = squares.system(weights, rows)
    parts = weights * (rows @ np.linalg.solve(A, items[item]))
    total = parts.sum()
    return parts / total if total else np.full(len(parts), 1 / len(parts))
