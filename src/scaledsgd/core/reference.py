"""The paper's algorithm, line by line: slow, obvious, and the oracle of every engine.

X is the factor, P = (X^T X)^-1 its cached preconditioner, alpha the learning rate. A two-sided
matrix L R^T is the stacked X = [L; R] with one P a side: a row steps along the other side's P
and updates its own.
"""

from __future__ import annotations

import numpy as np

from .losses import Loss


def preconditioners(X: np.ndarray, rows: int | None = None) -> list[np.ndarray]:
    """P = (X^T X)^-1, or the pair of them for the stacked factor of a two-sided matrix.

    >>> preconditioners(np.eye(3, 2))[0]
    array([[1., 0.],
           [0., 1.]])
    """
    sides = [X] if rows is None else [X[:rows], X[rows:]]
    return [np.linalg.inv(side.T @ side) for side in sides]


def sherman_morrison(P: np.ndarray, u: np.ndarray, sign: float) -> np.ndarray:
    """(P^-1 + sign u u^T)^-1."""
    Pu = P @ u
    return P - sign * np.outer(Pu, Pu) / (1.0 + sign * (u @ Pu))


def form(X: np.ndarray, rows: np.ndarray, loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    """u and v of one sample: z = <u, v>."""
    x = X[rows]
    return np.asarray(loss.a) @ x, np.asarray(loss.b) @ x


def sgd(
    X: np.ndarray,
    index: np.ndarray,
    targets: np.ndarray,
    loss: Loss,
    alpha: float,
    P: np.ndarray | None = None,
) -> None:
    """SGD over the samples in order, plain or with a P that stays as it is; X changes in place."""
    frozen = [np.eye(X.shape[1]) if P is None else P]
    for rows, y in zip(index, targets, strict=True):
        _move(X, frozen, rows, y, loss, alpha)


def scaled_sgd(
    X: np.ndarray,
    P: list[np.ndarray],
    index: np.ndarray,
    targets: np.ndarray,
    loss: Loss,
    alpha: float,
) -> list[np.ndarray]:
    """ScaledSGD over the samples in order; X changes in place, the new P is returned.

    >>> from scaledsgd.core.losses import LOSSES
    >>> X = np.array([[1.0], [2.0]])
    >>> P = scaled_sgd(X, preconditioners(X), np.array([[0, 1]]), np.array([1.0]),
    ...                LOSSES["squared"], alpha=1.0)
    >>> X[:, 0], P[0] * (X.T @ X)
    (array([0.6, 1.8]), array([[1.]]))
    """
    P = list(P)
    for rows, y in zip(index, targets, strict=True):
        before = X[rows]
        moved = _move(X, P, rows, y, loss, alpha)
        for m in moved:
            side = loss.sides[m] % len(P)
            P[side] = sherman_morrison(P[side], X[rows[m]], +1.0)
            P[side] = sherman_morrison(P[side], before[m], -1.0)
    return P


def _move(X, P, rows, y, loss: Loss, alpha: float) -> list[int]:
    """One step. Returns which of the sample's places moved: a row named twice moves once, the
    first time it is named."""
    u, v = form(X, rows, loss)
    slope = loss.slope(u @ v, y)
    moved = [m for m, row in enumerate(rows) if row not in rows[:m]]
    steps = [P[(1 - loss.sides[m]) % len(P)] @ (loss.a[m] * v + loss.b[m] * u) for m in moved]
    for m, step in zip(moved, steps, strict=True):
        X[rows[m]] -= alpha * slope * step
    return moved
