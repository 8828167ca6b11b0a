"""Vectors of users from the items they chose, while the vectors of items stay as they are: for new
users, and for old ones whose taste has changed. Nothing is trained."""

from __future__ import annotations

import numpy as np

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
        find = _Squared(policy, items)
    else:
        pool = pool[np.linspace(0, len(pool) - 1, min(len(pool), _ITEMS)).astype(int)]
        find = _Softmax(policy, items, items[pool].astype(np.float64))
    out = np.empty((len(start) - 1, items.shape[1]), items.dtype)
    for u in range(len(out)):
        part = slice(start[u], start[u + 1])
        out[u] = find(chosen[part], weights[part])
    return out


class _Squared:
    """The whole-data least squares in closed form."""

    def __init__(self, policy: ChoicePolicy, items: np.ndarray):
        V = items.astype(np.float64)
        self.V, self.policy, self.G = V, policy, policy.alpha0 * V.T @ V

    def system(self, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """sum w v v^T + alpha_0 V^T V + ridge I (r, r)."""
        ridge = self.policy.ridge * np.eye(rows.shape[1])
        return (rows * weights[:, None]).T @ rows + self.G + ridge

    def __call__(self, chosen: np.ndarray, weights: np.ndarray) -> np.ndarray:
        rows = self.V[chosen]
        return np.linalg.solve(self.system(weights, rows), weights @ rows)


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
    rows = squares.V[chosen]
    A = squares.system(weights, rows)
    parts = weights * (rows @ np.linalg.solve(A, squares.V[item]))
    total = parts.sum()
    return parts / total if total else np.full(len(parts), 1 / len(parts))
